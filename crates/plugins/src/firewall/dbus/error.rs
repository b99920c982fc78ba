//! Errors of a D-Bus call.

use std::io;
use std::time::Duration;

use super::message::Malformed;

/// The time limit for one exchange with the bus and the service behind it.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The errors by which the bus reports that no service has the called name.
const NO_SERVICE: [&str; 2] =
    ["org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner"];

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::firewall) enum Error {
    /// No bus listens at the address.
    #[error("no D-Bus at {0}")]
    Absent(String),
    /// The bus refused authentication.
    #[error("the D-Bus refused authentication: {0}")]
    Rejected(String),
    /// No response in time.
    #[error("no response over the D-Bus within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// The socket failed.
    #[error("D-Bus: {0}")]
    Io(io::Error),
    /// A received message, or one to send, is invalid.
    #[error("D-Bus: {0}")]
    Malformed(#[from] Malformed),
    /// The service, or the bus on its behalf, returned an error.
    #[error("{text} ({name})")]
    Refused {
        /// The error's name.
        name: String,
        /// The error's message.
        text: String,
    },
}

impl Error {
    /// Whether there is no bus, or no service with the called name.
    pub fn is_absent(&self) -> bool {
        match self {
            Error::Absent(_) => true,
            Error::Refused { name, .. } => NO_SERVICE.contains(&name.as_str()),
            _ => false,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.kind() {
            // Which of the two a socket's timeout returns depends on the platform.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout,
            _ => Error::Io(error),
        }
    }
}
