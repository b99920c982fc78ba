//! Deletion of the entries that a filter describes.

use std::net::IpAddr;

use super::entry::*;
use crate::error::{Error, Result};
use crate::message::{Batch, Message};
use crate::nft::Family;
use crate::socket::Socket;

/// The connections to delete: those to a port, as the client addressed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// IPv4 ([`Family::Ip`]) or IPv6 ([`Family::Ip6`]).
    pub family: Family,
    /// `IPPROTO_UDP` or the like.
    pub protocol: u8,
    /// The port that the client sent to.
    pub port: u16,
    /// The address that the client sent to; `None` is any.
    pub destination: Option<IpAddr>,
    /// The address that replies, behind translation: the pod's; `None` is any.
    pub answers_from: Option<IpAddr>,
}

/// Deletes the entries of these connections, if there are any.
pub fn delete(socket: &mut Socket, filter: &Filter) -> Result<()> {
    match delete_at_once(socket, filter) {
        // Kernels before 6.8 delete one entry by its whole tuple, or all entries: list them first.
        Err(error) if is_refused(&error) => match delete_one_by_one(socket, filter, true) {
            Err(error) if is_refused(&error) => match delete_one_by_one(socket, filter, false) {
                // Without nf_conntrack_netlink there is no way to delete entries; they expire.
                Err(error) if is_refused(&error) => Ok(()),
                other => other,
            },
            other => other,
        },
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// Whether the kernel does not support the filter.
fn is_refused(error: &Error) -> bool {
    error.is_unsupported() || error.errno() == Some(libc::EINVAL)
}

fn delete_at_once(socket: &mut Socket, filter: &Filter) -> Result<()> {
    // Version 1 makes the kernel compare the family; it has no other meaning.
    socket.request(filter.encode(message(IPCTNL_MSG_CT_DELETE, filter.family, 1, filter.describe("delete"))))
}

fn delete_one_by_one(socket: &mut Socket, filter: &Filter, filtered: bool) -> Result<()> {
    let request = message(IPCTNL_MSG_CT_GET, filter.family, 0, filter.describe("list"));
    let request = if filtered { filter.encode(request) } else { request };
    let entries =
        socket.list(request, |frame| Entry::decode(&frame).filter(|entry| filter.matches(entry)))?;
    let mut batch = Batch::new();
    batch.extend(entries.iter().map(|entry| entry.deletion(filter.family, filter.describe("delete"))));
    send_deletions(socket, batch)
}

impl Filter {
    fn describe(&self, verb: &str) -> String {
        let to = self.destination.map(|addr| format!("{addr} ")).unwrap_or_default();
        format!(
            "{verb} the conntrack entries of connections to {to}port {} of protocol {}",
            self.port, self.protocol
        )
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

    fn matches(&self, entry: &Entry) -> bool {
        let proto = |kind| part(&entry.original, CTA_TUPLE_PROTO, kind);
        proto(CTA_PROTO_NUM).and_then(|a| a.u8()) == Some(self.protocol)
            && proto(CTA_PROTO_DST_PORT).and_then(|a| a.be16()) == Some(self.port)
            && (self.destination.is_none() || self.destination == destination(&entry.original))
            && (self.answers_from.is_none() || self.answers_from == source(&entry.reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::flows::{ports, with_flows};
    use super::*;

    type Delete = fn(&mut Socket, &Filter) -> Result<()>;

    fn filter(port: u16) -> Filter {
        let protocol = libc::IPPROTO_UDP as u8;
        Filter { family: Family::Ip, protocol, port, destination: None, answers_from: None }
    }

    fn deletes_only_matching_entries(delete: Delete) {
        with_flows(move |socket| {
            delete(socket, &filter(9)).unwrap();
            assert_eq!(ports(), [1001, 1001, 1002]);
            delete(socket, &Filter { destination: Some([127, 0, 0, 2].into()), ..filter(1001) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            delete(socket, &Filter { answers_from: Some([127, 0, 0, 8].into()), ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            delete(socket, &Filter { family: Family::Ip6, ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001, 1002]);
            delete(socket, &Filter { answers_from: Some([127, 0, 0, 9].into()), ..filter(1002) }).unwrap();
            assert_eq!(ports(), [1001]);
            delete(socket, &filter(1001)).unwrap();
            assert_eq!(ports(), []);
        });
    }

    #[test]
    fn deletes_by_the_best_supported_method() {
        deletes_only_matching_entries(delete);
    }

    #[test]
    fn deletes_by_a_filtered_list() {
        deletes_only_matching_entries(|socket, filter| delete_one_by_one(socket, filter, true));
    }

    #[test]
    fn deletes_by_a_complete_list() {
        deletes_only_matching_entries(|socket, filter| delete_one_by_one(socket, filter, false));
    }

    #[test]
    fn deletes_by_a_filtered_request_if_supported() {
        with_flows(|socket| match delete_at_once(socket, &filter(1001)) {
            Ok(()) => assert_eq!(ports(), [1002]),
            Err(error) => assert!(is_refused(&error), "{error}"),
        });
    }
}
