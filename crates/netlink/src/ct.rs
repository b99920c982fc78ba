//! Connection tracking: forgetting connections.
//!
//! The kernel decides about address translation on the first packet of a connection and keeps to it. A client
//! that has been sending UDP to a port before a pod took that port, or after its pod has gone, would never
//! reach the new one: the old entry lives as long as packets come. So entries are deleted when port maps
//! change. Numbers are those of `linux/netfilter/nfnetlink_conntrack.h`.
//!
//! Whoever knows which connections should not be any more [lists](list) them and [forgets](forget) those.

mod connection;

use std::net::IpAddr;

use crate::attr::{self, Attr};
use crate::error::{Error, Result};
use crate::message::{Batch, Frame, Message};
use crate::nft::Family;
use crate::socket::Socket;
pub use connection::{forget, list, Connection};

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_TUPLE_MASTER: u16 = 14;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
// Which parts of a tuple the kernel compares; net/netfilter/nf_conntrack_netlink.c.
const COMPARE_SOURCE: u32 = 1 << 0;
const COMPARE_DESTINATION: u32 = 1 << 1;
const COMPARE_PROTOCOL: u32 = 1 << 3;
const COMPARE_DESTINATION_PORT: u32 = 1 << 5;

const HEADER: usize = 4;

/// Which connections to forget: those of a protocol to a port, as the client addressed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// IPv4 ([`Family::Ip`]) or IPv6 ([`Family::Ip6`]).
    pub family: Family,
    /// `IPPROTO_UDP` or the like.
    pub protocol: u8,
    /// The port that the client sent to.
    pub port: u16,
    /// The address that the client sent to; any if not given.
    pub destination: Option<IpAddr>,
    /// The address that answers: the pod's, behind translation; any if not given.
    pub answers_from: Option<IpAddr>,
}

/// Forgets the connections that the filter describes. There may be none.
pub fn delete(socket: &mut Socket, filter: &Filter) -> Result<()> {
    match delete_at_once(socket, filter) {
        // Kernels before 6.8 delete by one whole tuple, or everything: read which there are.
        Err(error) if refused(&error) => match delete_one_by_one(socket, filter, true) {
            Err(error) if refused(&error) => match delete_one_by_one(socket, filter, false) {
                // A kernel without nf_conntrack_netlink cannot be told; connections end by themselves.
                Err(error) if refused(&error) => Ok(()),
                other => other,
            },
            other => other,
        },
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// Whether the kernel did not understand the filter.
fn refused(error: &Error) -> bool {
    error.is_unsupported() || error.errno() == Some(libc::EINVAL)
}

fn delete_at_once(socket: &mut Socket, filter: &Filter) -> Result<()> {
    // The header's version, which has no other meaning, asks the kernel to look at the family too.
    socket.request(filter.encode(message(IPCTNL_MSG_CT_DELETE, filter.family, 1, filter.words("forget"))))
}

fn delete_one_by_one(socket: &mut Socket, filter: &Filter, filtered: bool) -> Result<()> {
    let asked = message(IPCTNL_MSG_CT_GET, filter.family, 0, filter.words("list"));
    let asked = if filtered { filter.encode(asked) } else { asked };
    let entries = socket.list(asked, |frame| Entry::decode(&frame).filter(|entry| entry.matches(filter)))?;
    let mut batch = Batch::new();
    batch.extend(entries.iter().map(|entry| entry.deletion(filter.family, filter.words("forget"))));
    carry_out(socket, batch)
}

/// Those that are gone already are no failure.
fn carry_out(socket: &mut Socket, deletions: Batch) -> Result<()> {
    let failures = socket.batch_each(deletions)?;
    failures.into_iter().map(|(_, error)| error).find(|error| !error.is_gone()).map_or(Ok(()), Err)
}

fn message(kind: u16, family: Family, version: u8, doing: String) -> Message {
    Message::new(NFNL_SUBSYS_CTNETLINK << 8 | kind, 0, doing).raw(&[family.number(), version, 0, 0])
}

impl Filter {
    fn words(&self, verb: &str) -> String {
        let to = self.destination.map(|addr| format!("{addr} ")).unwrap_or_default();
        format!("{verb} the connections to {to}port {} of protocol {}", self.port, self.protocol)
    }

    fn encode(&self, message: Message) -> Message {
        let to = self.destination.map_or(0, |_| COMPARE_DESTINATION);
        let original = COMPARE_PROTOCOL | COMPARE_DESTINATION_PORT | to;
        message
            .nest(CTA_TUPLE_ORIG, |m| {
                m.maybe(self.destination, |m, addr| {
                    let kind = if addr.is_ipv4() { CTA_IP_V4_DST } else { CTA_IP_V6_DST };
                    m.nest(CTA_TUPLE_IP, |m| m.ip(kind, addr))
                })
                .nest(CTA_TUPLE_PROTO, |m| {
                    m.u8(CTA_PROTO_NUM, self.protocol).be16(CTA_PROTO_DST_PORT, self.port)
                })
            })
            .maybe(self.answers_from, |m, addr| {
                let kind = if addr.is_ipv4() { CTA_IP_V4_SRC } else { CTA_IP_V6_SRC };
                m.nest(CTA_TUPLE_REPLY, |m| m.nest(CTA_TUPLE_IP, |m| m.ip(kind, addr)))
            })
            .nest(CTA_FILTER, |m| {
                m.u32(CTA_FILTER_ORIG_FLAGS, original)
                    .u32(CTA_FILTER_REPLY_FLAGS, self.answers_from.map_or(0, |_| COMPARE_SOURCE))
            })
    }
}

/// What is read of an entry: enough to compare it and to delete this one and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    original: Vec<u8>,
    reply: Vec<u8>,
    id: Option<u32>,
    zone: Option<u16>,
}

impl Entry {
    fn decode(frame: &Frame<'_>) -> Option<Entry> {
        let body = frame.body.get(HEADER..)?;
        Some(Entry {
            original: attr::find(body, CTA_TUPLE_ORIG)?.value.to_vec(),
            reply: attr::find(body, CTA_TUPLE_REPLY)?.value.to_vec(),
            id: attr::find(body, CTA_ID).and_then(|a| a.be32()),
            zone: attr::find(body, CTA_ZONE).and_then(|a| a.be16()),
        })
    }

    fn matches(&self, filter: &Filter) -> bool {
        let proto = |kind| part(&self.original, CTA_TUPLE_PROTO, kind);
        proto(CTA_PROTO_NUM).and_then(|a| a.u8()) == Some(filter.protocol)
            && proto(CTA_PROTO_DST_PORT).and_then(|a| a.be16()) == Some(filter.port)
            && (filter.destination.is_none() || filter.destination == destination(&self.original))
            && (filter.answers_from.is_none() || filter.answers_from == source(&self.reply))
    }

    fn deletion(&self, family: Family, doing: String) -> Message {
        message(IPCTNL_MSG_CT_DELETE, family, 0, doing)
            .nest(CTA_TUPLE_ORIG, |mut m| {
                attr::attrs(&self.original).for_each(|a| copy(&mut m, &a));
                m
            })
            .maybe(self.zone, |m, zone| m.be16(CTA_ZONE, zone))
            .maybe(self.id, |m, id| m.be32(CTA_ID, id))
    }
}

fn source(tuple: &[u8]) -> Option<IpAddr> {
    part(tuple, CTA_TUPLE_IP, CTA_IP_V4_SRC).or_else(|| part(tuple, CTA_TUPLE_IP, CTA_IP_V6_SRC))?.ip()
}

fn destination(tuple: &[u8]) -> Option<IpAddr> {
    part(tuple, CTA_TUPLE_IP, CTA_IP_V4_DST).or_else(|| part(tuple, CTA_TUPLE_IP, CTA_IP_V6_DST))?.ip()
}

/// An attribute two levels down in a tuple.
fn part(tuple: &[u8], outer: u16, inner: u16) -> Option<Attr<'_>> {
    attr::find(attr::find(tuple, outer)?.value, inner)
}

/// Appends a part of a tuple as it was read: address and protocol are nests, a zone is not.
fn copy(message: &mut Message, part: &Attr<'_>) {
    let nested = if matches!(part.kind, CTA_TUPLE_IP | CTA_TUPLE_PROTO) { 1 << 15 } else { 0 };
    message.push(part.kind | nested, part.value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::process::Command;

    type Way = fn(&mut Socket, &Filter) -> Result<()>;

    fn filter(port: u16) -> Filter {
        let protocol = libc::IPPROTO_UDP as u8;
        Filter { family: Family::Ip, protocol, port, destination: None, answers_from: None }
    }

    fn run(line: &str) -> String {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn ports() -> Vec<u16> {
        let port = |line: &str| line.split(" dport=").nth(1)?.split(' ').next()?.parse().ok();
        let mut ports: Vec<u16> = run("conntrack -L -p udp").lines().filter_map(port).collect();
        ports.sort_unstable();
        ports
    }

    /// A namespace with tracked UDP flows to 127.0.0.1:1001, 127.0.0.2:1001 and 127.0.0.1:1002; the last is
    /// answered by 127.0.0.9.
    pub(super) fn with_flows(test: impl FnOnce(&mut Socket) + Send + 'static) {
        assert_eq!(crate::sys::user_id(), 0, "this test needs root: it makes a network namespace");
        let inside = move || {
            crate::sys::new_network_namespace().unwrap();
            run("ip link set lo up");
            run("nft add table ip t; add chain ip t o { type nat hook output priority -100; }");
            run("nft add rule ip t o udp dport 1002 dnat to 127.0.0.9");
            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            for to in ["127.0.0.1:1001", "127.0.0.2:1001", "127.0.0.1:1002"] {
                let _ = client.send_to(b"hello", to);
            }
            assert_eq!(ports(), [1001, 1001, 1002]);
            test(&mut Socket::netfilter().unwrap());
        };
        std::thread::spawn(inside).join().unwrap();
    }

    fn forgets_what_the_filter_says_and_nothing_else(way: Way) {
        with_flows(move |socket| {
            way(socket, &filter(9)).unwrap();
            assert_eq!(ports(), [1001, 1001, 1002]);
            way(socket, &Filter { destination: Some([127, 0, 0, 2].into()), ..filter(1001) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            way(socket, &Filter { answers_from: Some([127, 0, 0, 8].into()), ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            way(socket, &Filter { family: Family::Ip6, ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            way(socket, &Filter { answers_from: Some([127, 0, 0, 9].into()), ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001]);
            way(socket, &filter(1001)).unwrap();
            assert_eq!(ports(), []);
        });
    }

    #[test]
    fn forgets_by_whatever_way_the_kernel_knows() {
        forgets_what_the_filter_says_and_nothing_else(delete);
    }

    #[test]
    fn forgets_by_a_filtered_list() {
        forgets_what_the_filter_says_and_nothing_else(|socket, filter| {
            delete_one_by_one(socket, filter, true)
        });
    }

    #[test]
    fn forgets_by_a_whole_list() {
        forgets_what_the_filter_says_and_nothing_else(|socket, filter| {
            delete_one_by_one(socket, filter, false)
        });
    }

    #[test]
    fn forgets_by_a_filtered_delete_where_the_kernel_can() {
        with_flows(|socket| match delete_at_once(socket, &filter(1001)) {
            Ok(()) => assert_eq!(ports(), [1002]),
            Err(error) => assert!(refused(&error), "{error}"),
        });
    }
}
