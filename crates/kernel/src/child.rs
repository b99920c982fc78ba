//! An interface of a pod on top of another one, its master (macvlan, ipvlan, vlan), or without one (dummy). It is
//! created in the pod. The kernel deletes it with the pod's namespace or with its master.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::Message;

use crate::error::Result;
use crate::host::Host;
use crate::ipvlan::Ipvlan;
use crate::mac::Mac;
use crate::macvlan::Macvlan;
use crate::owner::Owner;
use crate::veth;
use crate::vlan::Vlan;

/// The driver of a child interface and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Its own hardware address on the master.
    Macvlan(Macvlan),
    /// The master's hardware address and its own IP addresses.
    Ipvlan(Ipvlan),
    /// The frames of the master with a VLAN tag.
    Vlan(Vlan),
    /// No master: packets are dropped.
    Dummy,
}

/// The master of a child interface, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Master {
    /// On the node.
    OnNode(u32),
    /// In the pod.
    InPod(u32),
    /// No master.
    None,
}

/// A child interface to create.
#[derive(Clone, Copy, Debug)]
pub struct Child<'a> {
    /// Its name in the pod.
    pub name: &'a str,
    /// The owner, set as its alias.
    pub owner: &'a Owner,
    /// Its driver.
    pub driver: Driver,
    /// MTU; 0 is the kernel's default, usually the master's.
    pub mtu: u32,
    /// Hardware address; `None` lets the kernel choose.
    pub mac: Option<Mac>,
}

impl Child<'_> {
    /// Creates it in the pod, down. If a step fails, it is deleted again.
    pub fn create(&self, master: Master, node: &mut Host, pod: &mut Host) -> Result<Link> {
        match self.create_as(self.name, master, node, pod) {
            // Kernels before 6.15 check the name in the sender's namespace instead of the target namespace.
            Err(error) if error.is_exists() && self.is_taken_on_node(master, node, pod)? => {
                let temporary = temporary_name(self.owner);
                self.create_as(&temporary, master, node, pod)?;
                self.label(&temporary, pod)
            }
            Err(error) => Err(error),
            Ok(()) => self.label(self.name, pod),
        }
    }

    /// Whether the node, and not the pod, has a link of that name.
    fn is_taken_on_node(&self, master: Master, node: &mut Host, pod: &mut Host) -> Result<bool> {
        let sent_by_node = matches!(master, Master::OnNode(_));
        Ok(sent_by_node && pod.find_link(self.name)?.is_none() && node.find_link(self.name)?.is_some())
    }

    /// Sends the request from the master's namespace, where the master's index is valid.
    fn create_as(&self, name: &str, master: Master, node: &mut Host, pod: &mut Host) -> Result<()> {
        let message = self.message(name);
        let sent = match master {
            Master::OnNode(index) => {
                let netns = pod.netns().map(|netns| netns.as_fd().as_raw_fd() as u32);
                node.route.request(message.u32(a::LINK, index).maybe(netns, |m, fd| m.u32(a::NET_NS_FD, fd)))
            }
            Master::InPod(index) => pod.route.request(message.u32(a::LINK, index)),
            Master::None => pod.route.request(message),
        };
        Ok(sent?)
    }

    fn message(&self, name: &str) -> Message {
        let doing = format!("create {} {} in the pod", self.driver.kind(), self.name);
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, doing)
            .raw(&link::header(0, 0, 0))
            .string(a::IFNAME, name)
            .maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu))
            .maybe(self.mac, |m, mac| m.bytes(a::ADDRESS, &mac.0))
            .nest(a::LINKINFO, |m| self.driver.describe(m))
    }

    /// Sets the owner as alias, and the final name if the link has a temporary one.
    fn label(&self, current: &str, pod: &mut Host) -> Result<Link> {
        let mut label = || -> Result<Link> {
            let created = pod.get_link(current)?;
            let message = link::change(created.index, format!("set the owner of {}", self.name))
                .string(a::IFALIAS, &self.owner.comment())
                .maybe((current != self.name).then_some(self.name), |m, name| m.string(a::IFNAME, name));
            pod.route.request(message)?;
            Ok(Link { name: self.name.into(), alias: self.owner.comment(), ..created })
        };
        let labelled = label();
        if labelled.is_err() {
            if let Ok(Some(created)) = pod.find_link(current) {
                // Report the first error.
                let _ = pod.route.request(link::delete(&created));
            }
        }
        labelled
    }
}

impl Driver {
    /// The name of the driver.
    pub fn kind(self) -> &'static str {
        match self {
            Driver::Macvlan(_) => Macvlan::KIND,
            Driver::Ipvlan(_) => Ipvlan::KIND,
            Driver::Vlan(_) => Vlan::KIND,
            Driver::Dummy => "dummy",
        }
    }

    /// The driver and settings of `link`, if it is one of these.
    pub fn of(link: &Link) -> Option<Driver> {
        match link.kind.as_str() {
            Macvlan::KIND => Macvlan::of(link).map(Driver::Macvlan),
            Ipvlan::KIND => Ipvlan::of(link).map(Driver::Ipvlan),
            Vlan::KIND => Vlan::of(link).map(Driver::Vlan),
            "dummy" => Some(Driver::Dummy),
            _ => None,
        }
    }

    /// Whether `found` is as desired.
    pub fn fits(self, found: Driver) -> bool {
        match (self, found) {
            (Driver::Macvlan(wanted), Driver::Macvlan(found)) => wanted.fits(found),
            _ => self == found,
        }
    }

    /// Whether a link that is `found` can be changed to this.
    pub fn can_change_from(self, found: Driver) -> bool {
        match (self, found) {
            (Driver::Macvlan(wanted), Driver::Macvlan(found)) => wanted.can_change_from(found),
            (Driver::Ipvlan(_), Driver::Ipvlan(_)) => true,
            _ => self == found,
        }
    }

    /// A message that changes the settings of `link`.
    pub fn change(self, link: &Link) -> Message {
        Message::new(libc::RTM_NEWLINK, 0, format!("change {} to {self}", link.name))
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

/// Whether the kernel has the driver `kind`, or can load it. The request is for a link without a master and with half a
/// hardware address, which every driver refuses; a missing driver gives another error.
pub fn is_available(host: &mut Host, kind: &str) -> Result<bool> {
    let impossible =
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("look for driver {kind}"))
            .raw(&link::header(0, 0, 0))
            .bytes(a::ADDRESS, &[2, 0, 0])
            .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, kind));
    match host.route.request(impossible) {
        Err(error) if error.is_unsupported() => Ok(false),
        Err(error) if error.errno() == Some(libc::EPERM) => Err(error.into()),
        _ => Ok(true),
    }
}

/// The temporary name of a child interface whose final name is taken on the node; see [`Child::create`].
pub fn temporary_name(owner: &Owner) -> String {
    veth::host_name(owner)
}
