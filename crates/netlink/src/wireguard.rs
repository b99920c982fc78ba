//! WireGuard devices (`linux/wireguard.h`): the key, port and peers of a link of kind `wireguard`. rtnetlink creates
//! the link; this generic netlink family configures it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use podwire_ip::IpFamily;

use crate::attr::{self, Attr};
use crate::error::{Error, Result};
use crate::genl;
use crate::message::{Frame, Message};
use crate::rt::address_family;
use crate::socket::Socket;

const FAMILY: &str = "wireguard";
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;
const DEVICE_IFINDEX: u16 = 1;
const DEVICE_PRIVATE_KEY: u16 = 3;
const DEVICE_PUBLIC_KEY: u16 = 4;
const DEVICE_LISTEN_PORT: u16 = 6;
const DEVICE_PEERS: u16 = 8;
const PEER_PUBLIC_KEY: u16 = 1;
const PEER_PRESHARED_KEY: u16 = 2;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_KEEPALIVE: u16 = 5;
const PEER_ALLOWED_IPS: u16 = 9;
const PEER_REMOVE_ME: u32 = 1;
const PEER_REPLACE_ALLOWED_IPS: u32 = 2;
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_PREFIX: u16 = 3;

/// A key of 32 bytes. Its Debug output hides it, because it may be secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The public key, which identifies it.
    pub public_key: Key,
    /// The preshared key; all zero for none.
    pub preshared_key: Key,
    /// Its address and port, if known.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalive packets; 0 disables them.
    pub keepalive: u16,
    /// The allowed addresses: packets to them go to this peer, and packets from them are accepted only from it.
    pub allowed: Vec<(IpAddr, u8)>,
}

/// A device as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The private key; all zero for none.
    pub private_key: Key,
    /// The public key.
    pub public_key: Key,
    /// The listening UDP port.
    pub port: u16,
    /// The peers.
    pub peers: Vec<Peer>,
}

/// Access to the WireGuard devices of one namespace.
#[derive(Debug)]
pub struct Wireguard {
    socket: Socket,
    family: u16,
}

impl Wireguard {
    /// Opens a socket in the current namespace.
    pub fn open() -> Result<Wireguard> {
        let mut socket = Socket::generic()?;
        match genl::family(&mut socket, FAMILY)? {
            Some(family) => Ok(Wireguard { socket, family }),
            None => Err(Error::Refused {
                doing: "look for WireGuard in the kernel".into(),
                errno: libc::EOPNOTSUPP,
                note: None,
            }),
        }
    }

    /// Reads the device with link index `link`.
    pub fn read(&mut self, link: u32) -> Result<Device> {
        let request = genl::message(self.family, GET_DEVICE, format!("read WireGuard link number {link}"))
            .u32(DEVICE_IFINDEX, link);
        self.socket.gather(request, Device::absorb)
    }

    /// Sends messages of this module in order; returns all failures, each with the position of its message.
    pub fn batch_each(&mut self, messages: Vec<Message>) -> Result<Vec<(usize, Error)>> {
        let mut batch = crate::Batch::new();
        batch.extend(messages);
        self.socket.batch_each(batch)
    }

    /// A message that sets the private key and the port.
    pub fn set_device(&self, link: u32, private_key: Key, port: u16) -> Message {
        genl::message(self.family, SET_DEVICE, format!("set key and port {port} of link number {link}"))
            .u32(DEVICE_IFINDEX, link)
            .bytes(DEVICE_PRIVATE_KEY, &private_key.0)
            .u16(DEVICE_LISTEN_PORT, port)
    }

    /// A message that adds or replaces a peer.
    pub fn set_peer(&self, link: u32, peer: &Peer) -> Message {
        let place = peer.endpoint.map_or("somewhere".into(), |at| at.to_string());
        let head = genl::message(self.family, SET_DEVICE, format!("set the WireGuard peer at {place}"));
        head.u32(DEVICE_IFINDEX, link).nest(DEVICE_PEERS, |m| {
            m.nest(0, |m| {
                m.bytes(PEER_PUBLIC_KEY, &peer.public_key.0)
                    .bytes(PEER_PRESHARED_KEY, &peer.preshared_key.0)
                    .u32(PEER_FLAGS, PEER_REPLACE_ALLOWED_IPS)
                    .maybe(peer.endpoint, |m, at| m.bytes(PEER_ENDPOINT, &socket_address(at)))
                    .u16(PEER_KEEPALIVE, peer.keepalive)
                    .nest(PEER_ALLOWED_IPS, |m| peer.allowed.iter().fold(m, |m, one| allow(m, *one)))
            })
        })
    }

    /// A message that removes a peer.
    pub fn remove_peer(&self, link: u32, public_key: Key) -> Message {
        genl::message(self.family, SET_DEVICE, format!("remove a WireGuard peer of link number {link}"))
            .u32(DEVICE_IFINDEX, link)
            .nest(DEVICE_PEERS, |m| {
                m.nest(0, |m| m.bytes(PEER_PUBLIC_KEY, &public_key.0).u32(PEER_FLAGS, PEER_REMOVE_ME))
            })
    }
}

fn allow(message: Message, (ip, prefix): (IpAddr, u8)) -> Message {
    message.nest(0, |m| {
        m.u16(ALLOWED_FAMILY, u16::from(address_family(IpFamily::of(ip))))
            .ip(ALLOWED_ADDRESS, ip)
            .u8(ALLOWED_PREFIX, prefix)
    })
}

/// `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket_address(at: SocketAddr) -> Vec<u8> {
    let mut bytes = u16::from(address_family(IpFamily::of(at.ip()))).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&at.port().to_be_bytes());
    match at {
        SocketAddr::V4(v4) => {
            bytes.extend_from_slice(&v4.ip().octets());
            bytes.resize(16, 0);
        }
        SocketAddr::V6(v6) => {
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&v6.ip().octets());
            bytes.extend_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

fn read_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    let ip = match family {
        libc::AF_INET => attr::ip(bytes.get(4..8)?),
        libc::AF_INET6 => attr::ip(bytes.get(8..24)?),
        _ => None,
    };
    Some(SocketAddr::new(ip?, port))
}

fn key(attr: &Attr<'_>) -> Option<Key> {
    Some(Key(attr.value.try_into().ok()?))
}

impl Device {
    /// Adds one message of a dump. A device may need several messages; a peer that is split appears again with the rest
    /// of its addresses.
    pub fn absorb(&mut self, frame: Frame<'_>) {
        for attr in frame.attrs(genl::HEADER) {
            match attr.kind {
                DEVICE_PRIVATE_KEY => self.private_key = key(&attr).unwrap_or_default(),
                DEVICE_PUBLIC_KEY => self.public_key = key(&attr).unwrap_or_default(),
                DEVICE_LISTEN_PORT => self.port = attr.u16().unwrap_or(0),
                DEVICE_PEERS => {
                    attr.nested().filter_map(|peer| Peer::read(&peer)).for_each(|peer| {
                        match self.peers.last_mut().filter(|last| last.public_key == peer.public_key) {
                            Some(last) => last.allowed.extend(peer.allowed),
                            None => self.peers.push(peer),
                        }
                    })
                }
                _ => {}
            }
        }
    }
}

impl Peer {
    fn read(peer: &Attr<'_>) -> Option<Peer> {
        let find = |kind: u16| attr::find(peer.value, kind);
        let allowed = |one: Attr<'_>| {
            let ip = attr::find(one.value, ALLOWED_ADDRESS)?.ip()?;
            Some((ip, attr::find(one.value, ALLOWED_PREFIX)?.u8()?))
        };
        Some(Peer {
            public_key: key(&find(PEER_PUBLIC_KEY)?)?,
            preshared_key: find(PEER_PRESHARED_KEY).and_then(|attr| key(&attr)).unwrap_or_default(),
            endpoint: find(PEER_ENDPOINT).and_then(|attr| read_socket_address(attr.value)),
            keepalive: find(PEER_KEEPALIVE).and_then(|attr| attr.u16()).unwrap_or(0),
            allowed: find(PEER_ALLOWED_IPS)
                .map(|list| list.nested().filter_map(allowed).collect())
                .unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Frames;

    fn peer(number: u8, endpoint: &str) -> Peer {
        Peer {
            public_key: Key([number; 32]),
            preshared_key: Key::default(),
            endpoint: endpoint.parse().ok(),
            keepalive: 25,
            allowed: vec![("10.244.2.0".parse().unwrap(), 24), ("fd00:2::".parse().unwrap(), 64)],
        }
    }

    #[test]
    fn peers_read_back_and_one_that_was_cut_in_two_is_one() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let wireguard = Wireguard { socket: Socket::from(std::os::fd::OwnedFd::from(socket)), family: 30 };
        let mut device = Device::default();
        for peer in
            [peer(1, "192.0.2.1:51820"), peer(2, "[2001:db8::1]:51821"), peer(2, "[2001:db8::1]:51821")]
        {
            let bytes = wireguard.set_peer(7, &peer).into_bytes();
            device.absorb(Frames::new(&bytes).next().unwrap());
        }
        assert_eq!(device.peers.len(), 2);
        assert_eq!(device.peers[0], peer(1, "192.0.2.1:51820"));
        assert_eq!(device.peers[1].endpoint, peer(2, "[2001:db8::1]:51821").endpoint);
        assert_eq!(device.peers[1].allowed.len(), 4);
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert_eq!(format!("{:?}", Key([7; 32])), "Key(…)");
    }
}
