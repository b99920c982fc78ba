//! The messages of a lease's life cycle, the same for both protocols.

use std::time::Duration;

use crate::grant::{Grant, Server};

/// The kind of a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Looks for a server (DISCOVER, SOLICIT).
    Discover,
    /// Takes an offer (REQUEST).
    Request,
    /// Asks the lease's server for more time (REQUEST, RENEW).
    Renew,
    /// Asks any server for more time (REQUEST, REBIND).
    Rebind,
    /// Gives the lease back (RELEASE).
    Release,
}

/// A message of the client.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its kind.
    pub kind: MessageKind,
    /// The transaction id.
    pub xid: u32,
    /// How long the client has been trying.
    pub elapsed: Duration,
    /// The offer that is taken, or the lease.
    pub grant: Option<&'a Grant>,
}

/// A message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// An offer.
    Offer(Grant),
    /// The lease is granted or renewed.
    Grant(Grant),
    /// The lease is refused.
    Refusal {
        /// The server.
        server: Server,
        /// The server's text.
        reason: String,
    },
    /// A message that cannot be used, and why.
    Invalid(String),
}
