//! What can go wrong with enforcing.

use std::io;
use std::path::PathBuf;

/// The result of the agent's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, a folder or a socket.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file that makes no sense.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] podwire_kubernetes::Error),
    /// A flag whose value is not valid.
    #[error("{flag}: {why}")]
    Config {
        /// The flag.
        flag: &'static str,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// The kernel's rules.
    #[error("{0}")]
    Dataplane(#[from] crate::dataplane::Error),
    /// The kernel's notices.
    #[error("{0}")]
    Netlink(#[from] podwire_netlink::Error),
    /// The thread that enforces is gone.
    #[error("the thread that enforces policies has ended")]
    Ended,
}

impl Error {
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }
}
