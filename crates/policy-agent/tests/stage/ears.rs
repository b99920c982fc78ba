//! Packets below sockets of their kind: SCTP by hand, since this kernel may have none, and whatever errors come back.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::Place;

/// SOCK_RAW, which the crate names only with more of its features.
const RAW: i32 = 3;
const ICMP: i32 = 1;
const ICMP_V6: i32 = 58;
pub const SCTP: u8 = 132;

/// Who was to be reached: address, protocol, port.
pub type Target = (IpAddr, u8, u16);

/// All that a place hears of SCTP and of errors, IPv4 and IPv6. Its sockets stay in the place, whoever reads them.
pub struct Ears {
    sctp: [UdpSocket; 2],
    errors: [UdpSocket; 2],
}

impl Ears {
    pub fn of(place: &Place) -> Ears {
        place.within(|| Ears {
            sctp: [raw(Domain::IPV4, SCTP.into()), raw(Domain::IPV6, SCTP.into())],
            errors: [raw(Domain::IPV4, ICMP), raw(Domain::IPV6, ICMP_V6)],
        })
    }

    /// The first packet of a connection of SCTP.
    pub fn sends_init(&self, to: IpAddr, from_port: u16, to_port: u16) {
        let socket = &self.sctp[usize::from(to.is_ipv6())];
        socket.send_to(&init(from_port, to_port), SocketAddr::new(to, 0)).expect("sent");
    }

    /// The ports, from and to, of what came by SCTP since this was last asked.
    pub fn inits(&self) -> BTreeSet<(u16, u16)> {
        let ports = |(v6, packet): (bool, Vec<u8>)| {
            let header = if v6 { 0 } else { 20 };
            Some((number(&packet, header)?, number(&packet, header + 2)?))
        };
        drain(&self.sctp).into_iter().filter_map(ports).collect()
    }

    /// What errors tell of that came since this was last asked: which of our packets were turned away.
    pub fn turned_away(&self) -> BTreeSet<Target> {
        drain(&self.errors).iter().filter_map(|(v6, packet)| quoted(*v6, packet)).collect()
    }
}

/// The socket that the standard library has for datagrams can send and receive on it.
fn raw(domain: Domain, protocol: i32) -> UdpSocket {
    let socket = Socket::new(domain, Type::from(RAW), Some(Protocol::from(protocol))).expect("a raw socket");
    socket.set_nonblocking(true).expect("a socket that does not wait");
    OwnedFd::from(socket).into()
}

/// All packets that wait, each with whether it is of IPv6. Those of IPv4 begin with their header.
fn drain(sockets: &[UdpSocket; 2]) -> Vec<(bool, Vec<u8>)> {
    let mut all = Vec::new();
    for (v6, socket) in [false, true].into_iter().zip(sockets) {
        let mut buffer = [0; 2048];
        loop {
            match socket.recv(&mut buffer) {
                Ok(length) => all.push((v6, buffer[..length].to_vec())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // What an error says of a packet is in the packet of the error, which is read elsewhere.
                Err(_) => {}
            }
        }
    }
    all
}

fn number(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

/// Errors quote the packet that they are about. None for what is no error.
fn quoted(v6: bool, packet: &[u8]) -> Option<Target> {
    let icmp = packet.get(if v6 { 0 } else { 20 }..)?;
    // Unreachable, too big, out of time, nonsense: below 128 in IPv6; in IPv4 some are.
    let is_error = if v6 { icmp[0] < 128 } else { [3, 4, 5, 11, 12].contains(&icmp[0]) };
    let inner = icmp.get(8..).filter(|_| is_error)?;
    if v6 {
        let to: [u8; 16] = inner.get(24..40)?.try_into().ok()?;
        return Some((to.into(), inner[6], number(inner, 42)?));
    }
    let to: [u8; 4] = inner.get(16..20)?.try_into().ok()?;
    Some((to.into(), inner[9], number(inner, usize::from(inner[0] & 15) * 4 + 2)?))
}

/// The header of SCTP and an INIT chunk (RFC 9260, 3.1 and 3.3.2).
fn init(from_port: u16, to_port: u16) -> Vec<u8> {
    let mut packet = [from_port.to_be_bytes(), to_port.to_be_bytes()].concat();
    packet.extend([0; 8]); // no tag yet; room for the checksum
    packet.extend([1, 0, 0, 20]); // INIT, no flags, 20 bytes
    packet.extend(77u32.to_be_bytes()); // the tag of answers
    packet.extend(65536u32.to_be_bytes()); // the window
    packet.extend([0, 1, 0, 1]); // streams, out and in
    packet.extend(1u32.to_be_bytes()); // the first number
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// Connection tracking looks at no packet with a wrong one.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}
