//! Packets, byte by byte.

use std::net::{IpAddr, Ipv6Addr};

pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const FRAGMENT_HEADER: u8 = 44;

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// The link-local address that the kernel derives from a MAC address.
pub fn link_local([a, b, c, d, e, f]: [u8; 6]) -> IpAddr {
    let half = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, half(a ^ 2, b), half(c, 0xff), half(0xfe, d), half(e, f)).into()
}

/// The MAC address of an IPv4 or IPv6 group, or of all.
pub fn group(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(_) => [0xff; 6],
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn checksum(data: &[u8]) -> u16 {
    let mut sum: u32 =
        data.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A text as the sniffer finds it.
pub fn marked(text: &str) -> Vec<u8> {
    format!("<{text}>").into_bytes()
}

/// A payload with its checksum set at `at`.
pub fn sealed(from: IpAddr, to: IpAddr, protocol: u8, mut payload: Vec<u8>, at: usize) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes().to_vec();
    let pseudo = [octets(from), octets(to), vec![0, protocol], length, payload.clone()];
    payload[at..at + 2].copy_from_slice(&checksum(&pseudo.concat()).to_be_bytes());
    payload
}

/// An IPv4 packet.
pub fn ip4(from: IpAddr, to: IpAddr, protocol: u8, parts: Ip4<'_>, payload: &[u8]) -> Vec<u8> {
    let header = 20 + parts.options.len();
    let length = (header + payload.len()) as u16;
    let start =
        [&[0x40 | (header / 4) as u8, 0][..], &length.to_be_bytes(), &parts.id.to_be_bytes()].concat();
    let middle = [&parts.fragment.to_be_bytes()[..], &[64, protocol, 0, 0]].concat();
    let mut bytes = [start, middle, octets(from), octets(to), parts.options.to_vec()].concat();
    let sum = checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    [bytes, payload.to_vec()].concat()
}

/// The parts of an IPv4 header that usually are empty.
#[derive(Clone, Copy, Default)]
pub struct Ip4<'a> {
    pub options: &'a [u8],
    /// The offset in units of 8 bytes, and the flag that more follow (0x2000).
    pub fragment: u16,
    pub id: u16,
}

pub fn ip6(from: IpAddr, to: IpAddr, (next, hop_limit): (u8, u8), payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &length, &[next, hop_limit]].concat();
    [header, octets(from), octets(to), payload.to_vec()].concat()
}

/// A packet of either family.
pub fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    if from.is_ipv6() {
        ip6(from, to, (protocol, 64), payload)
    } else {
        ip4(from, to, protocol, Ip4::default(), payload)
    }
}

/// A datagram without its IP header. It is long enough to be cut: the text is behind the first 24 bytes.
pub fn datagram(from: IpAddr, to: IpAddr, port: u16, text: &str) -> Vec<u8> {
    let data = [vec![b'.'; 16], marked(text)].concat();
    let numbers = [9, port, 8 + data.len() as u16, 0].map(u16::to_be_bytes).concat();
    sealed(from, to, UDP, [numbers, data].concat(), 6)
}

pub fn udp(from: IpAddr, to: IpAddr, ports: (u16, u16), text: &str) -> Vec<u8> {
    let text = marked(text);
    let numbers = [ports.0, ports.1, 8 + text.len() as u16, 0].map(u16::to_be_bytes).concat();
    let payload = sealed(from, to, UDP, [numbers, text].concat(), 6);
    if from.is_ipv6() {
        return ip6(from, to, (UDP, 255), &payload);
    }
    packet(from, to, UDP, &payload)
}

/// An ICMPv6 message: a neighbour or router advertisement, with the text behind its options.
pub fn icmpv6(from: IpAddr, to: IpAddr, kind: u8, body: &[u8], text: &str) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0][..], body, &marked(text)].concat();
    ip6(from, to, (ICMPV6, 255), &sealed(from, to, ICMPV6, message, 2))
}

/// An IPv6 header between the IP header and the payload: hop-by-hop options, destination options or routing.
pub fn extension(next: u8, body: &[u8]) -> Vec<u8> {
    let length = (2 + body.len()).next_multiple_of(8);
    let mut bytes = [&[next, (length / 8 - 1) as u8][..], body].concat();
    bytes.resize(length, 0);
    bytes
}

/// A fragment header: the offset in units of 8 bytes, whether more follow, and the packet's number.
pub fn fragment_header(next: u8, (offset, more): (u16, bool), id: u16) -> Vec<u8> {
    let place = offset << 3 | u16::from(more);
    [&[next, 0][..], &place.to_be_bytes(), &u32::from(id).to_be_bytes()].concat()
}
