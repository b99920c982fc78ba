//! Netlink messages from the kernel. The parsers read them from a socket pair whose other end the fuzzer writes to.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{self, Family, Table, Transaction, Value};
use podwire_netlink::rt::{address, link, neighbour, route, rule, tc};
use podwire_netlink::{attr, ct, genl, wireguard, Batch, Frame, Frames, Message, Socket};

/// `struct nlmsghdr` (linux/netlink.h).
const HEADER: usize = 16;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// The sequence number of a new socket's first request.
const FIRST_SEQUENCE: u32 = 1;
/// A socket pair queues at most this many datagrams.
const MAX_DATAGRAMS: usize = 8;

const TABLE: Table = Table::named(Family::Inet, "podwire_masq");

/// Parses the bytes unchanged, and as the response to each request of the project.
pub fn run(bytes: &[u8]) {
    for frame in Frames::new(bytes) {
        read(frame);
    }
    attributes(bytes, 0);
    let valid = response(bytes);
    for (name, request) in REQUESTS {
        send(*request, &valid);
        if RAW.contains(name) {
            send(*request, &[bytes.to_vec()]);
        }
    }
}

/// Sends a request to a socket that already has this response queued.
fn send(request: Request, response: &[Vec<u8>]) {
    let (here, kernel) = UnixDatagram::pair().expect("a pair of sockets");
    for datagram in response.iter().take(MAX_DATAGRAMS) {
        let _ = kernel.send(datagram);
    }
    // When the response is shorter than the request expects, reading fails instead of waiting.
    here.set_nonblocking(true).expect("a non-blocking socket");
    request(&mut Socket::from(OwnedFd::from(here)));
}

type Request = fn(&mut Socket);

/// One request for each function of [`Socket`] that receives: these also get the raw bytes. The other requests differ
/// only in what they do with a message that was accepted.
const RAW: [&str; 6] = ["links", "a link", "a change", "changes", "a transaction", "notices"];

/// Every kind of request that the project sends to the kernel.
const REQUESTS: &[(&str, Request)] = &[
    ("links", |s| drop(link::list(s))),
    ("a link", |s| drop(link::by_name(s, "eth0"))),
    ("addresses", |s| drop(address::list(s, 1))),
    ("routes", |s| drop(route::list(s).map(|all| all.iter().for_each(|route| drop(route.replace()))))),
    ("a route", |s| drop(route::lookup(s, IpAddr::from([10, 7, 0, 1])))),
    ("the best route", |s| drop(route::get(s, IpAddr::from([10, 7, 0, 1])))),
    ("routes of a table", |s| drop(route::list_table(s, IpFamily::V6, route::MAIN))),
    ("neighbours", |s| {
        for one in neighbour::list(s, 2, IpFamily::V4).unwrap_or_default() {
            drop(one.delete(neighbour::Table::Addresses));
        }
    }),
    ("forwarding entries", |s| drop(neighbour::forwarding(s, 2))),
    ("a family", |s| drop(genl::family(s, "wireguard"))),
    ("rules", |s| drop(rule::list(s).map(|all| all.iter().for_each(|rule| drop(rule.delete()))))),
    ("tables of rules", |s| drop(rule::tables(s))),
    ("queues", |s| {
        for discipline in tc::list(s, 2).unwrap_or_default() {
            discipline.bucket.inspect(|bucket| drop((bucket.as_reported(), bucket.set_on(2, "eth0"))));
        }
    }),
    ("redirects", |s| drop(tc::redirects(s, 2))),
    ("generation", |s| drop(nft::generation(s))),
    ("tables", |s| drop(nft::list_tables(s, None))),
    ("chains", |s| drop(nft::list_chains(s, None))),
    ("a chain", |s| drop(nft::get_chain(s, &TABLE, "postrouting"))),
    ("firewall rules", |s| {
        for rule in nft::list_rules(s, &TABLE, "postrouting").unwrap_or_default() {
            let _ = (rule.verdicts().count(), rule.jumps_to("x"), rule.compares_with(&[10, 7, 0, 5]));
        }
    }),
    ("sets", |s| drop(nft::list_sets(s, &TABLE))),
    ("elements", |s| {
        for element in nft::list_elements(s, &TABLE, "net4").unwrap_or_default() {
            let mut change = Transaction::new();
            change.delete_element(&TABLE, "net4", &element);
        }
    }),
    ("an element", |s| drop(nft::get_element(s, &TABLE, "net4", &Value::ip(IpAddr::from([10, 7, 0, 5]))))),
    ("connections", |s| {
        let filter = ct::Filter {
            family: Family::Ip,
            service: Some((17, 53)),
            source: None,
            destination: None,
            answers_from: None,
            answers_to: None,
        };
        let _ = ct::delete(s, &filter);
    }),
    ("a change", |s| drop(s.request(link::change(1, "change")).map_err(|error| error.to_string()))),
    ("changes", |s| {
        let mut batch = Batch::new();
        batch.extend([link::change(1, "one"), link::change(2, "two")]);
        let _ = s.batch(batch);
    }),
    ("a transaction", |s| {
        let mut change = Transaction::new();
        change.add_table(&TABLE);
        let _ = change.commit(s);
    }),
    ("notices", |s| {
        drop(s.notice(Duration::ZERO, |frame| link::Link::read(frame).filter(|link| link.index == 0)))
    }),
];

fn read(frame: Frame<'_>) {
    let _ = link::Link::read(frame).map(|link| (link.mac_text(), link.is_up(), link::delete(&link)));
    let _ = address::Address::read(frame).map(|address| (address.is_tentative(), address.is_duplicate()));
    let _ = neighbour::Neighbour::read(frame).map(|one| one.replace(neighbour::Table::Forwarding));
    let _ = (neighbour::link_of(frame), nft::subject(frame));
    let mut device = wireguard::Device::default();
    device.absorb(frame);
    for header in [0, 4, 8, 12, 16, 20] {
        let _ = frame.attrs(header).count();
    }
}

/// Attributes are nested. Each is read as every type.
fn attributes(bytes: &[u8], depth: usize) {
    for one in attr::attrs(bytes).take(100) {
        let _ = (
            one.u8(),
            one.u16(),
            one.u32(),
            one.u64(),
            one.be16(),
            one.be32(),
            one.be64(),
            one.string(),
            one.ip(),
        );
        let copy = Message::new(0, 0, "copy").bytes(one.kind, one.value).into_bytes();
        if one.value.len() < usize::from(u16::MAX) - 8 {
            let back = attr::attrs(&copy[HEADER..]).next().expect("a written attribute parses");
            assert_eq!((back.kind, back.value), (one.kind, one.value));
        }
        if depth < 8 {
            attributes(one.value, depth + 1);
        }
    }
}

/// The same messages as the response to a first request, with lengths that fit the buffer; then NLMSG_DONE.
fn response(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut datagram = Vec::new();
    let mut rest = bytes;
    while let Some(head) = rest.get(..HEADER) {
        let stated = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let length = stated.clamp(HEADER, rest.len());
        // A dump with this flag is inconsistent, and would be requested five times.
        let flags = u16::from_ne_bytes([head[6], head[7]]) & !NLM_F_DUMP_INTR;
        datagram.extend_from_slice(&(length as u32).to_ne_bytes());
        datagram.extend_from_slice(&head[4..6]);
        datagram.extend_from_slice(&flags.to_ne_bytes());
        datagram.extend_from_slice(&FIRST_SEQUENCE.to_ne_bytes());
        datagram.extend_from_slice(&head[12..16]);
        datagram.extend_from_slice(&rest[HEADER..length]);
        datagram.resize(datagram.len().next_multiple_of(4), 0);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let mut done = Vec::new();
    done.extend_from_slice(&20u32.to_ne_bytes());
    done.extend_from_slice(&NLMSG_DONE.to_ne_bytes());
    done.extend_from_slice(&0u16.to_ne_bytes());
    done.extend_from_slice(&FIRST_SEQUENCE.to_ne_bytes());
    done.extend_from_slice(&[0; 8]);
    vec![datagram, done]
}
