//! Raw sockets: SCTP packets without kernel support, which this kernel may lack, and the ICMP errors that come back.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use podwire_ip::IpFamily;
use socket2::{Domain, Protocol, Socket, Type};

use super::Endpoint;

/// SOCK_RAW; socket2 has a name for it only with the feature `all`.
const RAW: i32 = 3;
const ICMP: i32 = 1;
const ICMP_V6: i32 = 58;
pub const SCTP: u8 = 132;

/// The destination of a packet: address, protocol, port.
pub type Target = (IpAddr, u8, u16);

/// The SCTP and ICMP sockets of an endpoint, IPv4 and IPv6. They stay in the namespace of the endpoint.
pub struct RawSockets {
    sctp: [UdpSocket; 2],
    errors: [UdpSocket; 2],
}

impl RawSockets {
    pub fn of(endpoint: &Endpoint) -> RawSockets {
        endpoint.run_inside(|| RawSockets {
            sctp: [raw(Domain::IPV4, SCTP.into()), raw(Domain::IPV6, SCTP.into())],
            errors: [raw(Domain::IPV4, ICMP), raw(Domain::IPV6, ICMP_V6)],
        })
    }

    /// Sends the first packet of an SCTP association.
    pub fn send_init(&self, to: IpAddr, from_port: u16, to_port: u16) {
        let socket = &self.sctp[usize::from(to.is_ipv6())];
        socket.send_to(&init(from_port, to_port), SocketAddr::new(to, 0)).expect("sent");
    }

    /// Source and destination ports of the SCTP packets received since the last call.
    pub fn received_inits(&self) -> BTreeSet<(u16, u16)> {
        let ports = |(family, packet): (IpFamily, Vec<u8>)| {
            let header = ip_header(family);
            Some((number(&packet, header)?, number(&packet, header + 2)?))
        };
        drain(&self.sctp).into_iter().filter_map(ports).collect()
    }

    /// The destinations of packets for which an ICMP error arrived since the last call.
    pub fn icmp_errors(&self) -> BTreeSet<Target> {
        drain(&self.errors).iter().filter_map(|(family, packet)| quoted(*family, packet)).collect()
    }
}

/// A raw socket as a `UdpSocket`, whose methods send and receive on it too.
fn raw(domain: Domain, protocol: i32) -> UdpSocket {
    let socket = Socket::new(domain, Type::from(RAW), Some(Protocol::from(protocol))).expect("a raw socket");
    socket.set_nonblocking(true).expect("a non-blocking socket");
    OwnedFd::from(socket).into()
}

/// All received packets with their family. IPv4 packets start with the IP header.
fn drain(sockets: &[UdpSocket; 2]) -> Vec<(IpFamily, Vec<u8>)> {
    let mut all = Vec::new();
    for (family, socket) in IpFamily::ALL.into_iter().zip(sockets) {
        let mut buffer = [0; 2048];
        loop {
            match socket.recv(&mut buffer) {
                Ok(length) => all.push((family, buffer[..length].to_vec())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A pending ICMP error of an earlier packet; the ICMP socket reads it.
                Err(_) => {}
            }
        }
    }
    all
}

/// The length of the IP header that a raw socket of the family delivers.
fn ip_header(family: IpFamily) -> usize {
    match family {
        IpFamily::V4 => 20,
        IpFamily::V6 => 0,
    }
}

fn number(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

/// The destination of the packet that an ICMP error quotes; `None` for other messages.
fn quoted(family: IpFamily, packet: &[u8]) -> Option<Target> {
    let icmp = packet.get(ip_header(family)..)?;
    // Error types are below 128 in ICMPv6.
    let is_error = if family.is_v6() { icmp[0] < 128 } else { [3, 4, 5, 11, 12].contains(&icmp[0]) };
    let inner = icmp.get(8..).filter(|_| is_error)?;
    if family.is_v6() {
        let to: [u8; 16] = inner.get(24..40)?.try_into().ok()?;
        return Some((to.into(), inner[6], number(inner, 42)?));
    }
    let to: [u8; 4] = inner.get(16..20)?.try_into().ok()?;
    Some((to.into(), inner[9], number(inner, usize::from(inner[0] & 15) * 4 + 2)?))
}

/// An SCTP header with an INIT chunk (RFC 9260, 3.1 and 3.3.2).
fn init(from_port: u16, to_port: u16) -> Vec<u8> {
    let mut packet = [from_port.to_be_bytes(), to_port.to_be_bytes()].concat();
    packet.extend([0; 8]); // verification tag 0; checksum, set below
    packet.extend([1, 0, 0, 20]); // INIT, no flags, 20 bytes
    packet.extend(77u32.to_be_bytes()); // initiate tag
    packet.extend(65536u32.to_be_bytes()); // receiver window
    packet.extend([0, 1, 0, 1]); // streams, out and in
    packet.extend(1u32.to_be_bytes()); // initial TSN
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// Conntrack ignores packets with a wrong checksum.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}
