//! Why BIRD cannot be configured or started.

use podwire_fs::FileError;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, a directory or the control socket.
    #[error(transparent)]
    File(#[from] FileError),
    /// BIRD does not start, or rejects a command.
    #[error("BIRD {what}: {why}")]
    Bird {
        /// The program or the control socket, in parentheses.
        what: String,
        /// BIRD's answer.
        why: String,
    },
    /// The thread cannot be started.
    #[error("start the thread for BGP: {0}")]
    Thread(std::io::Error),
}
