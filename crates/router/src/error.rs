//! What can go wrong.

use std::path::Path;

/// The result of building roads to blocks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's side.
    #[error(transparent)]
    Fabric(#[from] podwire_overlay::Error),
    /// The store's side.
    #[error(transparent)]
    Blocks(#[from] podwire_block_ipam::Error),
    /// A file or something like it.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// BIRD cannot be started, or does not take its config.
    #[error("BIRD {what}: {why}")]
    Bird {
        /// Which.
        what: String,
        /// What it said.
        why: String,
    },
}

impl Error {
    pub(crate) fn file(doing: &'static str, path: impl AsRef<Path>) -> impl Fn(std::io::Error) -> Error {
        let path = path.as_ref().display().to_string();
        move |source| Error::File { doing, path: path.clone(), source }
    }
}

impl From<podwire_kernel::Error> for Error {
    fn from(error: podwire_kernel::Error) -> Error {
        Error::Fabric(error.into())
    }
}
