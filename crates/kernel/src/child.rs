//! A pod's interface that hangs on another one, its master (macvlan, ipvlan, vlan), or on nothing (dummy). It is born in
//! the pod, and dies with the pod or with its master, whichever goes first: the kernel sees to both.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::Message;

use crate::ipvlan::Ipvlan;
use crate::macvlan::Macvlan;
use crate::vlan::Vlan;
use crate::{veth, Host, Mac, Owner, Result};

/// What drives a child, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A hardware address of its own on its master.
    Macvlan(Macvlan),
    /// The hardware address of its master, and IP addresses of its own.
    Ipvlan(Ipvlan),
    /// The frames of its master that have a tag.
    Vlan(Vlan),
    /// Nothing: what is sent there is gone.
    Dummy,
}

/// Where a child's master is, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Master {
    /// On the node.
    OnNode(u32),
    /// In the pod, as the child.
    InPod(u32),
    /// It has none.
    None,
}

/// What a child is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Child<'a> {
    /// Its name in the pod.
    pub name: &'a str,
    /// Whose it is, noted on it.
    pub owner: &'a Owner,
    /// What drives it.
    pub driver: Driver,
    /// MTU; 0 is the kernel's choice, mostly the master's.
    pub mtu: u32,
    /// Hardware address, the kernel's choice if not given.
    pub mac: Option<Mac>,
}

impl Child<'_> {
    /// Makes it in the pod, down. If it cannot be completed it is gone again.
    pub fn create(&self, master: Master, node: &mut Host, pod: &mut Host) -> Result<Link> {
        match self.be_born(self.name, master, node, pod) {
            // Kernels before 6.15 look for the name among the sender's links, although the child is to live elsewhere.
            Err(error) if error.is_exists() && self.is_hidden(master, node, pod)? => {
                let first = birth_name(self.owner);
                self.be_born(&first, master, node, pod)?;
                self.sign(&first, pod)
            }
            Err(error) => Err(error),
            Ok(()) => self.sign(self.name, pod),
        }
    }

    /// Whether it is the node and not the pod that has a link of that name.
    fn is_hidden(&self, master: Master, node: &mut Host, pod: &mut Host) -> Result<bool> {
        let sent_by_node = matches!(master, Master::OnNode(_));
        Ok(sent_by_node && pod.find_link(self.name)?.is_none() && node.find_link(self.name)?.is_some())
    }

    /// A master is known by its index to those in its own namespace: from there the message comes.
    fn be_born(&self, name: &str, master: Master, node: &mut Host, pod: &mut Host) -> Result<()> {
        let message = self.birth(name);
        let sent = match master {
            Master::OnNode(index) => {
                let place = pod.netns().map(|netns| netns.as_fd().as_raw_fd() as u32);
                node.route.request(message.u32(a::LINK, index).maybe(place, |m, fd| m.u32(a::NET_NS_FD, fd)))
            }
            Master::InPod(index) => pod.route.request(message.u32(a::LINK, index)),
            Master::None => pod.route.request(message),
        };
        Ok(sent?)
    }

    fn birth(&self, name: &str) -> Message {
        let doing = format!("create {} {} in the pod", self.driver.kind(), self.name);
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, doing)
            .raw(&link::header(0, 0, 0))
            .string(a::IFNAME, name)
            .maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu))
            .maybe(self.mac, |m, mac| m.bytes(a::ADDRESS, &mac.0))
            .nest(a::LINKINFO, |m| self.driver.describe(m))
    }

    /// Notes the owner on the new link, and gives it its name if it does not have it yet.
    fn sign(&self, born_as: &str, pod: &mut Host) -> Result<Link> {
        let mut finish = || -> Result<Link> {
            let born = pod.get_link(born_as)?;
            let message = link::change(born.index, format!("note the owner on {}", self.name))
                .string(a::IFALIAS, &self.owner.comment())
                .maybe((born_as != self.name).then_some(self.name), |m, name| m.string(a::IFNAME, name));
            pod.route.request(message)?;
            Ok(Link { name: self.name.into(), alias: self.owner.comment(), ..born })
        };
        let finished = finish();
        if finished.is_err() {
            if let Ok(Some(born)) = pod.find_link(born_as) {
                // The error that is told is the first.
                let _ = pod.route.request(link::delete(&born));
            }
        }
        finished
    }
}

impl Driver {
    /// Its name.
    pub fn kind(self) -> &'static str {
        match self {
            Driver::Macvlan(_) => Macvlan::KIND,
            Driver::Ipvlan(_) => Ipvlan::KIND,
            Driver::Vlan(_) => Vlan::KIND,
            Driver::Dummy => "dummy",
        }
    }

    /// What drives `link`, if it is known here.
    pub fn of(link: &Link) -> Option<Driver> {
        match link.kind.as_str() {
            Macvlan::KIND => Macvlan::of(link).map(Driver::Macvlan),
            Ipvlan::KIND => Ipvlan::of(link).map(Driver::Ipvlan),
            Vlan::KIND => Vlan::of(link).map(Driver::Vlan),
            "dummy" => Some(Driver::Dummy),
            _ => None,
        }
    }

    /// Whether `found` is as wanted.
    pub fn fits(self, found: Driver) -> bool {
        match (self, found) {
            (Driver::Macvlan(wanted), Driver::Macvlan(found)) => wanted.fits(found),
            _ => self == found,
        }
    }

    /// Whether a link that is `found` can be changed to this.
    pub fn can_follow(self, found: Driver) -> bool {
        match (self, found) {
            (Driver::Macvlan(wanted), Driver::Macvlan(found)) => wanted.can_follow(found),
            (Driver::Ipvlan(_), Driver::Ipvlan(_)) => true,
            _ => self == found,
        }
    }

    /// A message that makes `link` as wanted.
    pub fn change(self, link: &Link) -> Message {
        Message::new(libc::RTM_NEWLINK, 0, format!("make {} a {self}", link.name))
            .raw(&link::header(link.index, 0, 0))
            .nest(a::LINKINFO, |m| self.describe(m))
    }

    fn describe(self, message: Message) -> Message {
        let message = message.string(a::INFO_KIND, self.kind());
        match self {
            Driver::Macvlan(macvlan) => message.nest(a::INFO_DATA, |m| macvlan.describe(m)),
            Driver::Ipvlan(ipvlan) => message.nest(a::INFO_DATA, |m| ipvlan.describe(m)),
            Driver::Vlan(vlan) => message.nest(a::INFO_DATA, |m| vlan.describe(m)),
            Driver::Dummy => message,
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Driver::Macvlan(macvlan) => macvlan.fmt(f),
            Driver::Ipvlan(ipvlan) => ipvlan.fmt(f),
            Driver::Vlan(vlan) => vlan.fmt(f),
            Driver::Dummy => f.write_str("dummy"),
        }
    }
}

/// Whether the kernel has the driver `kind`, or can load it. It is asked for a link that every driver refuses, without
/// a master and with half a hardware address; only a driver that is there can do so.
pub fn is_known(host: &mut Host, kind: &str) -> Result<bool> {
    let impossible =
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("ask for the driver {kind}"))
            .raw(&link::header(0, 0, 0))
            .bytes(a::ADDRESS, &[2, 0, 0])
            .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, kind));
    match host.route.request(impossible) {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno() == Some(libc::EPERM) => Err(error.into()),
        _ => Ok(true),
    }
}

/// The name under which an owner's child is born where it cannot have its own at once; see [`Child::create`].
pub fn birth_name(owner: &Owner) -> String {
    veth::host_name(owner)
}
