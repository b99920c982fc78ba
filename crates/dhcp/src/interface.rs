//! The pod's interface: finds it, sets it up, and changes it when a lease changes.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::rt::{address, route};
use podwire_kernel::{sysctl, Host, Link, Netns};
use podwire_netlink::Message;

use crate::grant::{Grant, Route};
use crate::{socket, Error, Result};

/// A pod's interface.
#[derive(Debug)]
pub struct Interface {
    /// The pod.
    pub pod: Host,
    /// The link.
    pub link: Link,
}

/// The identity of the namespace at a path: device and inode. The same path may name another pod later.
pub fn identity(netns: &Path) -> Option<[u64; 2]> {
    let found = fs::metadata(netns).ok()?;
    Some([found.dev(), found.ino()])
}

impl Interface {
    /// Opens the interface `name` in the namespace at `netns`. Callers drop it after use: an open namespace outlives its pod.
    pub fn find(netns: &Path, name: &str) -> Result<Interface> {
        let gone = || Error::Gone(format!("the namespace {netns:?} is gone"));
        let mut pod = Host::within(Netns::find(netns)?.ok_or_else(gone)?)?;
        let missing = || Error::Gone(format!("the pod has no interface {name}"));
        let link = pod.find_link(name)?.ok_or_else(missing)?;
        Ok(Interface { pod, link })
    }

    /// Sets the link up. DHCPv6 needs a link-local address, without waiting for duplicate address detection.
    pub fn set_up(&mut self, has_v6: bool) -> Result<()> {
        let name = self.link.name.clone();
        if has_v6 {
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

    /// Whether messages can be sent.
    pub fn is_operational(&mut self, has_v6: bool) -> Result<bool> {
        let link = self.pod.get_link(&self.link.name)?;
        // Devices without their own carrier never report that they are up.
        let up = link.operstate == link::OPER_UP || link.operstate == 0 && link.is_up();
        Ok(up && (!has_v6 || socket::link_local(&mut self.pod, &link)?.is_some()))
    }

    /// Changes the interface from the configuration of `old` to that of `new`.
    pub fn apply(&mut self, old: Option<&Grant>, new: &Grant, priority: Option<u32>) -> Result<()> {
        let moved = old.is_none_or(|old| old.address != new.address);
        let before = old.map_or(&[][..], |old| &old.routes);
        for route in before.iter().filter(|route| moved || !new.routes.contains(route)) {
            self.send(self.kernel_route(route, priority).delete())?;
        }
        if moved {
            let (ip, prefix) = (new.address.addr(), new.address.prefix_len());
            self.send(address::add(self.link.index, ip, prefix, false))?;
            if let Some(old) = old {
                self.delete_address(old)?;
            }
        }
        self.set_mtu(new.mtu)?;
        for route in new.routes.iter().filter(|route| moved || !before.contains(route)) {
            self.send(self.kernel_route(route, priority).add())?;
        }
        Ok(())
    }

    /// Sets the MTU of a lease.
    pub fn set_mtu(&mut self, mtu: Option<u32>) -> Result<()> {
        match mtu.filter(|mtu| *mtu != self.link.mtu) {
            None => Ok(()),
            Some(mtu) => {
                let doing = format!("set the MTU of {}", self.link.name);
                self.send(link::change(self.link.index, doing).u32(attribute::MTU, mtu))
            }
        }
    }

    /// Removes the configuration of `grant`: the pod must not use an address whose lease ended. With `down` the link is set
    /// down, so that the pod's processes notice.
    pub fn remove(&mut self, grant: &Grant, priority: Option<u32>, down: bool) -> Result<()> {
        for route in &grant.routes {
            self.send(self.kernel_route(route, priority).delete())?;
        }
        self.delete_address(grant)?;
        if down {
            self.send(link::down(&self.link))?;
            self.link.flags &= !link::UP;
        }
        Ok(())
    }

    fn delete_address(&mut self, grant: &Grant) -> Result<()> {
        self.send(address::delete(self.link.index, grant.address.addr(), grant.address.prefix_len()))
    }

    fn kernel_route(&self, wanted: &Route, priority: Option<u32>) -> route::Route {
        let is_on_link = wanted.gateway.is_none() && matches!(wanted.dst.addr(), IpAddr::V4(_));
        route::Route {
            gateway: wanted.gateway,
            link: Some(self.link.index),
            priority,
            scope: if is_on_link { route::LINK } else { route::UNIVERSE },
            ..route::Route::to(wanted.dst.network(), wanted.dst.prefix_len())
        }
    }

    /// An object that already exists or is already gone is fine: other programs change the interface too.
    fn send(&mut self, message: Message) -> Result<()> {
        match self.pod.route.request(message) {
            Err(error) if error.is_exists() || error.is_gone() => Ok(()),
            other => Ok(other?),
        }
    }
}
