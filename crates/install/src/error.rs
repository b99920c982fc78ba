//! What can go wrong, in words that say which file it is about.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be installed or taken back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("{verb} {}: {source}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's words.
        source: io::Error,
    },
    /// A runtime's config cannot be understood.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// Our own record cannot be understood.
    #[error("{}: {message}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The network that was asked for makes no sense.
    #[error("{0}")]
    Network(String),
}

impl Error {
    /// For `map_err`: `verb` failed for `path`.
    pub(crate) fn file(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { verb, path, source }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::File { .. } => Some("run the same command again when that is mended: it goes on where this one stopped"),
            Error::Config { .. } => {
                Some("the runtime cannot read this file either; mend it, or name the folders with --bin-dir and --conf-dir")
            }
            Error::Record { .. } => Some("without it nobody knows what was installed; bring it back from a backup"),
            Error::Network(_) => None,
        }
    }
}
