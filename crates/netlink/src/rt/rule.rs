//! Policy routing rules, which select a routing table (`linux/fib_rules.h`).

use std::net::IpAddr;

use podwire_ip::IpFamily;

use super::address_family;
use crate::error::Result;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;

/// A rule that selects a table by the source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source address and the length of its prefix.
    pub source: (IpAddr, u8),
    /// Table number.
    pub table: u32,
    /// The priority; `None` lets the kernel choose.
    pub priority: Option<u32>,
}

impl Rule {
    fn encode(&self, kind: u16, flags: u16, verb: &str) -> Message {
        let (ip, prefix) = self.source;
        let small = if self.table < 256 { self.table as u8 } else { libc::RT_TABLE_COMPAT };
        let head = [address_family(IpFamily::of(ip)), 0, prefix, 0, small, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        Message::new(kind, flags, format!("{verb} rule from {ip}/{prefix} to table {}", self.table))
            .raw(&head)
            .ip(FRA_SRC, ip)
            .u32(FRA_TABLE, self.table)
            .maybe(self.priority, |m, priority| m.u32(FRA_PRIORITY, priority))
    }

    /// A message that adds the rule.
    pub fn add(&self) -> Message {
        self.encode(libc::RTM_NEWRULE, super::CREATE, "add")
    }

    /// A message that deletes the rule.
    pub fn delete(&self) -> Message {
        self.encode(libc::RTM_DELRULE, 0, "delete")
    }

    /// Reads a rule with a source from `RTM_NEWRULE`; `None` for other rules.
    fn read(frame: Frame<'_>) -> Option<Rule> {
        if frame.kind != libc::RTM_NEWRULE {
            return None;
        }
        let head = frame.body.get(..12)?;
        let (mut source, mut table, mut priority) = (None, u32::from(head[4]), None);
        for attr in frame.attrs(12) {
            match attr.kind {
                FRA_SRC => source = attr.ip(),
                FRA_TABLE => table = attr.u32()?,
                FRA_PRIORITY => priority = attr.u32(),
                _ => {}
            }
        }
        Some(Rule { source: (source?, head[2]), table, priority })
    }
}

/// The rules that have a source, of both families.
pub fn list(route: &mut Socket) -> Result<Vec<Rule>> {
    dump(route, Rule::read)
}

/// The tables that rules select, of both families.
pub fn tables(route: &mut Socket) -> Result<Vec<u32>> {
    dump(route, |frame| {
        let small = u32::from(*frame.body.get(4)?);
        Some(frame.attrs(12).find(|attr| attr.kind == FRA_TABLE).and_then(|attr| attr.u32()).unwrap_or(small))
    })
}

/// Whether the kernel supports policy routing. Every namespace starts with some rules.
pub fn is_supported(route: &mut Socket) -> Result<bool> {
    Ok(!tables(route)?.is_empty())
}

fn dump<T>(route: &mut Socket, read: impl Fn(Frame<'_>) -> Option<T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut head = [0; 12];
        head[0] = family as u8;
        let message = Message::new(libc::RTM_GETRULE, 0, "list rules").raw(&head);
        match route.list(message, &read) {
            // A kernel without policy routing, or without IPv6, has none.
            Err(error) if error.is_unsupported() => {}
            rows => all.extend(rows?),
        }
    }
    Ok(all)
}
