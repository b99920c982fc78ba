//! The pod's interface: finding it again, making it able to speak, and changing it when a lease changes.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::rt::{address, route};
use podwire_kernel::{sysctl, Host, Link, Netns};
use podwire_netlink::Message;

use crate::grant::{Grant, Route};
use crate::{wire, Error, Result};

/// A pod's interface, reached.
#[derive(Debug)]
pub struct Interface {
    /// The pod.
    pub pod: Host,
    /// The link.
    pub link: Link,
}

/// Which namespace a file is: device and inode. The same path may lead to another pod later.
pub fn identity(netns: &Path) -> Option<[u64; 2]> {
    let found = fs::metadata(netns).ok()?;
    Some([found.dev(), found.ino()])
}

impl Interface {
    /// The interface `name` in the namespace behind `netns`. It is only held while it is used: a namespace that somebody
    /// holds does not end with its pod.
    pub fn find(netns: &Path, name: &str) -> Result<Interface> {
        let gone = || Error::Gone(format!("the namespace {netns:?} is gone"));
        let mut pod = Host::within(Netns::find(netns)?.ok_or_else(gone)?)?;
        let missing = || Error::Gone(format!("the pod has no interface {name}"));
        let link = pod.find_link(name)?.ok_or_else(missing)?;
        Ok(Interface { pod, link })
    }

    /// Brings the link up. DHCPv6 needs its link-local address, and soon.
    pub fn wake(&mut self, v6: bool) -> Result<()> {
        let name = self.link.name.clone();
        if v6 {
            self.pod.run(|| -> podwire_kernel::Result<()> {
                sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
                sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), "0")
            })??;
        }
        if !self.link.is_up() {
            self.pod.route.request(link::up(&self.link))?;
        }
        Ok(())
    }

    /// Whether a message would leave.
    pub fn is_awake(&mut self, v6: bool) -> Result<bool> {
        let link = self.pod.get_link(&self.link.name)?;
        // Devices without a carrier of their own never say that they are up.
        let up = link.operstate == link::OPER_UP || link.operstate == 0 && link.is_up();
        Ok(up && (!v6 || wire::link_local(&mut self.pod, &link)?.is_some()))
    }

    /// Makes the interface as `new` wants it, from what `old` made of it.
    pub fn apply(&mut self, old: Option<&Grant>, new: &Grant, priority: Option<u32>) -> Result<()> {
        let moved = old.is_none_or(|old| old.address != new.address);
        let before = old.map_or(&[][..], |old| &old.routes);
        for route in before.iter().filter(|route| moved || !new.routes.contains(route)) {
            self.send(self.wire_route(route, priority).delete())?;
        }
        if moved {
            let (ip, prefix) = (new.address.addr(), new.address.prefix_len());
            self.send(address::add(self.link.index, ip, prefix, false))?;
            if let Some(old) = old {
                self.take_address(old)?;
            }
        }
        self.resize(new.mtu)?;
        for route in new.routes.iter().filter(|route| moved || !before.contains(route)) {
            self.send(self.wire_route(route, priority).add())?;
        }
        Ok(())
    }

    /// Sets the MTU that came with a lease.
    pub fn resize(&mut self, mtu: Option<u32>) -> Result<()> {
        match mtu.filter(|mtu| *mtu != self.link.mtu) {
            None => Ok(()),
            Some(mtu) => {
                let doing = format!("set the MTU of {}", self.link.name);
                self.send(link::change(self.link.index, doing).u32(attribute::MTU, mtu))
            }
        }
    }

    /// Takes everything away that `grant` gave: nobody may speak from an address that is not his any more. With `down`
    /// the link goes down, which everybody in the pod notices.
    pub fn withdraw(&mut self, grant: &Grant, priority: Option<u32>, down: bool) -> Result<()> {
        for route in &grant.routes {
            self.send(self.wire_route(route, priority).delete())?;
        }
        self.take_address(grant)?;
        if down {
            self.send(link::down(&self.link))?;
            self.link.flags &= !link::UP;
        }
        Ok(())
    }

    fn take_address(&mut self, grant: &Grant) -> Result<()> {
        self.send(address::delete(self.link.index, grant.address.addr(), grant.address.prefix_len()))
    }

    fn wire_route(&self, wanted: &Route, priority: Option<u32>) -> route::Route {
        let on_the_wire = wanted.gateway.is_none() && matches!(wanted.dst.addr(), IpAddr::V4(_));
        route::Route {
            gateway: wanted.gateway,
            link: Some(self.link.index),
            priority,
            scope: if on_the_wire { route::LINK } else { route::UNIVERSE },
            ..route::Route::to(wanted.dst.network(), wanted.dst.prefix_len())
        }
    }

    /// What is there already, or gone already, is fine: others work on the interface too.
    fn send(&mut self, message: Message) -> Result<()> {
        match self.pod.route.request(message) {
            Err(error) if error.is_exists() || error.is_gone() => Ok(()),
            other => Ok(other?),
        }
    }
}
