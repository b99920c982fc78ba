//! What can go wrong with roads, as an operator can act on it.

use std::net::IpAddr;
use std::path::PathBuf;

/// The result of building roads.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A step that failed as a whole. What concerns one peer only is in a [`Report`](crate::Report).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device could not be made, or the kernel could not be read.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// Somebody else's device has the name that ours needs.
    #[error("{name:?} is a {found} and not a {wanted} of ours: rename or delete it, or choose another VNI")]
    ForeignDevice {
        /// The name.
        name: String,
        /// What ours would be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// No interface fits.
    #[error("no interface {what}; there are: {candidates}")]
    NoInterface {
        /// What was looked for.
        what: String,
        /// The interfaces that there are, with their addresses.
        candidates: String,
    },
    /// Several interfaces fit, and it would be a guess which one is meant.
    #[error("several interfaces {what}: {candidates}; say which one by its name or its address")]
    AmbiguousInterface {
        /// What was looked for.
        what: String,
        /// Those that fit, with their addresses.
        candidates: String,
    },
    /// An interface was found but has no address that others could reach.
    #[error("interface {name} has no usable {family} address; it has: {addresses}")]
    NoAddress {
        /// The interface.
        name: String,
        /// The family.
        family: podwire_ip::IpFamily,
        /// The addresses that it has.
        addresses: String,
    },
    /// A pattern for interfaces cannot be read.
    #[error("pattern {pattern:?} for interfaces: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An address to be reached cannot be reached.
    #[error("no way to {address}, by which the interface was to be found: {source}")]
    Unreachable {
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        source: podwire_netlink::Error,
    },
    /// A file with a secret could not be read or written.
    #[error("{doing} {path:?}: {reason}")]
    KeyFile {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer, or what is wrong with the content.
        reason: String,
    },
}

impl From<podwire_netlink::Error> for Error {
    fn from(error: podwire_netlink::Error) -> Error {
        Error::Kernel(error.into())
    }
}
