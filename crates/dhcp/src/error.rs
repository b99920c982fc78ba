//! Errors of the daemon.

use std::io;

/// The result of a daemon operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a daemon operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused an operation, or a namespace cannot be entered.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A file or a socket file.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// A socket in a pod.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The pod or its interface does not exist.
    #[error("{0}")]
    Gone(String),
    /// Another error.
    #[error("{0}")]
    Other(String),
}

impl From<podwire_netlink::Error> for Error {
    fn from(error: podwire_netlink::Error) -> Error {
        Error::Kernel(error.into())
    }
}

impl Error {
    /// For `map_err`: what was being done.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { doing, source }
    }

    /// Whether the pod or its interface no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Gone(_) => true,
            Error::Kernel(error) => error.is_gone(),
            _ => false,
        }
    }
}
