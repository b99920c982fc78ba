//! IPv4 and UDP headers of a DHCP message, for a packet socket: before the interface has an address, the kernel cannot add them.

use std::net::Ipv4Addr;

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
const HEADERS: usize = 28;
const UDP: u8 = 17;

/// Adds the headers of a packet from the client port to the server port.
pub fn wrap(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = |headers: usize| (payload.len() + headers) as u16;
    let mut packet = Vec::with_capacity(payload.len() + HEADERS);
    packet.extend([0x45, 0x10]); // version 4, header of five words; TOS low delay, as other DHCP clients set
    packet.extend(length(HEADERS).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]); // don't fragment, TTL 64
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(CLIENT_PORT.to_be_bytes());
    packet.extend(SERVER_PORT.to_be_bytes());
    packet.extend(length(8).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    // The UDP checksum covers a pseudo header with the addresses.
    let pseudo = [&packet[12..20], &[0, UDP], &length(8).to_be_bytes()[..], &packet[20..]].concat();
    let sum = match checksum(&pseudo) {
        0 => 0xffff,
        sum => sum,
    };
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The message in a packet to the client port. The UDP checksum is not checked: a server on the same machine leaves it to
/// checksum offloading of a network card that the packet never passes.
pub fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let head = usize::from(packet.first()? & 0x0f) * 4;
    if packet[0] >> 4 != 4 || head < 20 || *packet.get(9)? != UDP || checksum(packet.get(..head)?) != 0 {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    // Not a fragment.
    if u16_at(6)? & 0x3fff != 0 || u16_at(head)? != SERVER_PORT || u16_at(head + 2)? != CLIENT_PORT {
        return None;
    }
    let (whole, datagram) = (usize::from(u16_at(2)?), usize::from(u16_at(head + 4)?));
    if datagram < 8 || whole > packet.len() || head + datagram > whole {
        return None;
    }
    packet.get(head + 8..head + datagram)
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A packet from a server.
    pub(crate) fn from_server(payload: &[u8]) -> Vec<u8> {
        let mut packet = wrap(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::BROADCAST, payload);
        packet.swap(20, 22);
        packet.swap(21, 23);
        packet
    }

    #[test]
    fn a_message_is_wrapped_and_unwrapped() {
        assert_eq!(unwrap(&from_server(b"hello")), Some(&b"hello"[..]));
        assert_eq!(unwrap(&from_server(b"")), Some(&b""[..]));
        let request = wrap(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b"odd");
        assert_eq!(checksum(&request[..20]), 0);
        assert_eq!(unwrap(&request), None, "not to a client");
    }

    #[test]
    fn an_invalid_packet_has_no_message() {
        let good = from_server(b"hello");
        for end in 0..good.len() {
            assert_eq!(unwrap(&good[..end]), None, "cut to {end}");
        }
        for at in (0..20).chain([20, 21, 22, 23, 24]) {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            assert_eq!(unwrap(&bad), None, "byte {at}");
        }
        let padded = [&good[..], &[0; 18]].concat();
        assert_eq!(unwrap(&padded), Some(&b"hello"[..]), "short frames are padded");
    }
}
