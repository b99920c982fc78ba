//! The packets with which a pod tries to reach what its policies deny, and the unusual packets that an allowed connection
//! may need. Each packet carries the name of its row.

use std::net::IpAddr;

use crate::packets::*;

/// The ends of a probe, all of one family.
#[derive(Clone, Copy)]
pub struct Ends {
    pub from: IpAddr,
    pub to: IpAddr,
    /// A pod that policies treat in another way than `from`.
    pub other: IpAddr,
    /// An address of the node: the node itself may do everything.
    pub node: IpAddr,
    /// An address of the node whose UDP port 8080 leads to port 9 of `to`.
    pub host_port: IpAddr,
    /// The UDP port that a probe is sent to.
    pub port: u16,
}

/// A row: its name, and its packets.
pub type Row = (String, Vec<Vec<u8>>);

const MORE: u16 = 0x2000; // IP_MF
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const NO_NEXT: u8 = 59;

/// Packets that must pass where policies allow `from` to reach `to`.
pub fn useful(ends: Ends) -> Vec<Row> {
    let mut rows = common(ends, "allowed");
    rows.extend(if ends.from.is_ipv6() { useful6(ends) } else { useful4(ends) });
    rows
}

/// Packets that must not arrive.
pub fn attacks(ends: Ends) -> Vec<Row> {
    let mut rows = common(ends, "denied");
    rows.extend(if ends.from.is_ipv6() { useful6(ends) } else { useful4(ends) });
    rows.extend(forged_sources(ends));
    rows.extend(if ends.from.is_ipv6() { attacks6(ends) } else { attacks4(ends) });
    rows.extend(protocols(ends));
    rows
}

fn row(name: impl Into<String>, packet: impl FnOnce(&str) -> Vec<u8>) -> Row {
    let name = name.into();
    let packet = packet(&name);
    (name, vec![packet])
}

/// A number for the fragments of a row: those of two rows are never one packet.
fn id(name: &str) -> u16 {
    name.bytes().fold(7, |id: u16, byte| id.wrapping_mul(31).wrapping_add(byte.into()))
}

fn common(ends: Ends, verdict: &str) -> Vec<Row> {
    let Ends { from, to, port, .. } = ends;
    vec![row(format!("udp {verdict}"), |text| packet(from, to, UDP, &datagram(from, to, port, text)))]
}

/// Two fragments, with the text in the second, and unusual headers.
fn useful4(Ends { from, to, port, .. }: Ends) -> Vec<Row> {
    let fragments = |name: &str, first: usize| {
        let bytes = datagram(from, to, port, name);
        let (one, two) = bytes.split_at(first);
        let parts = |fragment| Ip4 { fragment, id: id(name), ..Ip4::default() };
        let part = |fragment, bytes: &[u8]| ip4(from, to, UDP, parts(fragment), bytes);
        (name.to_owned(), vec![part(MORE, one), part(first as u16 / 8, two)])
    };
    let with = |name: &str, options: &[u8]| {
        let parts = Ip4 { options, ..Ip4::default() };
        row(name, |text| ip4(from, to, UDP, parts, &datagram(from, to, port, text)))
    };
    let mut reversed = fragments("last fragment first", 24);
    reversed.1.reverse();
    vec![
        fragments("fragments", 24),
        fragments("smallest first fragment", 8),
        reversed,
        with("option router alert", &[148, 4, 0, 0]),
        with("option timestamp", &[68, 8, 5, 0, 0, 0, 0, 0]),
        with("option nop", &[1, 1, 1, 0]),
    ]
}

fn useful6(Ends { from, to, port, .. }: Ends) -> Vec<Row> {
    let fragments = |name: &str, first: usize| {
        (name.to_owned(), fragments6((from, to), (UDP, id(name)), &datagram(from, to, port, name), first))
    };
    let with = |name: &str, kind: u8, body: &[u8]| {
        let header = extension(UDP, body);
        let payload = |text: &str| [&header[..], &datagram(from, to, port, text)].concat();
        row(name, |text| ip6(from, to, (kind, 64), &payload(text)))
    };
    let atomic =
        |text: &str| [fragment_header(UDP, (0, false), id(text)), datagram(from, to, port, text)].concat();
    let mut reversed = fragments("last fragment first", 24);
    reversed.1.reverse();
    vec![
        fragments("fragments", 24),
        fragments("smallest first fragment", 8),
        reversed,
        row("atomic fragment", |text| ip6(from, to, (FRAGMENT_HEADER, 64), &atomic(text))),
        with("hop-by-hop options", HOP_BY_HOP, &[1, 4]),
        with("destination options", DESTINATION, &[1, 4]),
    ]
}

/// Two fragments, the first with this number of bytes.
fn fragments6(
    (from, to): (IpAddr, IpAddr),
    (next, id): (u8, u16),
    bytes: &[u8],
    first: usize,
) -> Vec<Vec<u8>> {
    let (one, two) = bytes.split_at(first);
    let part = |offset, more, bytes: &[u8]| {
        let payload = [fragment_header(next, (offset, more), id), bytes.to_vec()].concat();
        ip6(from, to, (FRAGMENT_HEADER, 64), &payload)
    };
    vec![part(0, true, one), part(first as u16 / 8, false, two)]
}

/// Sources that are not the pod's own.
fn forged_sources(ends: Ends) -> Vec<Row> {
    let Ends { from, to, other, node, port, host_port } = ends;
    let forged = |name: &str, source: IpAddr| {
        row(name, |text| packet(source, to, UDP, &datagram(source, to, port, text)))
    };
    let mut rows = vec![
        forged("from another pod", other),
        forged("from the node", node),
        forged("from the receiver", to),
        // A reply to the receiver would come from a pod that may send to it.
        row("reflected by another pod", |text| packet(to, other, UDP, &datagram(to, other, 9, text))),
        row("to a host port", |text| packet(from, host_port, UDP, &datagram(from, host_port, 8080, text))),
    ];
    let unusual: &[&str] = if from.is_ipv6() {
        &["::", "::1", "ff02::1", "fe80::1", "fe80::ecee:eeff:feee:eeee", "::ffff:10.1.0.12", "2001:db8::1"]
    } else {
        &["0.0.0.0", "127.0.0.1", "224.0.0.1", "169.254.1.1", "255.255.255.255", "203.0.113.9"]
    };
    rows.extend(
        unusual.iter().map(|text| forged(&format!("from {}", text.replace([':', '.'], "-")), ip(text))),
    );
    rows
}

fn attacks4(Ends { from, to, other, port, .. }: Ends) -> Vec<Row> {
    let route = |kind: u8, via: IpAddr| [&[kind, 7, 4][..], &octets(via), &[0]].concat();
    let with = |name: &str, options: &[u8], to: IpAddr| {
        let parts = Ip4 { options, ..Ip4::default() };
        row(name, |text| ip4(from, to, UDP, parts, &datagram(from, to, port, text)))
    };
    let lone = |name: &str, offset: u16| {
        let parts = Ip4 { fragment: offset, id: id(name), ..Ip4::default() };
        row(name, |text| ip4(from, to, UDP, parts, &[vec![0; 16], marked(text)].concat()))
    };
    let mut rows = vec![
        with("option loose source route", &route(131, to), other),
        with("option strict source route", &route(137, to), other),
        with("option record route", &route(7, to), to),
        with("option broken", &[7, 200, 4, 0], to),
        lone("fragment without a first one", 3),
        lone("fragment far behind", 8000),
        row("udp with a wrong checksum", |text| {
            let mut bytes = datagram(from, to, port, text);
            bytes[6] ^= 0x55;
            packet(from, to, UDP, &bytes)
        }),
    ];
    // Errors, requests and replies that belong to no connection. The errors quote a packet of the receiver to `other`.
    for kind in [0, 3, 4, 5, 8, 9, 10, 11, 12, 13, 15, 17] {
        rows.push(row(format!("icmp {kind}"), |text| {
            let quoted = packet(to, other, UDP, &datagram(to, other, 4711, ""));
            let message = [vec![kind, 0, 0, 0, 0, 0, 0, 0], quoted, marked(text)].concat();
            // The checksum of ICMP has no pseudo header: a wrong one, which conntrack does not accept either.
            packet(from, to, 1, &message)
        }));
    }
    rows
}

fn attacks6(Ends { from, to, other, port, .. }: Ends) -> Vec<Row> {
    let with = |name: &str, to: IpAddr, kind: u8, header: &[u8]| {
        let payload = |text: &str| [header, &datagram(from, to, port, text)].concat();
        row(name, |text| ip6(from, to, (kind, 64), &payload(text)))
    };
    // Type, segments left, four bytes, and the address to visit next.
    let routing = |kind: u8| extension(UDP, &[vec![kind, 1, 0, 0, 0, 0], octets(to)].concat());
    let lone = |text: &str| [fragment_header(UDP, (3, false), id(text)), vec![0; 16], marked(text)].concat();
    let mut rows = vec![
        with("routing header 0", other, ROUTING, &routing(0)),
        with("routing header 2", other, ROUTING, &routing(2)),
        with("segment routing", other, ROUTING, &routing(4)),
        with("unknown routing header", to, ROUTING, &extension(UDP, &[77, 0, 0, 0, 0, 0])),
        with(
            "many options",
            to,
            HOP_BY_HOP,
            &[extension(DESTINATION, &[1, 4]), extension(UDP, &[1, 4])].concat(),
        ),
        with("unknown option", to, DESTINATION, &extension(UDP, &[30, 4])),
        row("fragment without a first one", |text| ip6(from, to, (FRAGMENT_HEADER, 64), &lone(text))),
        row("no next header", |text| ip6(from, to, (NO_NEXT, 64), &marked(text))),
        row("icmp behind options", |text| {
            let message = [vec![135, 0, 0, 0, 0, 0, 0, 0], octets(to), marked(text)].concat();
            let sealed = sealed(from, to, ICMPV6, message, 2);
            ip6(from, to, (DESTINATION, 64), &[extension(ICMPV6, &[1, 4]), sealed].concat())
        }),
    ];
    // No part of the UDP header is in the first fragment.
    let name = "ports in the second fragment";
    let chain = [extension(UDP, &[1, 4]), datagram(from, to, port, name)].concat();
    rows.push((name.to_owned(), fragments6((from, to), (DESTINATION, id(name)), &chain, 8)));
    // Errors, echo, multicast listeners, discovery, node information and unknown ones, with a hop limit that a router
    // forwards.
    for kind in
        [1, 2, 3, 4, 100, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 143, 151, 155, 200]
    {
        rows.push(row(format!("icmp {kind}"), |text| {
            let quoted = packet(to, other, UDP, &datagram(to, other, 4711, ""));
            let message = [vec![kind, 0, 0, 0, 0, 0, 0, 0], quoted, marked(text)].concat();
            ip6(from, to, (ICMPV6, 64), &sealed(from, to, ICMPV6, message, 2))
        }));
    }
    rows
}

/// Other protocols than UDP and ICMP.
fn protocols(Ends { from, to, other, .. }: Ends) -> Vec<Row> {
    let mut rows: Vec<Row> = [2, 6, 33, 46, 47, 50, 51, 89, 103, 108, 112, 115, 132, 136, 143, 253, 254]
        .map(|number| {
            row(format!("protocol {number}"), |text| {
                packet(from, to, number, &[vec![0; 24], marked(text)].concat())
            })
        })
        .into();
    // A packet of a pod that may send to the receiver, in a packet of this pod.
    let inner = |text: &str| packet(other, to, UDP, &datagram(other, to, 9, text));
    let number = if from.is_ipv6() { 41 } else { 4 };
    rows.push(row("packet in a packet", |text| packet(from, to, number, &inner(text))));
    rows
}
