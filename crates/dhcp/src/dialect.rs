//! The two protocols behind one face: the words of a lease's life are the same in both.

use std::time::Duration;

use crate::grant::Grant;
use crate::pace::Pace;
use crate::{v4, v6};

/// What a client can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Who has an address for me? (DISCOVER, SOLICIT)
    Discover,
    /// I take that one. (REQUEST)
    Request,
    /// More time, please, says the holder to its server. (REQUEST, RENEW)
    Renew,
    /// More time, please, says the holder to any server. (REQUEST, REBIND)
    Rebind,
    /// I do not need it any more. (RELEASE)
    Release,
}

/// A word, and what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Saying<'a> {
    /// The word.
    pub word: Word,
    /// The number of the conversation.
    pub xid: u32,
    /// How long the client has been trying.
    pub elapsed: Duration,
    /// The offer that is taken, or what is held.
    pub grant: Option<&'a Grant>,
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// You can have this.
    Offer(Grant),
    /// You have this.
    Grant(Grant),
    /// You cannot have it.
    Refusal {
        /// Who says so.
        server: crate::grant::Server,
        /// In its own words.
        why: String,
    },
    /// Something that cannot be used, and why not.
    Useless(String),
}

/// A pod's interface as a client of one of the protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// DHCPv4.
    V4(v4::Client),
    /// DHCPv6.
    V6(v6::Client),
}

impl Dialect {
    /// The message for a word.
    pub fn say(&self, saying: &Saying<'_>) -> Vec<u8> {
        match self {
            Dialect::V4(client) => client.say(saying),
            Dialect::V6(client) => client.say(saying),
        }
    }

    /// What a message says to this client in conversation `xid`.
    pub fn understand(&self, message: &[u8], xid: u32) -> Option<Heard> {
        match self {
            Dialect::V4(client) => client.understand(message, xid),
            Dialect::V6(client) => client.understand(message, xid),
        }
    }

    /// How often a word is said. RFC 2131 speaks of 4 s after the first DISCOVER for the Ethernet of its time, and of 60 s
    /// at least for renewals; RFC 8415 section 7.6 has a table.
    pub fn pace(&self, word: Word, longest: Duration) -> Pace {
        let seconds = Duration::from_secs;
        let (first, limit, times) = match (self, word) {
            (Dialect::V4(_), Word::Discover) => (1, 3600, u32::MAX),
            (Dialect::V4(_), Word::Request) => (1, 3600, 4),
            (Dialect::V4(_), _) => (60, 3600, u32::MAX),
            (Dialect::V6(_), Word::Discover) => (1, 3600, u32::MAX),
            (Dialect::V6(_), Word::Request) => (1, 30, 10),
            (Dialect::V6(_), _) => (10, 600, u32::MAX),
        };
        let longest = match word {
            Word::Discover | Word::Request => longest.min(seconds(limit)),
            _ => seconds(limit),
        };
        Pace { first: seconds(first), longest, times }
    }

    /// Whether it is DHCPv4.
    pub fn is_v4(&self) -> bool {
        matches!(self, Dialect::V4(_))
    }
}
