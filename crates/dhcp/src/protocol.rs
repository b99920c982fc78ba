//! DHCPv4 and DHCPv6 behind one interface.

use std::time::Duration;

use podwire_ip::IpFamily;

use crate::message::{MessageKind, Outgoing, Received};
use crate::retransmit::Backoff;
use crate::{v4, v6};

/// The protocol of a lease, with the codec of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// DHCPv4.
    V4(v4::Codec),
    /// DHCPv6.
    V6(v6::Codec),
}

impl Protocol {
    /// Encodes a message.
    pub fn encode(&self, outgoing: &Outgoing<'_>) -> Vec<u8> {
        match self {
            Protocol::V4(codec) => codec.encode(outgoing),
            Protocol::V6(codec) => codec.encode(outgoing),
        }
    }

    /// Decodes a server's message; `None` if it is not for this client and transaction.
    pub fn decode(&self, message: &[u8], xid: u32) -> Option<Received> {
        match self {
            Protocol::V4(codec) => codec.decode(message, xid),
            Protocol::V6(codec) => codec.decode(message, xid),
        }
    }

    /// The retransmission parameters of a message. RFC 2131 recommends 4 s after the first DISCOVER, for the Ethernet of its
    /// time, and at least 60 s for renewals; RFC 8415 section 7.6 has a table.
    pub fn backoff(&self, kind: MessageKind, max: Duration) -> Backoff {
        let seconds = Duration::from_secs;
        let (first, limit, times) = match (self, kind) {
            (Protocol::V4(_), MessageKind::Discover) => (1, 3600, u32::MAX),
            (Protocol::V4(_), MessageKind::Request) => (1, 3600, 4),
            (Protocol::V4(_), _) => (60, 3600, u32::MAX),
            (Protocol::V6(_), MessageKind::Discover) => (1, 3600, u32::MAX),
            (Protocol::V6(_), MessageKind::Request) => (1, 30, 10),
            (Protocol::V6(_), _) => (10, 600, u32::MAX),
        };
        let max = match kind {
            MessageKind::Discover | MessageKind::Request => max.min(seconds(limit)),
            _ => seconds(limit),
        };
        Backoff { initial: seconds(first), max, tries: times }
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        match self {
            Protocol::V4(_) => IpFamily::V4,
            Protocol::V6(_) => IpFamily::V6,
        }
    }
}
