//! nf_tables: the kernel's firewall, changed by transactions.
//!
//! A *table* holds *chains* of *rules* and *sets*; a base chain hangs on a hook of the packet's way. Rules
//! look addresses, ports and devices up in sets and maps, whose elements are found in constant time however
//! many there are. A [`Transaction`] gathers changes and commits them as one: all happen, or none, and a
//! packet sees the old rules or the new ones and never a mixture.
//!
//! ```no_run
//! use podwire_netlink::nft::{self, Element, Family, Set, Table, Transaction, Type, Value};
//! let mut nft = podwire_netlink::Socket::netfilter()?;
//! let table = Table::named(Family::Inet, "example");
//! let mut change = Transaction::new();
//! change.add_table(&table);
//! change.add_set(&table, &Set::of("pods", &[Type::Ipv4]));
//! change.create_element(&table, "pods", &Element::key(Value::ip([10, 1, 0, 5].into())).comment("web"));
//! change.commit(&mut nft)?;
//! assert!(nft::get_element(&mut nft, &table, "pods", &Value::ip([10, 1, 0, 5].into()))?.is_some());
//! # Ok::<(), podwire_netlink::Error>(())
//! ```
//!
//! A socket that deleted something should be kept: closing it soon waits for an RCU grace period.

mod abi;
mod absence;
mod chain;
mod element;
pub mod expr;
mod rule;
mod set;
mod transaction;
mod userdata;
mod value;

use std::borrow::Cow;
use std::fmt;

pub use chain::{get_chain, list_chains, Base, ChainInfo, ChainKind, Hook, Policy};
pub use element::{get_element, list_counts, list_elements, Count, Data, Element};
pub use rule::{list_rules, Field, Rule, RuleInfo};
pub use set::{has_set, list_sets, Set, Type};
pub use transaction::Transaction;
pub use userdata::MAX_COMMENT;
pub use value::{Value, Verdict};

use crate::error::{found, Error, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;
use abi::*;

/// Size of `struct nfgenmsg`: family, version, resource.
pub(crate) const HEADER: usize = 4;

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// Frames that a bridge forwards.
    Bridge,
    /// All that one device receives or sends.
    Netdev,
}

impl Family {
    /// The kernel's number of it (`NFPROTO_…`).
    pub const fn number(self) -> u8 {
        match self {
            Family::Inet => NFPROTO_INET,
            Family::Ip => NFPROTO_IPV4,
            Family::Ip6 => NFPROTO_IPV6,
            Family::Arp => NFPROTO_ARP,
            Family::Bridge => NFPROTO_BRIDGE,
            Family::Netdev => NFPROTO_NETDEV,
        }
    }

    fn from_number(number: u8) -> Option<Family> {
        use Family::*;
        [Inet, Ip, Ip6, Arp, Bridge, Netdev].into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        })
    }
}

/// A table: a family and a name. It says where something is; whether it exists is the kernel's to tell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    /// Its name, one of its kind in its family.
    pub name: Cow<'static, str>,
}

impl Table {
    /// A table whose name is known when the program is written.
    pub const fn named(family: Family, name: &'static str) -> Table {
        Table { family, name: Cow::Borrowed(name) }
    }

    /// A table with any name.
    pub fn new(family: Family, name: impl Into<String>) -> Table {
        Table { family, name: Cow::Owned(name.into()) }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// The number of the ruleset's state: it changes with every transaction of anybody in this namespace.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let message = message(NFT_MSG_GETGEN, 0, 0, "read the generation of the nf_tables rules");
    socket.query(message, |frame| frame.attrs(HEADER).find(|a| a.kind == NFTA_GEN_ID)?.be32())
}

/// Whether the kernel has nf_tables at all.
pub fn is_supported(socket: &mut Socket) -> Result<bool> {
    match generation(socket) {
        Ok(_) => Ok(true),
        // What netfilter says to a question for a part that it does not have.
        Err(error) if error.is_unsupported() || error.errno() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a transaction [at a generation](Transaction::at_generation) failed because the rules have changed
/// since.
pub fn changed_meanwhile(error: &Error) -> bool {
    error.errno() == Some(libc::ERESTART)
}

/// Whether the table exists.
pub fn has_table(socket: &mut Socket, table: &Table) -> Result<bool> {
    let asked = message(NFT_MSG_GETTABLE, 0, table.family.number(), format!("look for table {table}"))
        .string(NFTA_TABLE_NAME, &table.name);
    Ok(found(socket.query(asked, |_| Some(())))?.is_some())
}

/// All tables, of one family or of all.
pub fn list_tables(socket: &mut Socket, family: Option<Family>) -> Result<Vec<Table>> {
    let number = family.map_or(0, Family::number);
    socket.list(message(NFT_MSG_GETTABLE, 0, number, "list the tables of nf_tables"), |frame| {
        let family = Family::from_number(*frame.body.first()?)?;
        let name = frame.attrs(HEADER).find(|a| a.kind == NFTA_TABLE_NAME)?.string();
        Some(Table::new(family, name))
    })
}

/// Group of notices about the rules of nf_tables (`NFNLGRP_NFTABLES`).
pub const GROUP: u32 = 7;

/// The table that a notice is about, and the chain, if it is about a chain or a rule of one. `None` for a notice about
/// something else, or of the ruleset's generation.
pub fn subject(frame: Frame<'_>) -> Option<(Table, Option<String>)> {
    let kind = frame.kind.checked_sub(NFNL_SUBSYS_NFTABLES << 8).filter(|kind| *kind < NFT_MSG_NEWGEN)?;
    let family = Family::from_number(*frame.body.first()?)?;
    let text = |wanted: u16| frame.attrs(HEADER).find(|a| a.kind == wanted).map(|a| a.string());
    let chain = match kind {
        NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => text(NFTA_CHAIN_NAME),
        NFT_MSG_NEWRULE | NFT_MSG_DELRULE => text(NFTA_RULE_CHAIN),
        _ => None,
    };
    // Whatever it is about, the first attribute names the table.
    Some((Table::new(family, text(NFTA_TABLE_NAME)?), chain))
}

/// A message of the nf_tables subsystem with its `struct nfgenmsg`.
fn message(kind: u16, flags: u16, family: u8, doing: impl Into<String>) -> Message {
    Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, doing).raw(&[family, 0, 0, 0])
}
