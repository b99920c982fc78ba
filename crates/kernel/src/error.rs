//! Errors of this crate.

use std::io;
use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation on a host that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A namespace file is missing or not a network namespace.
    #[error("failed to open netns {path:?}: {}", plain(source))]
    Netns {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file under /proc or /run could not be read or written.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// A link of another kind has the name.
    #[error("{name:?} already exists but is not a {wanted}")]
    WrongKind {
        /// The link's name.
        name: String,
        /// The kind that is needed.
        wanted: &'static str,
        /// The kind that it is.
        found: String,
    },
    /// A TAP device could not be created.
    #[error("create TAP device {name}: {step}: {source}")]
    Tap {
        /// Its name.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A host port belongs to another pod.
    #[error("host port {port}/{protocol}{} is taken by {holder}", address.map(|a| format!(" on {a}")).unwrap_or_default())]
    PortTaken {
        /// The port.
        port: u16,
        /// `tcp`, `udp` or `sctp`.
        protocol: &'static str,
        /// The host address, if the mapping is for one only.
        address: Option<std::net::IpAddr>,
        /// The owner: network/container/interface.
        holder: String,
    },
    /// An address belongs to another running pod, because two networks overlap.
    #[error("address {address} belongs to {holder}, which is running")]
    AddressTaken {
        /// The address.
        address: String,
        /// The owner: network/container/interface.
        holder: String,
    },
    /// The subnet of a network overlaps with that of another network.
    #[error("subnet {subnet} overlaps with {address} of {link}, the gateway of another network")]
    SubnetTaken {
        /// The subnet.
        subnet: String,
        /// The other gateway's address, with the prefix length.
        address: String,
        /// The link that has it.
        link: String,
    },
    /// The kernel has no nf_tables.
    #[error("this kernel has no nf_tables (CONFIG_NF_TABLES), or cannot load the module")]
    NoNfTables,
    /// Another error, described by its text.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// Whether the object already exists.
    pub fn is_exists(&self) -> bool {
        matches!(self, Error::Netlink(error) if error.is_exists())
    }

    /// Whether the object does not exist.
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

/// The error text as Go prints it, without Rust's "(os error N)": go-cni matches "no such file or directory".
fn plain(error: &io::Error) -> String {
    let full = error.to_string();
    match full.find(" (os error") {
        Some(at) => full[..at].to_lowercase(),
        None => full,
    }
}
