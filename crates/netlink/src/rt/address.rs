//! Addresses of links (`linux/if_addr.h`).

use std::net::{IpAddr, Ipv6Addr};

use podwire_ip::IpFamily;

use super::address_family;
use crate::error::Result;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_ANYCAST: u16 = 5;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection: the address may be used at once.
const IFA_F_NODAD: u32 = 0x02;
/// Duplicate address detection found a duplicate.
const IFA_F_DADFAILED: u32 = 0x08;
/// Duplicate address detection is under way.
const IFA_F_TENTATIVE: u32 = 0x40;

/// An address on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link's index.
    pub link: u32,
    /// The address.
    pub ip: IpAddr,
    /// The length of its prefix.
    pub prefix: u8,
    /// The broadcast address, if it has one.
    pub broadcast: Option<IpAddr>,
    /// `RT_SCOPE_…`.
    pub scope: u8,
    /// `IFA_F_…`.
    pub flags: u32,
}

impl Address {
    /// Whether it waits for duplicate address detection.
    pub fn is_tentative(&self) -> bool {
        self.flags & IFA_F_TENTATIVE != 0
    }

    /// Whether duplicate address detection found a duplicate.
    pub fn is_duplicate(&self) -> bool {
        self.flags & IFA_F_DADFAILED != 0
    }

    /// A message that adds the unchanged address to `link`, without duplicate address detection.
    pub fn add_to(&self, link: u32) -> Message {
        let Address { ip, prefix, .. } = *self;
        let mut head = header(&ip, prefix, link);
        head[3] = self.scope;
        Message::new(libc::RTM_NEWADDR, super::CREATE, format!("add address {ip}/{prefix}"))
            .raw(&head)
            .ip(IFA_LOCAL, ip)
            .ip(IFA_ADDRESS, ip)
            .maybe(self.broadcast, |m, broadcast| m.ip(IFA_BROADCAST, broadcast))
            .maybe(ip.is_ipv6().then_some(IFA_F_NODAD), |m, flags| m.u32(IFA_FLAGS, flags))
    }

    /// Reads an address from `RTM_NEWADDR`.
    pub fn read(frame: Frame<'_>) -> Option<Address> {
        if frame.kind != libc::RTM_NEWADDR {
            return None;
        }
        let head = frame.body.get(..8)?;
        let link = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let (mut local, mut address, mut broadcast, mut flags) = (None, None, None, u32::from(head[2]));
        for attr in frame.attrs(8) {
            match attr.kind {
                IFA_LOCAL => local = attr.ip(),
                IFA_ADDRESS => address = attr.ip(),
                IFA_BROADCAST => broadcast = attr.ip(),
                IFA_FLAGS => flags = attr.u32()?,
                _ => {}
            }
        }
        // On a point-to-point link IFA_ADDRESS is the peer's address; IFA_LOCAL is always the own one.
        Some(Address { link, ip: local.or(address)?, prefix: head[1], broadcast, scope: head[3], flags })
    }
}

fn header(ip: &IpAddr, prefix: u8, link: u32) -> [u8; 8] {
    // Loopback addresses are valid only on this host.
    let scope = if ip.is_loopback() { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    let mut head = [address_family(IpFamily::of(*ip)), prefix, 0, scope, 0, 0, 0, 0];
    head[4..].copy_from_slice(&link.to_ne_bytes());
    head
}

/// A message that adds an address to a link. With `dad` the kernel first performs duplicate address detection, which
/// takes a second or two and is useless on a link with only one known peer.
pub fn add(link: u32, ip: IpAddr, prefix: u8, dad: bool) -> Message {
    let message = Message::new(libc::RTM_NEWADDR, super::CREATE, format!("add address {ip}/{prefix}"))
        .raw(&header(&ip, prefix, link))
        .ip(IFA_LOCAL, ip)
        .ip(IFA_ADDRESS, ip);
    match ip {
        IpAddr::V4(v4) if prefix < 31 => {
            let broadcast = u32::from(v4) | (u32::MAX >> prefix);
            message.bytes(IFA_BROADCAST, &broadcast.to_be_bytes())
        }
        IpAddr::V6(_) if !dad => message.u32(IFA_FLAGS, IFA_F_NODAD),
        _ => message,
    }
}

/// A message that deletes an address of a link.
pub fn delete(link: u32, ip: IpAddr, prefix: u8) -> Message {
    Message::new(libc::RTM_DELADDR, 0, format!("remove address {ip}/{prefix}"))
        .raw(&header(&ip, prefix, link))
        .ip(IFA_LOCAL, ip)
}

/// The addresses of a link, or of all links with index 0, of both families.
pub fn list(route: &mut Socket, link: u32) -> Result<Vec<Address>> {
    let mut head = [0; 8];
    head[4..].copy_from_slice(&link.to_ne_bytes());
    let message =
        Message::new(libc::RTM_GETADDR, 0, format!("list addresses of link number {link}")).raw(&head);
    let mut all = route.list(message, Address::read)?;
    all.retain(|address| link == 0 || address.link == link);
    Ok(all)
}

/// The anycast addresses of all links. A router has one for each IPv6 network of a link, with zeros after the prefix. The
/// kernel accepts no TCP connection to it.
pub fn list_anycast(route: &mut Socket) -> Result<Vec<Ipv6Addr>> {
    let mut head = [0; 8];
    head[0] = libc::AF_INET6 as u8;
    let message = Message::new(libc::RTM_GETANYCAST, 0, "list anycast addresses").raw(&head);
    route.list(message, |frame| {
        let address = frame.attrs(8).find(|attr| attr.kind == IFA_ANYCAST)?;
        match address.ip()? {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        }
    })
}
