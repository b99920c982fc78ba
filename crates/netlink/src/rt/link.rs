//! Links, as in `ip link` (`linux/if_link.h`).

use crate::attr::Attr;
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

#[allow(missing_docs)]
pub mod attribute {
    //! `IFLA_…` and nested attributes, from `linux/if_link.h`.
    pub const ADDRESS: u16 = 1;
    pub const IFNAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const LINK: u16 = 5;
    pub const MASTER: u16 = 10;
    pub const TXQLEN: u16 = 13;
    pub const OPERSTATE: u16 = 16;
    pub const LINKINFO: u16 = 18;
    pub const IFALIAS: u16 = 20;
    pub const STATS64: u16 = 23;
    pub const AF_SPEC: u16 = 26;
    pub const GROUP: u16 = 27;
    pub const NET_NS_FD: u16 = 28;
    pub const EXT_MASK: u16 = 29;
    pub const PROMISCUITY: u16 = 30;
    pub const NUM_TX_QUEUES: u16 = 31;
    pub const NUM_RX_QUEUES: u16 = 32;
    pub const LINK_NETNSID: u16 = 37;
    pub const TARGET_NETNSID: u16 = 46;
    pub const PERM_ADDRESS: u16 = 54;
    pub const PARENT_DEV_NAME: u16 = 56;
    pub const ALLMULTI: u16 = 61;
    pub const INFO_KIND: u16 = 1;
    pub const INFO_DATA: u16 = 2;
    pub const INFO_SLAVE_KIND: u16 = 4;
    pub const INFO_SLAVE_DATA: u16 = 5;
    pub const VETH_INFO_PEER: u16 = 1;
    pub const MACVLAN_MODE: u16 = 1;
    pub const MACVLAN_BC_QUEUE_LEN: u16 = 7;
    pub const IPVLAN_MODE: u16 = 1;
    pub const IPVLAN_FLAGS: u16 = 2;
    pub const VLAN_ID: u16 = 1;
    pub const BR_VLAN_FILTERING: u16 = 7;
    pub const BR_NF_CALL_IPTABLES: u16 = 36;
    pub const BR_NF_CALL_IP6TABLES: u16 = 37;
    pub const BRPORT_MODE: u16 = 4;
    pub const BRPORT_ISOLATED: u16 = 33;
    pub const INET_CONF: u16 = 1;
    pub const INET6_CONF: u16 = 2;
    pub const INET6_ADDR_GEN_MODE: u16 = 8;
    pub const AF_SPEC_BRIDGE_VLAN_INFO: u16 = 2;
    pub const VRF_TABLE: u16 = 1;
    pub const VXLAN_ID: u16 = 1;
    pub const VXLAN_LINK: u16 = 3;
    pub const VXLAN_LOCAL: u16 = 4;
    pub const VXLAN_LEARNING: u16 = 7;
    pub const VXLAN_PORT: u16 = 15;
    pub const VXLAN_LOCAL6: u16 = 17;
    pub const VXLAN_GBP: u16 = 23;
    pub const VXLAN_DF: u16 = 29;
    pub const IPTUN_LOCAL: u16 = 2;
    pub const IPTUN_REMOTE: u16 = 3;
    pub const TUN_OWNER: u16 = 1;
    pub const TUN_GROUP: u16 = 2;
    pub const TUN_PERSIST: u16 = 6;
    pub const TUN_MULTI_QUEUE: u16 = 7;
}
use attribute as a;

/// The device is administratively up (`IFF_UP`).
pub const UP: u32 = libc::IFF_UP as u32;
/// The device is a loopback.
pub const LOOPBACK: u32 = libc::IFF_LOOPBACK as u32;
/// The device is in promiscuous mode.
pub const PROMISC: u32 = libc::IFF_PROMISC as u32;
/// The device receives all multicast frames.
pub const ALLMULTI: u32 = libc::IFF_ALLMULTI as u32;
/// The device has a carrier (`IFF_LOWER_UP` of linux/if.h).
pub const CARRIER: u32 = 1 << 16;
/// `IF_OPER_UP` of RFC 2863: packets pass.
pub const OPER_UP: u8 = 6;

/// The positions of `IPV4_DEVCONF_ROUTE_LOCALNET` (linux/ip.h, counted from 1) and `DEVCONF_ACCEPT_RA` (linux/ipv6.h,
/// counted from 0) in a link's settings.
const ROUTE_LOCALNET: usize = 25;
const ACCEPT_RA: usize = 3;

/// Omit statistics (`RTEXT_FILTER_SKIP_STATS`).
const SKIP_STATS: u32 = 1 << 3;

/// A link as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `IFF_…` flags.
    pub flags: u32,
    /// Its hardware address.
    pub mac: Vec<u8>,
    /// Its MTU.
    pub mtu: u32,
    /// Its transmit queue length.
    pub tx_queue: u32,
    /// RFC 2863 state; see [`OPER_UP`].
    pub operstate: u8,
    /// The bridge (or other master) that it is a port of.
    pub master: Option<u32>,
    /// The index of the other end or of the parent, which may be in another namespace.
    pub link: Option<u32>,
    /// The number of the namespace of the other end or of the parent, if it is another namespace.
    pub link_netns: Option<i32>,
    /// The driver: `veth`, `bridge`, `ifb`…
    pub kind: String,
    /// The permanent hardware address, if it has one (since Linux 5.6).
    pub permanent_mac: Vec<u8>,
    /// The name of the device on its bus, such as a PCI address, if it has one (since Linux 5.14).
    pub parent: String,
    /// Its alias.
    pub alias: String,
    /// The number of requests for promiscuous mode.
    pub promiscuity: u32,
    /// The driver's settings: the attributes of `IFLA_INFO_DATA`; see [`setting`](Link::setting).
    pub driver: Vec<u8>,
    /// For a bridge: whether it filters VLANs.
    pub vlan_filtering: bool,
    /// For a bridge port: whether frames may leave by the port they came from.
    pub hairpin: bool,
    /// For a bridge port: whether it is isolated from other isolated ports.
    pub isolated: bool,
    /// The sysctl `route_localnet`: whether it accepts loopback addresses; `None` without IPv4.
    pub route_localnet: Option<bool>,
    /// The sysctl `accept_ra`: whether it accepts router advertisements; `None` without IPv6.
    pub accept_ra: Option<u32>,
}

impl Link {
    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & UP != 0
    }

    /// Whether it has a carrier.
    pub fn has_carrier(&self) -> bool {
        self.flags & CARRIER != 0
    }

    /// Whether it has IPv6: the kernel may lack it, or the link's MTU may be too small.
    pub fn has_ipv6(&self) -> bool {
        self.accept_ra.is_some()
    }

    /// A setting of the driver.
    pub fn setting(&self, attribute: u16) -> Option<Attr<'_>> {
        crate::attr::find(&self.driver, attribute)
    }

    /// Its hardware address as text; empty if it has none.
    pub fn mac_text(&self) -> String {
        mac_text(&self.mac)
    }

    /// Reads a link from `RTM_NEWLINK` (or `RTM_DELLINK`).
    pub fn read(frame: Frame<'_>) -> Option<Link> {
        if frame.kind != libc::RTM_NEWLINK && frame.kind != libc::RTM_DELLINK {
            return None;
        }
        let head = frame.body.get(..16)?;
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut link = Link { index: word(4), flags: word(8), ..Link::default() };
        for attr in frame.attrs(16) {
            match attr.kind {
                a::IFNAME => link.name = attr.string(),
                a::ADDRESS => link.mac = attr.value.to_vec(),
                a::MTU => link.mtu = attr.u32().unwrap_or(0),
                a::TXQLEN => link.tx_queue = attr.u32().unwrap_or(0),
                a::OPERSTATE => link.operstate = attr.u8().unwrap_or(0),
                a::MASTER => link.master = attr.u32(),
                a::LINK => link.link = attr.u32(),
                a::LINK_NETNSID => link.link_netns = attr.u32().map(|id| id as i32),
                a::IFALIAS => link.alias = attr.string(),
                a::PERM_ADDRESS => link.permanent_mac = attr.value.to_vec(),
                a::PARENT_DEV_NAME => link.parent = attr.string(),
                a::PROMISCUITY => link.promiscuity = attr.u32().unwrap_or(0),
                a::LINKINFO => link.read_info(attr),
                // In messages of a bridge (AF_BRIDGE) this attribute has another format.
                a::AF_SPEC if head[0] == libc::AF_UNSPEC as u8 => link.read_families(attr),
                _ => {}
            }
        }
        Some(link)
    }

    fn read_families(&mut self, families: Attr<'_>) {
        let word = |family: Attr<'_>, settings: u16, at: usize| {
            let settings = family.nested().find(|attr| attr.kind == settings)?.value;
            Some(u32::from_ne_bytes(settings.get(at * 4..at * 4 + 4)?.try_into().ok()?))
        };
        for family in families.nested() {
            match i32::from(family.kind) {
                libc::AF_INET => {
                    self.route_localnet = word(family, a::INET_CONF, ROUTE_LOCALNET).map(|on| on != 0);
                }
                libc::AF_INET6 => self.accept_ra = word(family, a::INET6_CONF, ACCEPT_RA),
                _ => {}
            }
        }
    }

    fn read_info(&mut self, info: Attr<'_>) {
        let byte = |data: Attr<'_>, kind| data.nested().find(|a| a.kind == kind).and_then(|a| a.u8());
        for attr in info.nested() {
            match attr.kind {
                a::INFO_KIND => self.kind = attr.string(),
                a::INFO_DATA => {
                    self.driver = attr.value.to_vec();
                    self.vlan_filtering =
                        self.kind == "bridge" && byte(attr, a::BR_VLAN_FILTERING) == Some(1);
                }
                a::INFO_SLAVE_DATA => {
                    self.hairpin = byte(attr, a::BRPORT_MODE) == Some(1);
                    self.isolated = byte(attr, a::BRPORT_ISOLATED) == Some(1);
                }
                _ => {}
            }
        }
    }
}

/// Whether a notice reports the deletion of a link, and not that it left a bridge: a bridge also sends `RTM_DELLINK` then,
/// with the family `AF_BRIDGE`.
pub fn is_deletion(frame: Frame<'_>) -> bool {
    frame.kind == libc::RTM_DELLINK && frame.body.first() == Some(&(libc::AF_UNSPEC as u8))
}

/// A hardware address as text.
pub fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// `struct ifinfomsg` for the link with this index; 0 if a name attribute selects the link.
pub fn header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

/// The link named `name`.
pub fn by_name(route: &mut Socket, name: &str) -> Result<Link> {
    let message = Message::new(libc::RTM_GETLINK, 0, format!("look up link {name}"))
        .raw(&header(0, 0, 0))
        .string(a::IFNAME, name)
        .u32(a::EXT_MASK, SKIP_STATS);
    route.query(message, Link::read)
}

/// The index and the hardware address of the link named `name`; the other fields are empty. The kernel answers without
/// the RTNL lock, for which [`by_name`] waits while any link of the host is changed.
pub fn peek(route: &Socket, name: &str) -> Result<Link> {
    let (index, mac) = route.interface(name)?;
    Ok(Link { index, name: name.to_owned(), mac: mac.to_vec(), ..Link::default() })
}

/// The link with index `index`.
pub fn by_index(route: &mut Socket, index: u32) -> Result<Link> {
    let message = Message::new(libc::RTM_GETLINK, 0, format!("look up link number {index}"))
        .raw(&header(index, 0, 0))
        .u32(a::EXT_MASK, SKIP_STATS);
    route.query(message, Link::read)
}

/// What a link has received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Traffic {
    pub received_packets: u64,
    pub sent_packets: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// The traffic of the link with index `index` in the namespace that this one knows by the number `netns`
/// ([`Link::link_netns`]).
pub fn traffic_in(route: &mut Socket, netns: i32, index: u32) -> Result<Traffic> {
    let doing = format!("read the counters of link number {index} of namespace {netns}");
    let message = Message::new(libc::RTM_GETLINK, 0, doing)
        .raw(&header(index, 0, 0))
        .u32(a::TARGET_NETNSID, netns as u32);
    route.query(message, |frame| {
        let stats = frame.attrs(16).find(|attr| attr.kind == a::STATS64)?.value;
        let number = |at: usize| Some(u64::from_ne_bytes(stats.get(at * 8..at * 8 + 8)?.try_into().ok()?));
        Some(Traffic {
            received_packets: number(0)?,
            sent_packets: number(1)?,
            received_bytes: number(2)?,
            sent_bytes: number(3)?,
        })
    })
}

/// The link named `name`, if there is one; `None` also for an invalid name.
pub fn find(route: &mut Socket, name: &str) -> Result<Option<Link>> {
    match name.len() < libc::IFNAMSIZ {
        true => found(by_name(route, name)),
        false => Ok(None),
    }
}

/// The link with index `index`, if there is one.
pub fn find_index(route: &mut Socket, index: u32) -> Result<Option<Link>> {
    found(by_index(route, index))
}

/// Every link of the namespace.
pub fn list(route: &mut Socket) -> Result<Vec<Link>> {
    let message =
        Message::new(libc::RTM_GETLINK, 0, "list links").raw(&header(0, 0, 0)).u32(a::EXT_MASK, SKIP_STATS);
    route.list(message, Link::read)
}

/// A message that changes the link with this index; attributes may be added.
pub fn change(index: u32, doing: impl Into<String>) -> Message {
    Message::new(libc::RTM_SETLINK, 0, doing).raw(&header(index, 0, 0))
}

/// A message that sets the flags in `mask` to `flags`.
pub fn set_flags(index: u32, flags: u32, mask: u32, doing: impl Into<String>) -> Message {
    Message::new(libc::RTM_SETLINK, 0, doing).raw(&header(index, flags, mask))
}

/// A message that brings a link up.
pub fn up(link: &Link) -> Message {
    set_flags(link.index, UP, UP, format!("bring link {} up", link.name))
}

/// A message that takes a link down.
pub fn down(link: &Link) -> Message {
    set_flags(link.index, 0, UP, format!("take link {} down", link.name))
}

/// A message that deletes a link. The caller waits for the kernel's RCU barrier, about 15 ms.
pub fn delete(link: &Link) -> Message {
    Message::new(libc::RTM_DELLINK, 0, format!("delete link {}", link.name)).raw(&header(link.index, 0, 0))
}
