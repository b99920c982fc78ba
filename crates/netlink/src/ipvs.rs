//! IPVS, the kernel's load balancer (`linux/ip_vs.h`): its virtual services, listed and deleted by generic netlink.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::attr;
use crate::error::Result;
use crate::genl;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const FAMILY: &str = "IPVS";
const DEL_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const SERVICE: u16 = 1;
const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
/// An address of either family has the size of an IPv6 address.
const ADDRESS_SIZE: usize = 16;

/// A virtual service with an address. Services of packet marks have none and are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualService {
    /// The protocol: `IPPROTO_TCP`, `IPPROTO_UDP` or `IPPROTO_SCTP`.
    pub protocol: u8,
    /// The address and the port.
    pub addr: SocketAddr,
}

impl fmt::Display for VirtualService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VirtualService { protocol, addr } = self;
        match i32::from(*protocol) {
            libc::IPPROTO_TCP => write!(f, "tcp {addr}"),
            libc::IPPROTO_UDP => write!(f, "udp {addr}"),
            libc::IPPROTO_SCTP => write!(f, "sctp {addr}"),
            _ => write!(f, "protocol {protocol} {addr}"),
        }
    }
}

/// Access to IPVS of one namespace.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    family: u16,
}

impl Ipvs {
    /// Opens a socket in the current namespace; `None` if the kernel has not loaded IPVS. Asking generic netlink alone
    /// would load it.
    pub fn open() -> Result<Option<Ipvs>> {
        if !Path::new("/proc/thread-self/net/ip_vs").exists() {
            return Ok(None);
        }
        let mut socket = Socket::generic()?;
        Ok(genl::family(&mut socket, FAMILY)?.map(|family| Ipvs { socket, family }))
    }

    /// The virtual services.
    pub fn services(&mut self) -> Result<Vec<VirtualService>> {
        let request = genl::message(self.family, GET_SERVICE, "list the virtual services of IPVS");
        self.socket.list(request, VirtualService::read)
    }

    /// Deletes a virtual service with its servers.
    pub fn delete(&mut self, service: &VirtualService) -> Result<()> {
        let doing = format!("delete the virtual service {service} of IPVS");
        let request = genl::message(self.family, DEL_SERVICE, doing);
        self.socket.request(request.nest(SERVICE, |m| service.encode(m)))
    }
}

impl VirtualService {
    fn encode(&self, message: Message) -> Message {
        let mut address = match self.addr.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        address.resize(ADDRESS_SIZE, 0);
        let family = if self.addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        message
            .u16(SERVICE_FAMILY, family as u16)
            .u16(SERVICE_PROTOCOL, self.protocol.into())
            .bytes(SERVICE_ADDRESS, &address)
            .be16(SERVICE_PORT, self.addr.port())
    }

    fn read(frame: Frame<'_>) -> Option<VirtualService> {
        let service = frame.attrs(genl::HEADER).find(|attr| attr.kind == SERVICE)?;
        let find = |kind: u16| attr::find(service.value, kind);
        let is_ip4 = i32::from(find(SERVICE_FAMILY)?.u16()?) == libc::AF_INET;
        let address = find(SERVICE_ADDRESS)?.value;
        let ip = attr::ip(address.get(..if is_ip4 { 4 } else { ADDRESS_SIZE })?)?;
        Some(VirtualService {
            protocol: u8::try_from(find(SERVICE_PROTOCOL)?.u16()?).ok()?,
            addr: SocketAddr::new(ip, find(SERVICE_PORT)?.be16()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Frames;

    #[test]
    fn virtual_services_read_back() {
        for (protocol, addr, text) in [
            (6, "10.96.0.1:80", "tcp 10.96.0.1:80"),
            (17, "[fd00:96::1]:53", "udp [fd00:96::1]:53"),
            (132, "10.96.0.1:1", "sctp 10.96.0.1:1"),
        ] {
            let service = VirtualService { protocol, addr: addr.parse().unwrap() };
            let message =
                genl::message(30, GET_SERVICE, "test").nest(SERVICE, |m| service.encode(m)).into_bytes();
            assert_eq!(VirtualService::read(Frames::new(&message).next().unwrap()), Some(service));
            assert_eq!(service.to_string(), text);
        }
    }

    #[test]
    fn a_service_of_a_mark_is_not_listed() {
        let message = genl::message(30, GET_SERVICE, "test").nest(SERVICE, |m| m.u16(1, 2).u32(5, 7));
        assert_eq!(VirtualService::read(Frames::new(&message.into_bytes()).next().unwrap()), None);
    }
}
