//! Deletion of the entries that a filter describes.

use std::net::IpAddr;

use super::entry::*;
use crate::error::{Error, Result};
use crate::message::{Batch, Message};
use crate::nft::Family;
use crate::socket::Socket;

/// The connections to delete. `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// IPv4 ([`Family::Ip`]) or IPv6 ([`Family::Ip6`]).
    pub family: Family,
    /// The protocol (`IPPROTO_UDP` or the like) and the port that the client sent to.
    pub service: Option<(u8, u16)>,
    /// The client's address.
    pub source: Option<IpAddr>,
    /// The address that the client sent to.
    pub destination: Option<IpAddr>,
    /// The address that replies, behind translation: the pod's.
    pub answers_from: Option<IpAddr>,
    /// The address that replies are sent to, behind translation.
    pub answers_to: Option<IpAddr>,
}

/// Deletes all entries of these addresses, so that the next owner of an address inherits no connection. The kernel walks
/// its whole table four times for each address: an attachment must not wait for that in the usual case.
pub fn delete_of_addresses(socket: &mut Socket, addresses: &[IpAddr]) -> Result<()> {
    let filters: Vec<Filter> = addresses.iter().flat_map(|ip| Filter::of_address(*ip)).collect();
    let mut batch = Batch::new();
    batch.extend(filters.iter().map(Filter::deletion));
    for (at, error) in socket.batch_each(batch)? {
        after_refusal(socket, &filters[at], error)?;
    }
    Ok(())
}

/// Deletes the entries of these connections, if there are any.
pub fn delete(socket: &mut Socket, filter: &Filter) -> Result<()> {
    match delete_at_once(socket, filter) {
        Err(error) => after_refusal(socket, filter, error),
        Ok(()) => Ok(()),
    }
}

/// Deletes the entries in another way if the kernel does not support deletion by a filter.
fn after_refusal(socket: &mut Socket, filter: &Filter, error: Error) -> Result<()> {
    match error {
        // Kernels before 6.8 delete one entry by its whole tuple, or all entries: list them first.
        error if is_refused(&error) => match delete_one_by_one(socket, filter, true) {
            Err(error) if is_refused(&error) => match delete_one_by_one(socket, filter, false) {
                // Without nf_conntrack_netlink there is no way to delete entries; they expire.
                Err(error) if is_refused(&error) => Ok(()),
                other => other,
            },
            other => other,
        },
        error if error.is_gone() => Ok(()),
        error => Err(error),
    }
}

/// Whether the kernel does not support the filter.
fn is_refused(error: &Error) -> bool {
    error.is_unsupported() || error.errno() == Some(libc::EINVAL)
}

fn delete_at_once(socket: &mut Socket, filter: &Filter) -> Result<()> {
    socket.request(filter.deletion())
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
    /// The filters that together match every entry of an address.
    fn of_address(ip: IpAddr) -> [Filter; 4] {
        let family = if ip.is_ipv4() { Family::Ip } else { Family::Ip6 };
        let any = Filter {
            family,
            service: None,
            source: None,
            destination: None,
            answers_from: None,
            answers_to: None,
        };
        let ip = Some(ip);
        [
            Filter { source: ip, ..any },
            Filter { destination: ip, ..any },
            Filter { answers_from: ip, ..any },
            Filter { answers_to: ip, ..any },
        ]
    }

    fn describe(&self, verb: &str) -> String {
        let ends = [
            ("from", self.source),
            ("to", self.destination),
            ("answered from", self.answers_from),
            ("answered to", self.answers_to),
        ];
        let ends: String =
            ends.iter().filter_map(|(what, ip)| ip.map(|ip| format!(" {what} {ip}"))).collect();
        let service = self.service.map(|(protocol, port)| format!(" of protocol {protocol} to port {port}"));
        format!("{verb} the conntrack entries of connections{ends}{}", service.unwrap_or_default())
    }

    /// A message that deletes the entries.
    fn deletion(&self) -> Message {
        // Version 1 makes the kernel compare the family; it has no other meaning.
        self.encode(message(IPCTNL_MSG_CT_DELETE, self.family, 1, self.describe("delete")))
    }

    fn encode(&self, message: Message) -> Message {
        let service = self.service.map_or(0, |_| COMPARE_PROTOCOL | COMPARE_DESTINATION_PORT);
        let original = service | compare(self.source, self.destination);
        let reply = compare(self.answers_from, self.answers_to);
        let message = match original {
            0 => message,
            _ => message.nest(CTA_TUPLE_ORIG, |m| {
                addresses(m, self.source, self.destination).maybe(self.service, |m, (protocol, port)| {
                    m.nest(CTA_TUPLE_PROTO, |m| m.u8(CTA_PROTO_NUM, protocol).be16(CTA_PROTO_DST_PORT, port))
                })
            }),
        };
        let message = match reply {
            0 => message,
            _ => message.nest(CTA_TUPLE_REPLY, |m| addresses(m, self.answers_from, self.answers_to)),
        };
        message
            .nest(CTA_FILTER, |m| m.u32(CTA_FILTER_ORIG_FLAGS, original).u32(CTA_FILTER_REPLY_FLAGS, reply))
    }

    fn matches(&self, entry: &Entry) -> bool {
        let proto = |kind| part(&entry.original, CTA_TUPLE_PROTO, kind);
        let has_service = |(protocol, port)| {
            proto(CTA_PROTO_NUM).and_then(|a| a.u8()) == Some(protocol)
                && proto(CTA_PROTO_DST_PORT).and_then(|a| a.be16()) == Some(port)
        };
        let has = |wanted: Option<IpAddr>, found: Option<IpAddr>| wanted.is_none() || wanted == found;
        self.service.is_none_or(has_service)
            && has(self.source, source(&entry.original))
            && has(self.destination, destination(&entry.original))
            && has(self.answers_from, source(&entry.reply))
            && has(self.answers_to, destination(&entry.reply))
    }
}

/// The parts of a tuple that the kernel compares.
fn compare(source: Option<IpAddr>, destination: Option<IpAddr>) -> u32 {
    source.map_or(0, |_| COMPARE_SOURCE) | destination.map_or(0, |_| COMPARE_DESTINATION)
}

/// Appends the addresses of a tuple.
fn addresses(message: Message, source: Option<IpAddr>, destination: Option<IpAddr>) -> Message {
    if source.or(destination).is_none() {
        return message;
    }
    let append =
        |m: Message, addr: IpAddr, v4: u16, v6: u16| m.ip(if addr.is_ipv4() { v4 } else { v6 }, addr);
    message.nest(CTA_TUPLE_IP, |m| {
        m.maybe(source, |m, addr| append(m, addr, CTA_IP_V4_SRC, CTA_IP_V6_SRC))
            .maybe(destination, |m, addr| append(m, addr, CTA_IP_V4_DST, CTA_IP_V6_DST))
    })
}

#[cfg(test)]
mod tests {
    use super::super::flows::{add, ports, with_flows};
    use super::*;

    type Delete = fn(&mut Socket, &Filter) -> Result<()>;

    fn filter(port: u16) -> Filter {
        let service = Some((libc::IPPROTO_UDP as u8, port));
        let (source, destination, answers_from, answers_to) = (None, None, None, None);
        Filter { family: Family::Ip, service, source, destination, answers_from, answers_to }
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

    /// With the clients of [`with_flows`]: 127.0.0.1 is source, destination and both ends of replies, 127.0.0.9 only
    /// replies, and 127.0.0.2 is a destination that replies.
    fn deletes_all_entries_of_an_address(delete: fn(&mut Socket, &[IpAddr]) -> Result<()>) {
        for (addresses, left) in [
            (&["127.0.0.3", "fd00::1"][..], &[1001, 1001, 1002][..]),
            (&["127.0.0.2"], &[1001, 1002]),
            (&["127.0.0.9", "fd00::1"], &[1001, 1001]),
            (&["127.0.0.2", "127.0.0.9"], &[1001]),
            (&["127.0.0.1"], &[]),
        ] {
            with_flows(move |socket| {
                let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
                delete(socket, &addresses).unwrap();
                assert_eq!(ports(), left, "{addresses:?}");
            });
        }
    }

    fn for_each(addresses: &[IpAddr], delete: &mut dyn FnMut(&Filter) -> Result<()>) -> Result<()> {
        addresses.iter().flat_map(|ip| Filter::of_address(*ip)).try_for_each(|filter| delete(&filter))
    }

    #[test]
    fn deletes_entries_of_addresses_by_the_best_supported_method() {
        deletes_all_entries_of_an_address(delete_of_addresses);
    }

    #[test]
    fn deletes_entries_of_addresses_by_filtered_lists() {
        deletes_all_entries_of_an_address(|socket, all| {
            for_each(all, &mut |filter| delete_one_by_one(socket, filter, true))
        });
    }

    #[test]
    fn deletes_entries_of_addresses_by_complete_lists() {
        deletes_all_entries_of_an_address(|socket, all| {
            for_each(all, &mut |filter| delete_one_by_one(socket, filter, false))
        });
    }

    #[test]
    fn the_entries_of_an_address_are_deleted_among_100_000() {
        with_flows(|socket| {
            let count = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
            let ips: [IpAddr; 2] = ["10.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
            add(socket, 100_000);
            let before: u32 = count().trim().parse().unwrap();
            let begin = std::time::Instant::now();
            delete_of_addresses(socket, &ips).unwrap();
            println!("two addresses among 100,000 flows: {:?}", begin.elapsed());
            assert_eq!(count().trim(), (before - 1).to_string());
        });
    }
}
