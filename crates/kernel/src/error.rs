//! What can go wrong on a host, as an operator can act on it.

use std::io;
use std::path::PathBuf;

/// The result of working on a host.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A step on a host that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A namespace file is missing or is no network namespace.
    #[error("failed to open netns {path:?}: {}", plain(source))]
    Netns {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file under /proc or /run could not be read or written.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// A link has the name that is needed, but is something else.
    #[error("{name:?} already exists but is not a {wanted}: it is a {found}")]
    WrongKind {
        /// The link's name.
        name: String,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// A TAP device could not be made.
    #[error("create TAP device {name}: {step}: {source}")]
    Tap {
        /// Its name.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A host port belongs to another pod.
    #[error("host port {port}/{protocol}{} is taken by {holder}", address.map(|a| format!(" on {a}")).unwrap_or_default())]
    PortTaken {
        /// The port.
        port: u16,
        /// `tcp`, `udp` or `sctp`.
        protocol: &'static str,
        /// The host address, if the map is for one only.
        address: Option<std::net::IpAddr>,
        /// Whose it is: network/container/interface.
        holder: String,
    },
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// Whether the object was there already.
    pub fn is_exists(&self) -> bool {
        matches!(self, Error::Netlink(error) if error.is_exists())
    }

    /// Whether the object is not there.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Netlink(error) => error.is_gone(),
            Error::Netns { source, .. } | Error::File(podwire_fs::FileError { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

/// The system's words as Go prints them, without Rust's "(os error N)": go-cni looks for "no such file or directory".
fn plain(error: &io::Error) -> String {
    let full = error.to_string();
    match full.find(" (os error") {
        Some(at) => full[..at].to_lowercase(),
        None => full,
    }
}
