//! Sends and receives DHCP messages inside a pod.
//!
//! DHCPv4 uses a packet socket: without an address the kernel would not send, and later the pod's firewall and routes must not
//! interfere. DHCPv6 uses a UDP socket at the link-local address. A socket is open only while an answer is expected: a bound
//! lease costs neither a socket nor a wakeup.

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
const BROADCAST_MAC: [u8; 6] = [0xff; 6];
/// More than an Ethernet frame holds.
const MAX_FRAME: usize = 2048;

/// The DHCP socket of one interface of a pod.
#[derive(Debug)]
pub enum DhcpSocket {
    /// DHCPv4.
    V4 {
        /// The packet socket.
        socket: OwnedFd,
        /// The link's index in the pod.
        link: u32,
        /// The client port, once there is an address. Without it the kernel would answer "port unreachable" to the server.
        /// And in a pod with two interfaces on one network, the other interface may answer ARP requests for the address and
        /// receive the packets of this one.
        port: Option<UdpSocket>,
    },
    /// DHCPv6.
    V6 {
        /// The socket.
        socket: UdpSocket,
        /// The link's index in the pod.
        link: u32,
    },
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The DHCP message.
    pub bytes: Vec<u8>,
    /// The sender's MAC address.
    pub from: Option<[u8; 6]>,
}

impl DhcpSocket {
    /// For DHCPv4; `address` is the address of the interface, if it has one.
    pub fn v4(pod: &Host, link: &Link, address: Option<Ipv4Addr>) -> Result<DhcpSocket> {
        let doing = "open a packet socket in the pod";
        let socket = pod.run(|| sys::packet_socket(link.index, CLIENT_PORT))?.map_err(Error::io(doing))?;
        let open = |address| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((address, CLIENT_PORT))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let port = match address {
            Some(address) => pod.run(|| open(address))?.ok(),
            None => None,
        };
        Ok(DhcpSocket::V4 { socket, link: link.index, port })
    }

    /// For DHCPv6.
    pub fn v6(pod: &mut Host, link: &Link) -> Result<DhcpSocket> {
        let own = link_local(pod, link)?
            .ok_or_else(|| Error::Other(format!("{} has no link-local address yet", link.name)))?;
        let address = SocketAddrV6::new(own, CLIENT_PORT6, 0, link.index);
        let open = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = pod.run(open)?.map_err(Error::io("open a socket for DHCPv6 in the pod"))?;
        Ok(DhcpSocket::V6 { socket, link: link.index })
    }

    /// Sends a message to all servers.
    pub fn broadcast(&self, message: &[u8]) -> Result<()> {
        match self {
            DhcpSocket::V4 { .. } => self.send_v4(message, Ipv4Addr::BROADCAST, BROADCAST_MAC),
            DhcpSocket::V6 { socket, link } => {
                let all_servers = SocketAddrV6::new(SERVERS6, SERVER_PORT6, 0, *link);
                socket.send_to(message, all_servers).map(drop).map_err(Error::io("send a DHCPv6 message"))
            }
        }
    }

    /// Sends a message to the server of a grant, to the MAC address of its last answer.
    pub fn send_to_server(&self, message: &[u8], grant: &Grant) -> Result<()> {
        match v4::server_address(&grant.server) {
            Some(server) => self.send_v4(message, server, grant.server.mac.unwrap_or(BROADCAST_MAC)),
            None => self.broadcast(message),
        }
    }

    fn send_v4(&self, message: &[u8], to: Ipv4Addr, mac: [u8; 6]) -> Result<()> {
        let DhcpSocket::V4 { socket, link, .. } = self else { return Ok(()) };
        // The source address is that of the message (ciaddr).
        let own = message.get(12..16).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).unwrap_or_default();
        let packet = frame::wrap(own.into(), to, message);
        sys::send_packet(socket.as_fd(), *link, mac, &packet).map_err(Error::io("send a DHCP message"))
    }

    /// The next message, if there is a valid one. Only one: a host that floods a pod must not keep the daemon from the
    /// others.
    pub fn receive(&self) -> Result<Option<Message>> {
        match self {
            DhcpSocket::V4 { socket, port, .. } => {
                let mut buffer = [0; MAX_FRAME];
                let failed = Error::io("receive a DHCP message");
                let frame = sys::receive_packet(socket.as_fd(), &mut buffer).map_err(failed)?;
                let message = frame.filter(|frame| !frame.outgoing).and_then(|frame| {
                    let bytes = frame::unwrap(&buffer[..frame.length])?;
                    Some(Message { bytes: bytes.to_vec(), from: frame.from })
                });
                match (message, port) {
                    (None, Some(port)) => datagram(port),
                    (message, _) => Ok(message),
                }
            }
            DhcpSocket::V6 { socket, .. } => datagram(socket),
        }
    }

    /// The descriptors to poll.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (first, second) = match self {
            DhcpSocket::V4 { socket, port, .. } => (socket.as_fd(), port.as_ref().map(AsFd::as_fd)),
            DhcpSocket::V6 { socket, .. } => (socket.as_fd(), None),
        };
        std::iter::once(first).chain(second)
    }
}

fn datagram(socket: &UdpSocket) -> Result<Option<Message>> {
    let mut buffer = [0; MAX_FRAME];
    match socket.recv_from(&mut buffer) {
        Ok((length, _)) => Ok(Some(Message { bytes: buffer[..length].to_vec(), from: None })),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(source) => Err(Error::Io { doing: "receive a DHCP message", source }),
    }
}

/// Sends a message to the server of a grant from the host's network, for a pod that is gone.
pub fn send_from_host(message: &[u8], grant: &Grant) -> Result<()> {
    let Some(server) = v4::server_address(&grant.server) else { return Ok(()) };
    let send = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?.send_to(message, (server, SERVER_PORT));
    send().map(drop).map_err(Error::io("send a DHCP message from the node"))
}

/// The interface's link-local address, if it is not tentative.
pub fn link_local(pod: &mut Host, link: &Link) -> Result<Option<Ipv6Addr>> {
    let all = address::list(&mut pod.route, link.index)?;
    Ok(all.into_iter().filter(|one| !one.is_tentative()).find_map(|one| match one.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
        _ => None,
    }))
}
