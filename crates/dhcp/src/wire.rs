//! Sending and receiving inside of a pod.
//!
//! DHCPv4 goes below IP: before there is an address the kernel would not send it, and afterwards a pod's own firewall and
//! routes are none of our business. DHCPv6 has the link-local address, and a socket like any other. Both are open while an
//! answer is expected and no longer: a lease that rests costs neither a socket nor a wake-up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwire_kernel::rt::address;
use podwire_kernel::{Host, Link};
use podwire_netlink::sys;

use crate::grant::Grant;
use crate::{frame, v4, Error, Result};

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
const CLIENT_PORT6: u16 = 546;
const SERVER_PORT6: u16 = 547;
/// All_DHCP_Relay_Agents_and_Servers.
const SERVERS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const EVERYBODY: [u8; 6] = [0xff; 6];
/// More than an Ethernet frame holds.
const ROOM: usize = 2048;

/// A way to DHCP servers from one interface of one pod.
#[derive(Debug)]
pub enum Wire {
    /// Below IP.
    V4 {
        /// The packet socket.
        socket: OwnedFd,
        /// The link's index in the pod.
        link: u32,
        /// The client's port, once there is an address. Without it the kernel would tell the server that nobody is there;
        /// and in a pod with two interfaces on one network the other one may answer when the server asks for the
        /// address, and get what is for this one.
        port: Option<UdpSocket>,
    },
    /// From the link-local address.
    V6 {
        /// The socket.
        socket: UdpSocket,
        /// The link's index in the pod.
        link: u32,
    },
}

/// A message that came.
#[derive(Debug)]
pub struct Message {
    /// The DHCP message.
    pub bytes: Vec<u8>,
    /// The hardware address from which it came.
    pub from: Option<[u8; 6]>,
}

impl Wire {
    /// For DHCPv4; `held` is the address that the interface has already.
    pub fn v4(pod: &Host, link: &Link, held: Option<Ipv4Addr>) -> Result<Wire> {
        let doing = "open a packet socket in the pod";
        let socket = pod.run(|| sys::packet_socket(link.index, CLIENT_PORT))?.map_err(Error::io(doing))?;
        let open = |address| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((address, CLIENT_PORT))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let port = match held {
            Some(address) => pod.run(|| open(address))?.ok(),
            None => None,
        };
        Ok(Wire::V4 { socket, link: link.index, port })
    }

    /// For DHCPv6.
    pub fn v6(pod: &mut Host, link: &Link) -> Result<Wire> {
        let own = link_local(pod, link)?
            .ok_or_else(|| Error::Other(format!("{} has no link-local address yet", link.name)))?;
        let address = SocketAddrV6::new(own, CLIENT_PORT6, 0, link.index);
        let open = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = pod.run(open)?.map_err(Error::io("open a socket for DHCPv6 in the pod"))?;
        Ok(Wire::V6 { socket, link: link.index })
    }

    /// Sends a message to everyone.
    pub fn shout(&self, message: &[u8]) -> Result<()> {
        match self {
            Wire::V4 { .. } => self.send_v4(message, Ipv4Addr::BROADCAST, EVERYBODY),
            Wire::V6 { socket, link } => {
                let everyone = SocketAddrV6::new(SERVERS6, SERVER_PORT6, 0, *link);
                socket.send_to(message, everyone).map(drop).map_err(Error::io("send a DHCPv6 message"))
            }
        }
    }

    /// Sends a message to the server of a grant, by the way that its last answer came.
    pub fn tell(&self, message: &[u8], grant: &Grant) -> Result<()> {
        match v4::server_address(&grant.server) {
            Some(server) => self.send_v4(message, server, grant.server.mac.unwrap_or(EVERYBODY)),
            None => self.shout(message),
        }
    }

    fn send_v4(&self, message: &[u8], to: Ipv4Addr, mac: [u8; 6]) -> Result<()> {
        let Wire::V4 { socket, link, .. } = self else { return Ok(()) };
        // Whoever has an address has it in the message too (ciaddr), and speaks from it.
        let own = message.get(12..16).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).unwrap_or_default();
        let packet = frame::wrap(own.into(), to, message);
        sys::send_packet(socket.as_fd(), *link, mac, &packet).map_err(Error::io("send a DHCP message"))
    }

    /// The next message, if there is one and it is one. A single one: whoever floods a pod must not keep the daemon from
    /// others.
    pub fn receive(&self) -> Result<Option<Message>> {
        match self {
            Wire::V4 { socket, port, .. } => {
                let mut buffer = [0; ROOM];
                let failed = Error::io("receive a DHCP message");
                let caught = sys::receive_packet(socket.as_fd(), &mut buffer).map_err(failed)?;
                let message = caught.filter(|caught| !caught.outgoing).and_then(|caught| {
                    let bytes = frame::unwrap(&buffer[..caught.length])?;
                    Some(Message { bytes: bytes.to_vec(), from: caught.from })
                });
                match (message, port) {
                    (None, Some(port)) => datagram(port),
                    (message, _) => Ok(message),
                }
            }
            Wire::V6 { socket, .. } => datagram(socket),
        }
    }

    /// What can be waited for.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (first, second) = match self {
            Wire::V4 { socket, port, .. } => (socket.as_fd(), port.as_ref().map(AsFd::as_fd)),
            Wire::V6 { socket, .. } => (socket.as_fd(), None),
        };
        std::iter::once(first).chain(second)
    }
}

fn datagram(socket: &UdpSocket) -> Result<Option<Message>> {
    let mut buffer = [0; ROOM];
    match socket.recv_from(&mut buffer) {
        Ok((length, _)) => Ok(Some(Message { bytes: buffer[..length].to_vec(), from: None })),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(source) => Err(Error::Io { doing: "receive a DHCP message", source }),
    }
}

/// Sends a message to the server of a grant from this process's own network, for a pod that is not there any more.
pub fn tell_from_here(message: &[u8], grant: &Grant) -> Result<()> {
    let Some(server) = v4::server_address(&grant.server) else { return Ok(()) };
    let send = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?.send_to(message, (server, SERVER_PORT));
    send().map(drop).map_err(Error::io("send a DHCP message from the node"))
}

/// The interface's link-local address, once it may be used.
pub fn link_local(pod: &mut Host, link: &Link) -> Result<Option<Ipv6Addr>> {
    let all = address::list(&mut pod.route, link.index)?;
    Ok(all.into_iter().filter(|one| !one.is_tentative()).find_map(|one| match one.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
        _ => None,
    }))
}
