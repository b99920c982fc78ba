//! conntrack entries as netlink messages.

use std::net::IpAddr;

use crate::attr::{self, Attr};
use crate::error::Result;
use crate::message::{Batch, Frame, Message};
use crate::nft::Family;
use crate::socket::Socket;

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
pub(super) const IPCTNL_MSG_CT_GET: u16 = 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u16 = 2;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_ID: u16 = 12;
pub(super) const CTA_TUPLE_MASTER: u16 = 14;
pub(super) const CTA_ZONE: u16 = 18;
pub(super) const CTA_FILTER: u16 = 25;
pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_IP_V4_SRC: u16 = 1;
pub(super) const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
pub(super) const CTA_IP_V6_DST: u16 = 4;
pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(super) const CTA_PROTO_DST_PORT: u16 = 3;
pub(super) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
pub(super) const CTA_FILTER_REPLY_FLAGS: u16 = 2;
// The parts of a tuple that the kernel compares; net/netfilter/nf_conntrack_netlink.c.
pub(super) const COMPARE_SOURCE: u32 = 1 << 0;
pub(super) const COMPARE_DESTINATION: u32 = 1 << 1;
pub(super) const COMPARE_PROTOCOL: u32 = 1 << 3;
pub(super) const COMPARE_DESTINATION_PORT: u32 = 1 << 5;

pub(super) const HEADER: usize = 4;

/// Sends deletions. Entries that are already gone are no failure.
pub(super) fn send_deletions(socket: &mut Socket, deletions: Batch) -> Result<()> {
    let failures = socket.batch_each(deletions)?;
    failures.into_iter().map(|(_, error)| error).find(|error| !error.is_gone()).map_or(Ok(()), Err)
}

/// A message of the conntrack subsystem.
pub(super) fn message(kind: u16, family: Family, version: u8, doing: String) -> Message {
    Message::new(NFNL_SUBSYS_CTNETLINK << 8 | kind, 0, doing).raw(&[family.number(), version, 0, 0])
}

/// The parts of an entry that identify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub original: Vec<u8>,
    pub reply: Vec<u8>,
    id: Option<u32>,
    zone: Option<u16>,
}

impl Entry {
    pub fn decode(frame: &Frame<'_>) -> Option<Entry> {
        let body = frame.body.get(HEADER..)?;
        Some(Entry {
            original: attr::find(body, CTA_TUPLE_ORIG)?.value.to_vec(),
            reply: attr::find(body, CTA_TUPLE_REPLY)?.value.to_vec(),
            id: attr::find(body, CTA_ID).and_then(|a| a.be32()),
            zone: attr::find(body, CTA_ZONE).and_then(|a| a.be16()),
        })
    }

    /// A message that deletes this entry and no other.
    pub fn deletion(&self, family: Family, doing: String) -> Message {
        message(IPCTNL_MSG_CT_DELETE, family, 0, doing)
            .nest(CTA_TUPLE_ORIG, |mut m| {
                attr::attrs(&self.original).for_each(|a| copy(&mut m, &a));
                m
            })
            .maybe(self.zone, |m, zone| m.be16(CTA_ZONE, zone))
            .maybe(self.id, |m, id| m.be32(CTA_ID, id))
    }
}

pub(super) fn source(tuple: &[u8]) -> Option<IpAddr> {
    part(tuple, CTA_TUPLE_IP, CTA_IP_V4_SRC).or_else(|| part(tuple, CTA_TUPLE_IP, CTA_IP_V6_SRC))?.ip()
}

pub(super) fn destination(tuple: &[u8]) -> Option<IpAddr> {
    part(tuple, CTA_TUPLE_IP, CTA_IP_V4_DST).or_else(|| part(tuple, CTA_TUPLE_IP, CTA_IP_V6_DST))?.ip()
}

/// An attribute two levels down in a tuple.
pub(super) fn part(tuple: &[u8], outer: u16, inner: u16) -> Option<Attr<'_>> {
    attr::find(attr::find(tuple, outer)?.value, inner)
}

/// Appends a part of a tuple as it was read. Address and protocol are nested attributes, a zone is not.
fn copy(message: &mut Message, part: &Attr<'_>) {
    let nested = if matches!(part.kind, CTA_TUPLE_IP | CTA_TUPLE_PROTO) { 1 << 15 } else { 0 };
    message.push(part.kind | nested, part.value);
}
