//! Errors of install and uninstall.

use std::io;
use std::path::{Path, PathBuf};

use podwire_fs::FileError;

/// Why an install or uninstall failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A runtime's config is invalid.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The install record is invalid.
    #[error("{}: {message}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The requested network is invalid.
    #[error("{0}")]
    Network(String),
}

impl Error {
    /// For `map_err`: names the action and the path.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let at = FileError::at(doing, path.to_owned());
        move |source| at(source).into()
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::File(_) => {
                Some("fix the cause and run the same command again: it continues where this one stopped")
            },
            Error::Config { .. } => {
                Some("the runtime cannot read this file either; fix it, or name the directories with --bin-dir and --conf-dir")
            }
            Error::Record { .. } => Some("it is needed to know what was installed; restore it from a backup"),
            Error::Network(_) => None,
        }
    }
}
