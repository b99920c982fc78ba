//! What keeps the proof from being made at all. That a packet does not arrive is no error: it is an outcome.

use std::io;
use std::net::IpAddr;

/// Why nothing could be found out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace cannot be looked into.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The kernel did not list addresses.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// No socket for answers.
    #[error("{place}: cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        place: String,
        /// On which of its addresses.
        address: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No thread, no pipe.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A bug.
    #[error("a thread panicked")]
    Panic,
}

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;
