//! Errors of this crate.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_ip::IpFamily;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that stops [`apply`](crate::apply) or the choice of an uplink. Problems with single peers are in the
/// [`Report`](crate::Report).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device could not be created, or the kernel state could not be read.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A foreign device has the name of an owned device.
    #[error(
        "device {name:?} exists as a {found}, but the overlay needs a {wanted}: \
         rename or delete it, or choose another VNI"
    )]
    ForeignDevice {
        /// The name.
        name: String,
        /// The kind that the overlay needs.
        wanted: &'static str,
        /// The kind of the existing device.
        found: String,
    },
    /// The kernel cannot create a device of the backend.
    #[error("{source}: load the kernel module {module}, or choose another backend in the network config")]
    NoDriver {
        /// The name of the kernel module.
        module: &'static str,
        /// The kernel's answer.
        source: podwire_netlink::Error,
    },
    /// No interface matches.
    #[error("no interface {what}; interfaces: {candidates}")]
    NoInterface {
        /// The condition.
        what: String,
        /// All interfaces with their addresses.
        candidates: String,
    },
    /// Several interfaces match.
    #[error("several interfaces {what}: {candidates}; select one by name or address")]
    AmbiguousInterface {
        /// The condition.
        what: String,
        /// The matching interfaces with their addresses.
        candidates: String,
    },
    /// The interface has no address that other nodes could use.
    #[error("interface {name} has no usable {family} address; addresses: {addresses}")]
    NoAddress {
        /// The interface.
        name: String,
        /// The family.
        family: IpFamily,
        /// The addresses of the interface.
        addresses: String,
    },
    /// An interface pattern is not a valid regular expression.
    #[error("interface pattern {pattern:?}: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address that selects the uplink has no route.
    #[error("no route to {address}, which selects the interface: {source}")]
    Unreachable {
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        source: podwire_netlink::Error,
    },
    /// The WireGuard key file could not be read or written.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// The WireGuard key file has invalid content.
    #[error("key file {path:?}: not 32 bytes in base64; delete it to get a new key")]
    BadKey {
        /// The file.
        path: PathBuf,
    },
}

impl From<podwire_netlink::Error> for Error {
    fn from(error: podwire_netlink::Error) -> Error {
        Error::Kernel(error.into())
    }
}
