//! A link of the node that leads to other machines: VXLAN, IPIP or WireGuard. It is made if it is missing, changed where
//! the kernel lets it be changed, and made anew where not.

use std::fmt;

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::Message;

use crate::ipip::Ipip;
use crate::vxlan::Vxlan;
use crate::{Error, Host, Mac, Result};

/// What drives a tunnel, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Frames in UDP.
    Vxlan(Vxlan),
    /// IPv4 in IPv4.
    Ipip(Ipip),
    /// Packets, encrypted, in UDP. Keys and peers are set by [`podwire_netlink::wireguard`].
    Wireguard,
}

/// What a tunnel's link is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its name.
    pub name: String,
    /// What drives it.
    pub driver: Driver,
    /// MTU.
    pub mtu: u32,
    /// Hardware address; `None` leaves it as it is, and gives a new link a random one.
    pub mac: Option<Mac>,
    /// A note on it that says whose it is. A note of somebody else is not overwritten.
    pub alias: &'static str,
}

/// What [`Tunnel::ensure`] found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The link as it is now.
    pub link: Link,
    /// What was done to it, in words; empty if it was as wanted.
    pub done: Vec<String>,
    /// Whether it is not the link that was there: nothing hangs on it yet.
    pub is_new: bool,
}

impl Tunnel {
    /// Sees to it that the link is as wanted. `found` is the link of that name, if there is one; one of another kind is
    /// somebody else's, and an error.
    pub fn ensure(&self, host: &mut Host, found: Option<Link>) -> Result<Ensured> {
        let Some(found) = found else { return self.create(host, Vec::new()) };
        if found.kind != self.driver.kind() {
            let kind = if found.kind.is_empty() { "device".into() } else { found.kind };
            return Err(Error::WrongKind {
                name: self.name.clone(),
                wanted: self.driver.kind(),
                found: kind,
            });
        }
        match Driver::of(&found) {
            Some(there) if self.driver.can_follow(&there) => self.change(host, found, there),
            there => {
                let was = there.map_or("another".into(), |driver| driver.to_string());
                self.create_anew(host, &found, format!("delete {}, which was {was}", self.name))
            }
        }
    }

    fn create_anew(&self, host: &mut Host, old: &Link, why: String) -> Result<Ensured> {
        host.route.request(link::delete(old))?;
        // Peers know it by its hardware address: it stays the same.
        let mac = self.mac.or(<[u8; 6]>::try_from(old.mac.as_slice()).ok().map(Mac).filter(Mac::is_usable));
        Tunnel { mac, ..self.clone() }.create(host, vec![why])
    }

    fn create(&self, host: &mut Host, mut done: Vec<String>) -> Result<Ensured> {
        // A hardware address that the kernel made up would be changed by udev (systemd's MACAddressPolicy) a moment later,
        // when peers know it already; one that was given is let alone.
        let mac = match self.mac {
            None if self.driver.has_mac() => Some(Mac::random()?),
            given => given.filter(|_| self.driver.has_mac()),
        };
        let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("create {self}"))
            .raw(&link::header(0, 0, 0))
            .string(a::IFNAME, &self.name)
            .u32(a::MTU, self.mtu)
            .maybe(mac, |m, mac| m.bytes(a::ADDRESS, &mac.0))
            .nest(a::LINKINFO, |m| self.driver.describe(m));
        done.push(message.doing().into());
        host.route.request(message)?;
        // A router's leg, not a host that listens to routers.
        let key = format!("net/ipv6/conf/{}/accept_ra", self.name);
        host.run(|| crate::sysctl::ensure_if_there(&key, "0"))??;
        let born = host.get_link(&self.name)?;
        let dress = link::set_flags(born.index, link::UP, link::UP, format!("bring {} up", self.name));
        host.route.request(dress.string(a::IFALIAS, self.alias))?;
        Ok(Ensured { link: host.get_link(&self.name)?, done, is_new: true })
    }

    fn change(&self, host: &mut Host, found: Link, there: Driver) -> Result<Ensured> {
        let mut messages = Vec::new();
        let name = &self.name;
        if there != self.driver {
            let message = Message::new(libc::RTM_NEWLINK, 0, format!("make {name} {}", self.driver))
                .raw(&link::header(found.index, 0, 0));
            messages.push(message.nest(a::LINKINFO, |m| self.driver.describe_change(m)));
        }
        if found.mtu != self.mtu {
            let doing = format!("set the MTU of {name} to {}, not {}", self.mtu, found.mtu);
            messages.push(link::change(found.index, doing).u32(a::MTU, self.mtu));
        }
        let mac = self.mac.filter(|mac| self.driver.has_mac() && mac.0[..] != found.mac[..]);
        if let Some(mac) = mac {
            let doing = format!("set the hardware address of {name} to {mac}, not {}", found.mac_text());
            messages.push(link::change(found.index, doing).bytes(a::ADDRESS, &mac.0));
        }
        if found.alias.is_empty() {
            let doing = format!("note on {name} whose it is");
            messages.push(link::change(found.index, doing).string(a::IFALIAS, self.alias));
        }
        if !found.is_up() {
            messages.push(link::up(&found));
        }
        let done: Vec<String> = messages.iter().map(|message| message.doing().into()).collect();
        if done.is_empty() {
            return Ok(Ensured { link: found, done, is_new: false });
        }
        for message in messages {
            match host.route.request(message) {
                // An old kernel that cannot change what a newer one can.
                Err(error) if error.is_unsupported() => {
                    return self.create_anew(host, &found, format!("delete {name}: {error}"))
                }
                other => other?,
            }
        }
        Ok(Ensured { link: host.get_link(name)?, done, is_new: false })
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.name, self.driver)
    }
}

impl Driver {
    /// Its name.
    pub fn kind(&self) -> &'static str {
        match self {
            Driver::Vxlan(_) => Vxlan::KIND,
            Driver::Ipip(_) => Ipip::KIND,
            Driver::Wireguard => "wireguard",
        }
    }

    /// What drives `link`, if it is a tunnel as meant here.
    pub fn of(link: &Link) -> Option<Driver> {
        match link.kind.as_str() {
            Vxlan::KIND => Vxlan::of(link).map(Driver::Vxlan),
            Ipip::KIND => Ipip::of(link).map(Driver::Ipip),
            "wireguard" => Some(Driver::Wireguard),
            _ => None,
        }
    }

    fn can_follow(&self, found: &Driver) -> bool {
        match (self, found) {
            (Driver::Vxlan(wanted), Driver::Vxlan(found)) => wanted.can_follow(found),
            (Driver::Ipip(_), Driver::Ipip(_)) | (Driver::Wireguard, Driver::Wireguard) => true,
            _ => false,
        }
    }

    fn has_mac(&self) -> bool {
        matches!(self, Driver::Vxlan(_))
    }

    fn describe(&self, message: Message) -> Message {
        let message = message.string(a::INFO_KIND, self.kind());
        match self {
            Driver::Vxlan(vxlan) => message.nest(a::INFO_DATA, |m| vxlan.describe(m)),
            Driver::Ipip(ipip) => message.nest(a::INFO_DATA, |m| ipip.describe(m)),
            Driver::Wireguard => message,
        }
    }

    fn describe_change(&self, message: Message) -> Message {
        match self {
            Driver::Vxlan(vxlan) => {
                message.string(a::INFO_KIND, self.kind()).nest(a::INFO_DATA, |m| vxlan.describe_change(m))
            }
            _ => self.describe(message),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Driver::Vxlan(vxlan) => vxlan.fmt(f),
            Driver::Ipip(ipip) => ipip.fmt(f),
            Driver::Wireguard => f.write_str("WireGuard"),
        }
    }
}
