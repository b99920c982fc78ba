//! Errors that prevent a verification. A packet that does not arrive is not an error but an outcome; an endpoint that cannot
//! be probed is in the report.

use std::io;

/// Why the verification could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace cannot be entered.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The kernel did not list addresses.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A thread or a pipe cannot be created.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A bug.
    #[error("a thread panicked")]
    Panic,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
