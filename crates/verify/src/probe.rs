//! Questions: one kind of packet sent to an address, and what came back.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use podwire_ip::IpFamily;
use podwire_netlink::sys;

use crate::echo::Door;
use crate::{Kind, Place};

/// How a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A stream of many full segments.
    Tcp,
    /// A small datagram.
    Udp,
    /// An echo request.
    Icmp,
    /// A datagram as large as the way is said to carry, which must not be cut.
    Large,
}

/// Enough for segments of full size in both directions of any overlay.
const STREAM: usize = 64 * 1024;
/// A datagram may be lost while neighbours are being looked for.
const TRIES: u32 = 3;

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 4] = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp, Protocol::Large];
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

/// What was learned from an answer.
pub(crate) struct Answered {
    time: Duration,
    /// As whom the other side saw us; echoes do not tell.
    seen: Option<IpAddr>,
    sent: usize,
    arrived: usize,
}

impl Answered {
    /// Whether the packet came through as the model wants it.
    pub fn judge(self, place: &Place) -> Result<Duration, String> {
        if let Some(seen) = self.seen.filter(|seen| place.promise(*seen).is_none()) {
            return Err(format!("arrived from {seen}, which is not its address: it was translated"));
        }
        if self.sent != self.arrived {
            return Err(format!("{} of {} bytes arrived", self.arrived, self.sent));
        }
        Ok(self.time)
    }
}

/// Asks at a door, from a place whose namespace the calling thread is in.
pub(crate) fn ask(
    protocol: Protocol,
    place: &Place,
    door: &Door,
    patience: Duration,
) -> Result<Answered, String> {
    let start = Instant::now();
    let told = match protocol {
        Protocol::Tcp => stream(door, patience),
        Protocol::Udp => datagram(door, 64, patience),
        Protocol::Large => large(place, door, patience),
        Protocol::Icmp => ping(door.address, patience).map(|_| (None, 0, 0)),
    };
    match told {
        Ok((seen, sent, arrived)) => Ok(Answered { time: start.elapsed(), seen, sent, arrived }),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(format!("no answer within {} ms", patience.as_millis()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// As whom we were seen, how much was sent, how much arrived.
type Told = (Option<IpAddr>, usize, usize);

fn read_answer(text: &[u8], sent: usize) -> io::Result<Told> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "somebody else answered");
    let text = std::str::from_utf8(text).map_err(|_| odd())?;
    let (seen, arrived) = text.split_once(' ').ok_or_else(odd)?;
    Ok((Some(seen.parse().map_err(|_| odd())?), sent, arrived.parse().map_err(|_| odd())?))
}

fn stream(door: &Door, patience: Duration) -> io::Result<Told> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(door.address, door.tcp), patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(&vec![0; STREAM])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(100).read_to_end(&mut answer)?;
    read_answer(&answer, STREAM)
}

fn datagram(door: &Door, size: usize, patience: Duration) -> io::Result<Told> {
    exchange(&connected(door)?, size, patience)
}

fn connected(door: &Door) -> io::Result<UdpSocket> {
    let any: IpAddr = if door.address.is_ipv6() { IpAddr::from([0u8; 16]) } else { IpAddr::from([0u8; 4]) };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(door.address, door.udp))?;
    Ok(socket)
}

fn exchange(socket: &UdpSocket, size: usize, patience: Duration) -> io::Result<Told> {
    socket.set_read_timeout(Some((patience / TRIES).max(Duration::from_millis(1))))?;
    let (load, mut answer) = (vec![0; size], [0; 100]);
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for _ in 0..TRIES {
        socket.send(&load)?;
        match socket.recv(&mut answer) {
            Ok(length) => return read_answer(&answer[..length], size),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// As large as the link promises, whatever is remembered of the way. If a router on it then says that it is too large,
/// that is a fault of the network, and told with both numbers.
fn large(place: &Place, door: &Door, patience: Duration) -> io::Result<Told> {
    let socket = connected(door)?;
    let family = IpFamily::of(door.address);
    sys::disable_fragmentation(socket.as_fd(), family)?;
    let by_link = place.promise(socket.local_addr()?.ip());
    let own = by_link.map_or_else(|| sys::path_mtu(socket.as_fd(), family), Ok)?;
    // A node's links are wider than its pods': a tunnel takes its share of what pods may send.
    let promised = if place.kind == Kind::Node { own.min(door.mtu) } else { own };
    // The headers of IP and UDP; and no datagram of UDP is larger than 65,507 bytes, whatever lo promises.
    let headers = if family.is_v6() { 48 } else { 28 };
    let size = (promised as usize).saturating_sub(headers).min(65_000);
    exchange(&socket, size, patience).map_err(|error| {
        let carried = sys::path_mtu(socket.as_fd(), family).unwrap_or(promised);
        let text = match error.kind() {
            _ if carried < promised => {
                format!("the interface promises packets of {promised} bytes, the way carries {carried}")
            }
            io::ErrorKind::WouldBlock => {
                format!("packets of {promised} bytes, as the interface promises, vanish")
            }
            _ => return error,
        };
        io::Error::other(text)
    })
}

/// Sends echo requests from the namespace of the calling thread until one is answered; returns how long that one took.
pub fn ping(to: IpAddr, patience: Duration) -> io::Result<Duration> {
    let socket = UdpSocket::from(sys::icmp_socket(IpFamily::of(to))?);
    // Everybody in this namespace hears all echoes: ours are known by what they carry.
    let token: [u8; 8] = sys::random()?;
    let mut echo = *b"\x08\0\0\0\0\x2a\0\x01........";
    echo[8..].copy_from_slice(&token);
    if to.is_ipv6() {
        echo[0] = 128; // The kernel adds the checksum of ICMPv6 itself.
    } else {
        let sum = checksum(&echo).to_be_bytes();
        echo[2..4].copy_from_slice(&sum);
    }
    let wait = (patience / TRIES).max(Duration::from_millis(1));
    for _ in 0..TRIES {
        let sent = Instant::now();
        socket.send_to(&echo, SocketAddr::new(to, 0))?;
        if heard(&socket, to, &token, sent + wait)? {
            return Ok(sent.elapsed());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Whether `to` answers with `token` before `end`, however much else is heard meanwhile.
fn heard(socket: &UdpSocket, to: IpAddr, token: &[u8], end: Instant) -> io::Result<bool> {
    let mut buffer = [0; 256];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        // An error is somebody's word about an echo, not necessarily ours.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let heard = &buffer[..length];
        if from.ip() == to && is_reply(heard, to.is_ipv6()) && heard.ends_with(token) {
            return Ok(true);
        }
    }
}

/// Who asks itself hears its own request, too. A socket of IPv4 hears the header of IP before that of ICMP.
fn is_reply(heard: &[u8], v6: bool) -> bool {
    match (v6, heard) {
        (true, [kind, ..]) => *kind == 129,
        (false, [first, ..]) => heard.get(usize::from(first & 0xf) * 4) == Some(&0),
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
    fn an_answer_of_somebody_else_is_told() {
        assert!(read_answer(b"HTTP/1.0 400", 5).is_err());
        assert!(read_answer(b"\xff\xff", 5).is_err());
        let (seen, sent, arrived) = read_answer(b"10.0.0.1 7", 9).unwrap();
        assert_eq!((seen, sent, arrived), (Some("10.0.0.1".parse().unwrap()), 9, 7));
    }

    #[test]
    fn a_request_is_no_reply() {
        assert!(is_reply(&[129, 0], true) && !is_reply(&[128, 0], true));
        let after_header = |kind: u8| [&[0x45; 20][..], &[kind]].concat();
        assert!(is_reply(&after_header(0), false) && !is_reply(&after_header(8), false));
        assert!(!is_reply(&[], true) && !is_reply(&[0x45], false));
    }

    #[test]
    fn the_checksum_is_that_of_the_internet() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
