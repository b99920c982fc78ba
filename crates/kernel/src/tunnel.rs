//! A tunnel link to other nodes: VXLAN, IPIP or WireGuard. It is created if it is missing, changed where the kernel
//! allows that, and otherwise recreated.

use std::fmt;

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::Message;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::ipip::Ipip;
use crate::mac::Mac;
use crate::vxlan::Vxlan;

/// The driver of a tunnel and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Ethernet frames in UDP.
    Vxlan(Vxlan),
    /// IPv4 in IPv4.
    Ipip(Ipip),
    /// Encrypted packets in UDP. Keys and peers are set by [`podwire_netlink::wireguard`].
    Wireguard,
}

/// The desired link of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: Driver,
    /// MTU.
    pub mtu: u32,
    /// The hardware address; `None` keeps the existing one, and a new link gets a random one.
    pub mac: Option<Mac>,
    /// The alias that marks the owner. An existing alias is not overwritten.
    pub alias: &'static str,
}

/// The result of [`Tunnel::ensure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The link as it is now.
    pub link: Link,
    /// A text for each change; empty if the link was as desired.
    pub done: Vec<String>,
    /// Whether the link was created, so that it has no addresses, routes or neighbours yet.
    pub is_new: bool,
}

impl Tunnel {
    /// Makes the link as desired. `found` is the existing link of that name. A link of another kind is an error.
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
            Some(current) if self.driver.can_change_from(&current) => self.change(host, found, current),
            current => {
                let was = current.map_or("of unknown settings".into(), |driver| driver.to_string());
                self.recreate(host, &found, format!("delete {}, which was {was}", self.name))
            }
        }
    }

    fn recreate(&self, host: &mut Host, old: &Link, reason: String) -> Result<Ensured> {
        host.route.request(link::delete(old))?;
        // Peers identify the device by its hardware address, so it stays the same.
        let mac = self.mac.or(<[u8; 6]>::try_from(old.mac.as_slice()).ok().map(Mac).filter(Mac::is_usable));
        Tunnel { mac, ..self.clone() }.create(host, vec![reason])
    }

    fn create(&self, host: &mut Host, mut done: Vec<String>) -> Result<Ensured> {
        // udev (systemd's MACAddressPolicy) changes an address that the kernel generated, a moment after peers have
        // learned it. It does not change an address that was set explicitly.
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
        self.reject_router_advertisements(host)?;
        let created = host.get_link(&self.name)?;
        let up = link::set_flags(created.index, link::UP, link::UP, format!("bring {} up", self.name));
        host.route.request(up.string(a::IFALIAS, self.alias))?;
        Ok(Ensured { link: host.get_link(&self.name)?, done, is_new: true })
    }

    /// The node is a router on this link: it must not accept router advertisements. Netlink shows this setting and
    /// cannot change it. Where /proc/sys is read-only, the guard of the tunnels
    /// ([`crate::firewall::tunnel`]) still drops router advertisements. Returns whether the setting changed.
    fn reject_router_advertisements(&self, host: &Host) -> Result<bool> {
        let key = format!("net/ipv6/conf/{}/accept_ra", self.name);
        host.run(|| crate::sysctl::ensure_if_writable(&key, "0"))?
    }

    fn change(&self, host: &mut Host, found: Link, current: Driver) -> Result<Ensured> {
        let mut repaired = Vec::new();
        // A program changed it, or the agent ended between the creation of the link and this step.
        if found.accept_ra.is_some_and(|value| value != 0) && self.reject_router_advertisements(host)? {
            repaired.push(format!("set accept_ra of {} to 0", self.name));
        }
        let mut messages = Vec::new();
        let name = &self.name;
        if current != self.driver {
            let message = Message::new(libc::RTM_NEWLINK, 0, format!("change {name} to {}", self.driver))
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
            let doing = format!("set the alias of {name}");
            messages.push(link::change(found.index, doing).string(a::IFALIAS, self.alias));
        }
        if !found.is_up() {
            messages.push(link::up(&found));
        }
        if messages.is_empty() {
            return Ok(Ensured { link: found, done: repaired, is_new: false });
        }
        let done =
            repaired.into_iter().chain(messages.iter().map(|message| message.doing().into())).collect();
        for message in messages {
            match host.route.request(message) {
                // An older kernel that cannot change this setting.
                Err(error) if error.is_unsupported() => {
                    return self.recreate(host, &found, format!("delete {name}: {error}"))
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
    /// The name of the driver.
    pub fn kind(&self) -> &'static str {
        match self {
            Driver::Vxlan(_) => Vxlan::KIND,
            Driver::Ipip(_) => Ipip::KIND,
            Driver::Wireguard => "wireguard",
        }
    }

    /// The driver and settings of `link`, if it is one of these tunnels.
    pub fn of(link: &Link) -> Option<Driver> {
        match link.kind.as_str() {
            Vxlan::KIND => Vxlan::of(link).map(Driver::Vxlan),
            Ipip::KIND => Ipip::of(link).map(Driver::Ipip),
            "wireguard" => Some(Driver::Wireguard),
            _ => None,
        }
    }

    fn can_change_from(&self, found: &Driver) -> bool {
        match (self, found) {
            (Driver::Vxlan(wanted), Driver::Vxlan(found)) => wanted.can_change_from(found),
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
