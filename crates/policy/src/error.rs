//! What can be wrong with an object as a whole. What is wrong with a part of it is a [`Warning`](crate::Warning).

/// The result of reading an object.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not say what it is.
    #[error(
        "not a Kubernetes object: it has no {0} (every document needs apiVersion, kind and metadata.name)"
    )]
    NoObject(&'static str),
    /// A field has a value of the wrong kind.
    #[error(
        "{object}: {reason} (the API server would refuse it: `kubectl apply --dry-run=server` shows where)"
    )]
    Malformed {
        /// Kind and name.
        object: String,
        /// The parser's words.
        reason: String,
    },
    /// Two objects of one kind have the same name.
    #[error("{object} is there twice: keep one of them")]
    Twice {
        /// Kind and name.
        object: String,
    },
}
