//! Errors about an object as a whole. A problem with one field of it is a [`Warning`](crate::Warning).

/// The result of reading an object.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field is missing without which the object cannot be identified.
    #[error(
        "not a Kubernetes object: it has no {0} (every document needs apiVersion, kind and metadata.name)"
    )]
    MissingField(&'static str),
    /// A field has a value of the wrong type.
    #[error(
        "{object}: {reason} (the API server would refuse it: `kubectl apply --dry-run=server` shows where)"
    )]
    Malformed {
        /// Kind and name.
        object: String,
        /// The parser's message.
        reason: String,
    },
    /// Two objects of one kind have the same name.
    #[error("{object} is defined twice: keep one definition")]
    Duplicate {
        /// Kind and name.
        object: String,
    },
}
