//! What keeps an agent from its work. It is told, and tried again; only what can never succeed ends the program.

use std::io;
use std::path::PathBuf;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source of nodes.
    #[error(transparent)]
    Source(#[from] cluster::Error),
    /// The kernel, or the choice of an interface.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The network's config asks for roads that cannot be built.
    #[error("Backend {kind:?} of the network's config: {why}")]
    Backend {
        /// Its type.
        kind: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// A file could not be written.
    #[error("{doing} {path:?}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The port for health and metrics.
    #[error("cannot serve health and metrics at {address}: {source}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread that owns the kernel's side is gone: a bug.
    #[error("the thread that makes the roads has ended")]
    RoadsEnded,
}

impl Error {
    /// For `map_err` of file operations.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }
}
