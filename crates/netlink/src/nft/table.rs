//! Tables, and the generation of the ruleset.

use std::borrow::Cow;
use std::fmt;

use super::abi::*;
use crate::error::{found, Error, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

/// Size of `struct nfgenmsg`: family, version, resource.
pub(super) const HEADER: usize = 4;

/// The packets that a table sees.
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
    /// Packets of one device.
    Netdev,
}

impl Family {
    /// The kernel's number (`NFPROTO_…`).
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

    pub(super) fn from_number(number: u8) -> Option<Family> {
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

/// A table, by family and name. It may or may not exist in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    /// The packets that it sees.
    pub family: Family,
    /// Its name, unique in its family.
    pub name: Cow<'static, str>,
}

impl Table {
    /// A table with a constant name.
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

/// The generation of the ruleset: it changes with every transaction of any program in this namespace.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let message = message(NFT_MSG_GETGEN, 0, 0, "read the generation of the nf_tables rules");
    socket.query(message, |frame| frame.attrs(HEADER).find(|a| a.kind == NFTA_GEN_ID)?.be32())
}

/// Whether the kernel has nf_tables.
pub fn is_supported(socket: &mut Socket) -> Result<bool> {
    match generation(socket) {
        Ok(_) => Ok(true),
        // netfilter's answers for a missing subsystem.
        Err(error) if error.is_unsupported() || error.errno() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a transaction [at a generation](super::Transaction::at_generation) failed because the rules have changed
/// since.
pub fn changed_meanwhile(error: &Error) -> bool {
    error.errno() == Some(libc::ERESTART)
}

/// Whether the table exists.
pub fn has_table(socket: &mut Socket, table: &Table) -> Result<bool> {
    let request = message(NFT_MSG_GETTABLE, 0, table.family.number(), format!("look for table {table}"))
        .string(NFTA_TABLE_NAME, &table.name);
    Ok(found(socket.query(request, |_| Some(())))?.is_some())
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

/// The group of notices about nf_tables (`NFNLGRP_NFTABLES`).
pub const GROUP: u32 = 7;

/// The table that a notice is about, and the chain, if it is about a chain or a rule. `None` for other notices and for
/// those of a new generation.
pub fn subject(frame: Frame<'_>) -> Option<(Table, Option<String>)> {
    let kind = frame.kind.checked_sub(NFNL_SUBSYS_NFTABLES << 8).filter(|kind| *kind < NFT_MSG_NEWGEN)?;
    let family = Family::from_number(*frame.body.first()?)?;
    let text = |wanted: u16| frame.attrs(HEADER).find(|a| a.kind == wanted).map(|a| a.string());
    let chain = match kind {
        NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => text(NFTA_CHAIN_NAME),
        NFT_MSG_NEWRULE | NFT_MSG_DELRULE => text(NFTA_RULE_CHAIN),
        _ => None,
    };
    // The first attribute of all kinds of notices is the table's name.
    Some((Table::new(family, text(NFTA_TABLE_NAME)?), chain))
}

/// The generation that a notice announces; `None` for notices about tables and their content. It follows the notices about
/// the changes of its transaction.
pub fn announced_generation(frame: Frame<'_>) -> Option<u32> {
    let announces = frame.kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN;
    announces.then(|| frame.attrs(HEADER).find(|a| a.kind == NFTA_GEN_ID)?.be32())?
}

/// A message of the nf_tables subsystem with its `struct nfgenmsg`.
pub(super) fn message(kind: u16, flags: u16, family: u8, doing: impl Into<String>) -> Message {
    Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, doing).raw(&[family, 0, 0, 0])
}
