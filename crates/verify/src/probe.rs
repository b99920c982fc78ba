//! One probe: sends one kind of packet to an address and evaluates the answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use podwire_ip::IpFamily;
use podwire_netlink::sys;

use crate::echo::EchoAddress;
use crate::{Endpoint, Kind};

/// The kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A TCP stream of many full segments.
    Tcp,
    /// A small UDP datagram.
    Udp,
    /// An ICMP echo request.
    Icmp,
    /// A UDP datagram of the link's MTU that must not be fragmented.
    Large,
}

/// The length of a stream: enough for segments of full size on any overlay.
const STREAM: usize = 64 * 1024;
/// Datagrams can be lost during neighbour resolution.
const TRIES: u32 = 3;

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 4] = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp, Protocol::Large];

    /// The port of an echo service that answers this kind of packet; none for ICMP.
    pub(crate) fn port(self, to: &EchoAddress) -> Option<u16> {
        match self {
            Protocol::Tcp => Some(to.tcp),
            Protocol::Udp | Protocol::Large => Some(to.udp),
            Protocol::Icmp => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Icmp => "icmp",
            Protocol::Large => "large",
        })
    }
}

/// An answer, with the time it took.
pub(crate) struct TimedAnswer {
    time: Duration,
    answer: Answer,
}

/// Why there is no complete answer.
pub(crate) struct Failure {
    pub reason: String,
    /// Whether something answered.
    pub answered: bool,
}

/// What the echo service answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// The source address that it saw; an ICMP echo reply does not contain it.
    seen: Option<IpAddr>,
    sent: usize,
    arrived: usize,
}

impl TimedAnswer {
    /// Fails if the source address was translated or data was lost.
    pub fn check(self, from: &Endpoint) -> Result<Duration, String> {
        let Answer { seen, sent, arrived } = self.answer;
        if let Some(seen) = seen.filter(|seen| from.mtu_of(*seen).is_none()) {
            return Err(format!("arrived from {seen}, which is not the sender's address: NAT changed it"));
        }
        if sent != arrived {
            return Err(format!("{arrived} of {sent} bytes arrived"));
        }
        Ok(self.time)
    }
}

/// Probes `to` from an endpoint. The calling thread is in its namespace.
pub(crate) fn send(
    protocol: Protocol,
    from: &Endpoint,
    to: &EchoAddress,
    timeout: Duration,
) -> Result<TimedAnswer, Failure> {
    let start = Instant::now();
    let mut connected = false;
    let answer = match protocol {
        Protocol::Tcp => connect_stream(to, timeout).and_then(|stream| {
            connected = true;
            exchange_stream(stream, timeout)
        }),
        Protocol::Udp => datagram(to, 64, timeout),
        Protocol::Large => large(from, to, timeout),
        Protocol::Icmp => ping(to.address, timeout).map(|_| Answer { seen: None, sent: 0, arrived: 0 }),
    };
    let time = start.elapsed();
    answer.map(|answer| TimedAnswer { time, answer }).map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} ms", timeout.as_millis())
            }
            _ => error.to_string(),
        };
        // read_answer() did not understand the answer.
        let answered = connected || error.kind() == io::ErrorKind::InvalidData;
        Failure { reason, answered }
    })
}

/// The source address that the kernel selects for packets to `to`. The calling thread is in the sender's namespace.
pub(crate) fn source(to: &EchoAddress) -> Option<IpAddr> {
    Some(connect(to).ok()?.local_addr().ok()?.ip())
}

fn read_answer(text: &[u8], sent: usize) -> io::Result<Answer> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "another service answered");
    let text = std::str::from_utf8(text).map_err(|_| invalid())?;
    let (seen, arrived) = text.split_once(' ').ok_or_else(invalid)?;
    let seen = Some(seen.parse().map_err(|_| invalid())?);
    Ok(Answer { seen, sent, arrived: arrived.parse().map_err(|_| invalid())? })
}

fn connect_stream(to: &EchoAddress, timeout: Duration) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::new(to.address, to.tcp), timeout)
}

fn exchange_stream(mut stream: TcpStream, timeout: Duration) -> io::Result<Answer> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(&vec![0; STREAM])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(100).read_to_end(&mut answer)?;
    read_answer(&answer, STREAM)
}

fn datagram(to: &EchoAddress, size: usize, timeout: Duration) -> io::Result<Answer> {
    exchange(&connect(to)?, size, timeout)
}

fn connect(to: &EchoAddress) -> io::Result<UdpSocket> {
    let any: IpAddr = IpFamily::of(to.address).unspecified();
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to.address, to.udp))?;
    Ok(socket)
}

fn exchange(socket: &UdpSocket, size: usize, timeout: Duration) -> io::Result<Answer> {
    socket.set_read_timeout(Some((timeout / TRIES).max(Duration::from_millis(1))))?;
    let (payload, mut answer) = (vec![0; size], [0; 100]);
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for _ in 0..TRIES {
        socket.send(&payload)?;
        match socket.recv(&mut answer) {
            Ok(length) => return read_answer(&answer[..length], size),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends a datagram of the link's MTU, even if the kernel has cached a smaller path MTU. If a router reports that it is too
/// large, the network is at fault; the error has both numbers.
fn large(from: &Endpoint, to: &EchoAddress, timeout: Duration) -> io::Result<Answer> {
    let socket = connect(to)?;
    let family = IpFamily::of(to.address);
    sys::disable_fragmentation(socket.as_fd(), family)?;
    let link_mtu = from.mtu_of(socket.local_addr()?.ip());
    let own = link_mtu.map_or_else(|| sys::path_mtu(socket.as_fd(), family), Ok)?;
    // A node's links have a larger MTU than its pods': a tunnel needs room for its headers.
    let mtu = if from.kind == Kind::Node { own.min(to.mtu) } else { own };
    // The headers of IP and UDP. A UDP datagram has at most 65,507 bytes, whatever the MTU of lo is.
    let headers = if family.is_v6() { 48 } else { 28 };
    let size = (mtu as usize).saturating_sub(headers).min(65_000);
    exchange(&socket, size, timeout).map_err(|error| {
        let path_mtu = sys::path_mtu(socket.as_fd(), family).unwrap_or(mtu);
        let text = match error.kind() {
            _ if path_mtu < mtu => {
                format!("the interface has MTU {mtu}, the path carries only {path_mtu} bytes")
            }
            io::ErrorKind::WouldBlock => {
                format!("packets of {mtu} bytes, the interface's MTU, are lost")
            }
            _ => return error,
        };
        io::Error::other(text)
    })
}

/// Sends echo requests from the calling thread's namespace until one is answered; returns its round-trip time.
pub fn ping(to: IpAddr, timeout: Duration) -> io::Result<Duration> {
    let socket = UdpSocket::from(sys::icmp_socket(IpFamily::of(to))?);
    // Every ICMP socket of the namespace receives all echo replies: the payload identifies ours.
    let token: [u8; 8] = sys::random()?;
    let mut echo = *b"\x08\0\0\0\0\x2a\0\x01........";
    echo[8..].copy_from_slice(&token);
    if to.is_ipv6() {
        echo[0] = 128; // The kernel computes the ICMPv6 checksum.
    } else {
        let sum = checksum(&echo).to_be_bytes();
        echo[2..4].copy_from_slice(&sum);
    }
    let wait = (timeout / TRIES).max(Duration::from_millis(1));
    for _ in 0..TRIES {
        let sent = Instant::now();
        socket.send_to(&echo, SocketAddr::new(to, 0))?;
        if received(&socket, to, &token, sent + wait)? {
            return Ok(sent.elapsed());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Whether `to` answers with `token` before `end`. Other packets are skipped.
fn received(socket: &UdpSocket, to: IpAddr, token: &[u8], end: Instant) -> io::Result<bool> {
    let mut buffer = [0; 256];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        // An ICMP error may concern another echo request.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let packet = &buffer[..length];
        if from.ip() == to && is_reply(packet, IpFamily::of(to)) && packet.ends_with(token) {
            return Ok(true);
        }
    }
}

/// Whether a packet is an echo reply. An endpoint that probes itself receives its own request too. An IPv4 socket receives the IP
/// header before the ICMP header.
fn is_reply(packet: &[u8], family: IpFamily) -> bool {
    match (family, packet) {
        (IpFamily::V6, [kind, ..]) => *kind == 129,
        (IpFamily::V4, [first, ..]) => packet.get(usize::from(first & 0xf) * 4) == Some(&0),
        (_, []) => false,
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_service_is_an_error() {
        assert!(read_answer(b"HTTP/1.0 400", 5).is_err());
        assert!(read_answer(b"\xff\xff", 5).is_err());
        let answer = read_answer(b"10.0.0.1 7", 9).unwrap();
        assert_eq!(answer, Answer { seen: Some("10.0.0.1".parse().unwrap()), sent: 9, arrived: 7 });
    }

    #[test]
    fn a_request_is_no_reply() {
        assert!(is_reply(&[129, 0], IpFamily::V6) && !is_reply(&[128, 0], IpFamily::V6));
        let after_header = |kind: u8| [&[0x45; 20][..], &[kind]].concat();
        assert!(is_reply(&after_header(0), IpFamily::V4) && !is_reply(&after_header(8), IpFamily::V4));
        assert!(!is_reply(&[], IpFamily::V6) && !is_reply(&[0x45], IpFamily::V4));
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
