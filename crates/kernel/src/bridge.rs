//! Bridges.

use std::net::IpAddr;

use podwire_netlink::rt::address;
use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::{Batch, Message};

use crate::error::{Error, Result};
use crate::host::Host;
use crate::mac::Mac;
use crate::netns::Netns;

const BRIDGE_VLAN_INFO_PVID: u16 = 2; // linux/if_bridge.h
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;
const BRIDGE_VLAN_INFO_RANGE_BEGIN: u16 = 8;
const BRIDGE_VLAN_INFO_RANGE_END: u16 = 16;
// linux/rtnetlink.h: report VLANs as ranges. Single VLANs of a port with thousands do not fit into an answer.
const RTEXT_FILTER_BRVLAN_COMPRESSED: u32 = 4;

/// The prefix length of link-local addresses.
const LINK_LOCAL_PREFIX: u8 = 64;

/// A random id that changes at each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A bridge to create.
#[derive(Clone, Debug)]
pub struct Bridge<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its MTU; 0 is the kernel's default, the smallest of its ports.
    pub mtu: u32,
    /// Whether it is in promiscuous mode.
    pub promiscuous: bool,
    /// Whether it filters VLANs.
    pub vlan_filtering: bool,
}

impl Bridge<'_> {
    /// The bridge, created if it is missing.
    pub fn ensure(&self, host: &mut Host) -> Result<Link> {
        let found = match host.find_link(self.name)? {
            Some(found) => found,
            None => self.create(host)?,
        };
        if found.kind != "bridge" {
            let (name, found) = (self.name.to_string(), found.kind);
            return Err(Error::WrongKind { name, wanted: "bridge", found });
        }
        let mut batch = Batch::new();
        if self.promiscuous && found.flags & link::PROMISC == 0 {
            let doing = format!("set bridge {} promiscuous", self.name);
            batch.push(link::set_flags(found.index, link::PROMISC, link::PROMISC, doing));
        }
        if !found.is_up() {
            batch.push(link::up(&found));
        }
        if !batch.is_empty() {
            host.route.batch(batch)?;
        }
        Ok(found)
    }

    /// The hardware address of a bridge with this name in this namespace, until the next boot. A bridge that was
    /// deleted by hand is recreated with the same address, so that neighbours keep their entries.
    pub fn mac(&self, host: &Host) -> Result<Mac> {
        let netns = match host.netns() {
            Some(netns) => netns.identity()?,
            None => Netns::current()?.identity()?,
        };
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        if boot.is_empty() {
            // A random address is at least unique.
            return Mac::random();
        }
        Ok(Mac::of(&format!("{boot}{netns:?}{}", self.name)))
    }

    /// Creates it, up, with a fixed hardware address: by default a bridge uses the smallest address of its ports, which
    /// changes with the pods and invalidates the entries of neighbours.
    fn create(&self, host: &mut Host) -> Result<Link> {
        let mac = self.mac(host)?;
        let filtering = if self.vlan_filtering { " with VLAN filtering" } else { "" };
        let doing = format!("create bridge {}{filtering}", self.name);
        let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, doing)
            .raw(&link::header(0, link::UP, link::UP))
            .string(a::IFNAME, self.name)
            .bytes(a::ADDRESS, &mac.0)
            .maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu))
            .nest(a::LINKINFO, |m| {
                m.string(a::INFO_KIND, "bridge").nest(a::INFO_DATA, |m| {
                    m.maybe(self.vlan_filtering.then_some(1), |m, on| m.u8(a::BR_VLAN_FILTERING, on))
                })
            });
        match host.route.request(message) {
            // The plugin of another pod was faster.
            Err(error) if error.is_exists() => {}
            other => {
                other?;
                // The node is a router on this link: it must not accept router advertisements.
                let key = format!("net/ipv6/conf/{}/accept_ra", self.name);
                host.run(|| crate::sysctl::ensure_if_there(&key, "0"))??;
                let bridge = host.get_link(self.name)?;
                return add_link_local(host, bridge, mac);
            }
        }
        host.get_link(self.name)
    }
}

/// Gives a new bridge its IPv6 link-local address at once. The kernel takes a bridge's carrier away when its hardware
/// address is set, and would add this address only when a port is up.
fn add_link_local(host: &mut Host, bridge: Link, mac: Mac) -> Result<Link> {
    const FROM_THE_MAC: &str = "0"; // IN6_ADDR_GEN_MODE_EUI64
    let key = format!("net/ipv6/conf/{}/addr_gen_mode", bridge.name);
    if host.run(|| crate::sysctl::read(&key))?.is_ok_and(|mode| mode == FROM_THE_MAC) {
        let address = IpAddr::from(mac.link_local());
        match host.route.request(address::add(bridge.index, address, LINK_LOCAL_PREFIX, true)) {
            // The kernel refuses it where it would add none itself: IPv6 is disabled, or the MTU is too small for it.
            Err(error) if error.errno().is_some() => {}
            other => drop(other?),
        }
    }
    Ok(bridge)
}

/// Makes packets between ports of this bridge pass the IP firewall rules, like routed packets (`br_netfilter`). Other
/// bridges of the node are not changed.
pub fn ensure_seen_by_ip_rules(host: &mut Host, bridge: &Link) -> Result<()> {
    let is_there = host.run(|| std::path::Path::new("/proc/sys/net/bridge").exists())?;
    if !is_there {
        let text =
            "br_netfilter is not loaded, so pods on a bridge cannot be isolated: run modprobe br_netfilter";
        return Err(Error::Other(text.into()));
    }
    let doing = format!("apply IP firewall rules to bridge {}", bridge.name);
    let message = Message::new(libc::RTM_NEWLINK, 0, doing).raw(&link::header(bridge.index, 0, 0)).nest(
        a::LINKINFO,
        |m| {
            m.string(a::INFO_KIND, "bridge")
                .nest(a::INFO_DATA, |m| m.u8(a::BR_NF_CALL_IPTABLES, 1).u8(a::BR_NF_CALL_IP6TABLES, 1))
        },
    );
    Ok(host.route.request(message)?)
}

/// A range of VLANs of a bridge port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlans {
    /// The first VLAN id.
    pub first: u16,
    /// The last VLAN id.
    pub last: u16,
    /// Whether untagged frames belong to it (PVID) and its frames leave untagged.
    pub native: bool,
}

impl Vlans {
    /// Whether the range contains this VLAN.
    pub fn contains(&self, id: u16) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

fn vlan_message(kind: u16, port: &Link, vlans: Vlans, verb: &str) -> Message {
    let mut head = link::header(port.index, 0, 0);
    head[0] = libc::AF_BRIDGE as u8;
    let flags = if vlans.native { BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
    let info = |flags: u16, id: u16| [flags.to_ne_bytes(), id.to_ne_bytes()].concat();
    let doing = format!("{verb} VLANs {}-{} of bridge port {}", vlans.first, vlans.last, port.name);
    Message::new(kind, 0, doing).raw(&head).nest(a::AF_SPEC, |m| {
        if vlans.first == vlans.last {
            return m.bytes(a::AF_SPEC_BRIDGE_VLAN_INFO, &info(flags, vlans.first));
        }
        m.bytes(a::AF_SPEC_BRIDGE_VLAN_INFO, &info(flags | BRIDGE_VLAN_INFO_RANGE_BEGIN, vlans.first))
            .bytes(a::AF_SPEC_BRIDGE_VLAN_INFO, &info(flags | BRIDGE_VLAN_INFO_RANGE_END, vlans.last))
    })
}

/// A message that adds VLANs to a port.
pub fn add_vlans(port: &Link, vlans: Vlans) -> Message {
    vlan_message(libc::RTM_SETLINK, port, vlans, "add")
}

/// A message that removes VLANs from a port.
pub fn delete_vlans(port: &Link, vlans: Vlans) -> Message {
    vlan_message(libc::RTM_DELLINK, port, vlans, "remove")
}

/// The VLANs of a port, as ranges.
pub fn vlans(host: &mut Host, port: u32) -> Result<Vec<Vlans>> {
    let mut head = link::header(0, 0, 0);
    head[0] = libc::AF_BRIDGE as u8;
    let message = Message::new(libc::RTM_GETLINK, 0, format!("list VLANs of port number {port}"))
        .raw(&head)
        .u32(a::EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
    let ports = host.route.list(message, |frame| {
        let index = frame.body.get(4..8).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))?;
        let spec = frame.attrs(16).find(|attr| attr.kind == a::AF_SPEC).filter(|_| index == port)?;
        let infos = spec.nested().filter(|attr| attr.kind == a::AF_SPEC_BRIDGE_VLAN_INFO);
        Some(read_vlans(infos.filter_map(|attr| {
            let word = |at: usize| Some(u16::from_ne_bytes(attr.value.get(at..at + 2)?.try_into().ok()?));
            Some((word(0)?, word(2)?))
        })))
    })?;
    Ok(ports.into_iter().flatten().collect())
}

/// Joins the flags and ids that the kernel reports; a range is reported by its two ends.
fn read_vlans(infos: impl Iterator<Item = (u16, u16)>) -> Vec<Vlans> {
    const NATIVE: u16 = BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED;
    let mut all = Vec::new();
    let mut begin = None;
    for (flags, id) in infos {
        if flags & BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
            begin = Some(id);
            continue;
        }
        let first = begin.take().filter(|_| flags & BRIDGE_VLAN_INFO_RANGE_END != 0).unwrap_or(id);
        all.push(Vlans { first, last: id, native: flags & NATIVE == NATIVE });
    }
    all
}
