//! DropSamples of dropped packets, received by NFLOG.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use podwire_netlink::attr;
use podwire_netlink::nflog::{self, LoggedPacket};
use podwire_netlink::Socket;
use podwire_policy::{Direction, Protocol};

use super::nftables::drop_chains::{LOG_GROUP, SPOOFED};
use crate::Result;

const ARP: u16 = 0x0806; // ETH_P_ARP, linux/if_ether.h
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// A dropped packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropSample {
    /// The direction whose policies dropped it.
    pub direction: Direction,
    /// The number of the reason ([`Nftables::reason`](super::Nftables::reason)); `None` if the pod used a source
    /// address that is not its own.
    pub reason: Option<u32>,
    /// The source address in the packet.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: Option<IpAddr>,
    /// `TCP`, `ICMP`, `ARP`, or a number.
    pub protocol: String,
    /// The destination port, if the protocol has ports.
    pub port: Option<u16>,
    /// The index of the input device.
    pub device: Option<u32>,
}

/// The receiver of samples. A network namespace has at most one.
#[derive(Debug)]
pub struct DropSamples {
    socket: Socket,
}

impl DropSamples {
    /// For the network namespace of the calling thread.
    pub fn listen() -> Result<DropSamples> {
        let mut socket = Socket::netfilter()?;
        nflog::listen(&mut socket, LOG_GROUP)?;
        Ok(DropSamples { socket })
    }

    /// The samples that arrived; does not block.
    pub fn read(&mut self) -> Result<Vec<DropSample>> {
        let mut samples = Vec::new();
        // Lost samples need no handling.
        self.socket
            .drain(|frame| samples.extend(LoggedPacket::decode(frame).map(|shown| DropSample::of(&shown))))?;
        Ok(samples)
    }
}

impl AsFd for DropSamples {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DropSample {
    fn of(shown: &LoggedPacket) -> DropSample {
        let headers = Headers::read(shown);
        let is_ingress = shown.prefix == Direction::Ingress.to_string();
        DropSample {
            direction: if is_ingress { Direction::Ingress } else { Direction::Egress },
            reason: (shown.prefix != SPOOFED).then_some(shown.mark),
            source: headers.source,
            destination: headers.destination,
            protocol: headers.protocol,
            port: headers.port,
            device: shown.device,
        }
    }
}

/// The packet's headers, as far as they can be read.
#[derive(Debug, Default)]
struct Headers {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: String,
    port: Option<u16>,
}

impl Headers {
    fn read(shown: &LoggedPacket) -> Headers {
        let bytes = shown.bytes.as_slice();
        let address = |at: usize, length: usize| bytes.get(at..at + length).and_then(attr::ip);
        if shown.protocol == ARP {
            let (source, destination) = (address(14, 4), address(24, 4));
            return Headers { source, destination, protocol: "ARP".into(), port: None };
        }
        match bytes.first().map(|first| first >> 4) {
            Some(4) => {
                let transport = usize::from(bytes[0] & 15) * 4;
                let protocol = bytes.get(9).copied().unwrap_or_default();
                let (name, port) = service(protocol, bytes.get(transport..));
                Headers { source: address(12, 4), destination: address(16, 4), protocol: name, port }
            }
            Some(6) => {
                let (protocol, transport) = after_extensions(bytes);
                let (name, port) = service(protocol, bytes.get(transport..));
                Headers { source: address(8, 16), destination: address(24, 16), protocol: name, port }
            }
            _ => Headers { protocol: format!("{:#06x}", shown.protocol), ..Headers::default() },
        }
    }
}

/// The transport protocol of an IPv6 packet and the offset of its header, after the extension headers.
fn after_extensions(bytes: &[u8]) -> (u8, usize) {
    let (mut kind, mut at) = (bytes.get(6).copied().unwrap_or_default(), 40);
    // Hop-by-hop (0), routing (43) and destination options (60) carry their length; a fragment header (44) has 8 bytes.
    while let (0 | 43 | 44 | 60, Some(head)) = (kind, bytes.get(at..at + 2)) {
        at += if kind == 44 { 8 } else { (usize::from(head[1]) + 1) * 8 };
        kind = head[0];
    }
    (kind, at)
}

/// The protocol's name, and the destination port.
fn service(number: u8, header: Option<&[u8]>) -> (String, Option<u16>) {
    let port = || Some(u16::from_be_bytes(header?.get(2..4)?.try_into().ok()?));
    match Protocol::ALL.into_iter().find(|protocol| protocol.number() == number) {
        Some(protocol) => (protocol.to_string(), port()),
        None if matches!(number, ICMP | ICMPV6) => ("ICMP".into(), None),
        None => (number.to_string(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(prefix: &str, protocol: u16, bytes: Vec<u8>) -> (DropSample, String) {
        let shown = LoggedPacket { prefix: prefix.into(), mark: 7, device: Some(3), protocol, bytes };
        let sample = DropSample::of(&shown);
        let ip = |ip: Option<IpAddr>| ip.map_or("?".to_owned(), |ip| ip.to_string());
        let text =
            format!("{} {} {} {:?}", ip(sample.source), ip(sample.destination), sample.protocol, sample.port);
        (sample, text)
    }

    fn ipv4(protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        (bytes[0], bytes[9]) = (0x45, protocol);
        bytes[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 3]);
        [bytes, transport.to_vec()].concat()
    }

    #[test]
    fn headers_are_read_in_both_families() {
        let (sample, text) = decode("ingress", 0x0800, ipv4(6, &[0x10, 0, 0x15, 0x38, 0, 0]));
        assert_eq!(text, "10.0.0.2 10.0.0.3 TCP Some(5432)");
        assert_eq!((sample.direction, sample.reason), (Direction::Ingress, Some(7)));
        assert_eq!(decode("egress", 0x0800, ipv4(1, &[8, 0])).1, "10.0.0.2 10.0.0.3 ICMP None");
        let mut six = vec![0; 40];
        (six[0], six[6], six[23], six[39]) = (0x60, 60, 1, 2);
        six.extend([17, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 53]);
        assert_eq!(decode("egress", 0x86dd, six).1, "::1 ::2 UDP Some(53)");
    }

    #[test]
    fn spoofed_packets_have_no_reason_number_and_arp_has_two_addresses() {
        let mut arp = vec![0; 28];
        (arp[17], arp[27]) = (1, 2);
        let (sample, text) = decode("spoofed", ARP, arp);
        assert_eq!(text, "0.0.0.1 0.0.0.2 ARP None");
        assert_eq!((sample.direction, sample.reason), (Direction::Egress, None));
    }

    #[test]
    fn truncated_or_unknown_packets_are_read_as_far_as_possible() {
        let whole = ipv4(6, &[0x10, 0, 0x15, 0x38]);
        for length in 0..whole.len() {
            decode("ingress", 0x0800, whole[..length].to_vec());
        }
        assert_eq!(decode("ingress", 0x88cc, vec![2, 7]).1, "? ? 0x88cc None");
        let endless = [vec![0x60, 0, 0, 0, 0, 0, 0], vec![0; 153]].concat();
        assert_eq!(decode("egress", 0x86dd, endless).1, ":: :: 0 None");
    }
}
