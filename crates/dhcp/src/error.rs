//! What can go wrong for the daemon.

use std::io;
use std::path::PathBuf;

/// The result of the daemon's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something that the daemon could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, or a namespace.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A file or a socket.
    #[error("{doing} {path:?}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A socket in a pod.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The pod or its interface is not there.
    #[error("{0}")]
    Gone(String),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl From<podwire_netlink::Error> for Error {
    fn from(error: podwire_netlink::Error) -> Error {
        Error::Kernel(error.into())
    }
}

impl Error {
    /// For `map_err`: what was being done with a file.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }

    /// For `map_err`: what was being done.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { doing, source }
    }

    /// Whether the pod or its interface is not there any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Gone(_) => true,
            Error::Kernel(error) => error.is_gone(),
            _ => false,
        }
    }
}
