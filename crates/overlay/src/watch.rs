//! A watch for changes of owned objects.
//!
//! The kernel sends notices of all changes of links, addresses, neighbours, routes and firewall rules. The watch
//! selects those about owned devices and their entries, the uplinks, owned routes and the firewall table. A notice only
//! means "reconcile now": [`apply`](crate::apply) finds the difference itself. `apply` causes notices too, so each
//! change is followed by one more reconcile, which finds nothing to do.
//!
//! Open the watch before the first `apply`, so that no change is missed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use podwire_kernel::firewall::cluster::TABLE;
use podwire_kernel::firewall::tunnel;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address::Address;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::rt::{link, neighbour, GROUPS_ADDRESS, GROUPS_ROUTE, GROUP_LINK, GROUP_NEIGHBOUR};
use podwire_netlink::{nft, sys, Frame, Socket};

use crate::error::Result;
use crate::ownership::PROTOCOL;

/// The result of [`Watch::wait`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Owned objects changed: a description of each, without duplicates.
    Changed(Vec<String>),
    /// The wake descriptor is readable.
    Woken,
    /// Nothing happened before the timeout.
    Timeout,
}

/// A subscription to the kernel's notices in one namespace.
#[derive(Debug)]
pub struct Watch {
    route: Socket,
    netfilter: Socket,
    scope: Scope,
}

/// The objects to watch.
#[derive(Debug, Default)]
struct Scope {
    /// The names of owned devices.
    devices: Vec<String>,
    /// The names of the uplinks.
    uplinks: Vec<String>,
    /// The names of both by index, for those that exist.
    links: HashMap<u32, String>,
    /// Whether every link counts, because it could become an uplink.
    any_uplink: bool,
}

impl Watch {
    /// Watches these owned devices, these uplinks, owned routes and the firewall table.
    pub fn open(host: &mut Host, devices: &[&str], uplinks: &[&str]) -> Result<Watch> {
        let (mut route, mut netfilter) =
            host.run(|| -> Result<_> { Ok((Socket::route()?, Socket::netfilter()?)) })??;
        for group in [GROUP_LINK, GROUP_NEIGHBOUR].into_iter().chain(GROUPS_ADDRESS).chain(GROUPS_ROUTE) {
            route.subscribe(group)?;
        }
        netfilter.subscribe(nft::GROUP)?;
        // Listed after the subscription: later changes arrive as notices.
        let present = link::list(&mut host.route)?;
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let mut scope = Scope { devices: owned(devices), uplinks: owned(uplinks), ..Scope::default() };
        scope.links = present
            .into_iter()
            .filter(|link| scope.watches(&link.name))
            .map(|link| (link.index, link.name))
            .collect();
        Ok(Watch { route, netfilter, scope })
    }

    /// Watches everything that could change the choice of the uplink: for a node without one.
    pub fn for_uplinks(host: &mut Host) -> Result<Watch> {
        let mut watch = Watch::open(host, &[], &[])?;
        watch.scope.any_uplink = true;
        Ok(watch)
    }

    /// Waits until an owned object changes, `wake` (a pipe or socket) becomes readable, or the timeout expires.
    pub fn wait(&mut self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> Result<Event> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut fds = vec![self.route.as_fd(), self.netfilter.as_fd()];
            fds.extend(wake);
            let ready = sys::readable(&fds, left).map_err(|source| podwire_netlink::Error::Io {
                doing: "wait for kernel notices".into(),
                source,
            })?;
            if ready.get(2) == Some(&true) {
                return Ok(Event::Woken);
            }
            if !ready[0] && !ready[1] {
                return Ok(Event::Timeout);
            }
            let changed = self.read_events()?;
            if !changed.is_empty() {
                return Ok(Event::Changed(changed));
            }
        }
    }

    /// The sockets on which notices arrive, for `poll`.
    pub fn event_sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.netfilter.as_fd()]
    }

    /// Reads all pending notices; without waiting; returns the owned objects that they are about.
    pub fn read_events(&mut self) -> Result<Vec<String>> {
        let mut changed: Vec<String> = Vec::new();
        let mut add = |what: Option<String>| changed.extend(what);
        let scope = &mut self.scope;
        let complete = self.route.drain(|frame| add(scope.object(frame)))?;
        let whole = self.netfilter.drain(|frame| add(owned_table(frame)))?;
        if !complete || !whole {
            add(Some("unknown: notices were lost".into()));
        }
        changed.sort();
        changed.dedup();
        Ok(changed)
    }
}

impl Scope {
    /// The watched object that a notice of rtnetlink is about.
    fn object(&mut self, frame: Frame<'_>) -> Option<String> {
        if let Some(link) = Link::read(frame) {
            let changed = self.link(&link, link::is_deletion(frame));
            return changed.or_else(|| self.any_uplink.then(|| format!("device {}", link.name)));
        }
        if let Some(index) = neighbour::link_of(frame) {
            // Neighbours of an uplink change all the time.
            let owned = self.links.get(&index).filter(|name| self.devices.contains(name));
            return owned.map(|name| format!("neighbours of {name}"));
        }
        if let Some(index) = address_of(frame) {
            let changed = self.links.get(&index).map(|name| format!("addresses of {name}"));
            return changed.or_else(|| self.any_uplink.then(|| format!("addresses of link number {index}")));
        }
        let mut routes = Vec::new();
        Route::read_into(frame, &mut routes)?;
        routes.iter().filter(|route| route.table == route::MAIN).find_map(|route| self.route(route))
    }

    /// A link. Keeps the indices up to date: a recreated link has the same name and another index.
    fn link(&mut self, link: &Link, is_gone: bool) -> Option<String> {
        let known = self.links.get(&link.index).cloned();
        if is_gone {
            self.links.remove(&link.index);
        } else if self.watches(&link.name) {
            self.links.insert(link.index, link.name.clone());
        }
        known
            .or_else(|| self.watches(&link.name).then(|| link.name.clone()))
            .map(|name| format!("device {name}"))
    }

    fn route(&self, route: &Route) -> Option<String> {
        let is_watched = self.any_uplink
            || route.protocol == PROTOCOL
            || route.link.is_some_and(|link| self.links.contains_key(&link));
        is_watched.then(|| format!("route to {}/{}", route.dst, route.prefix))
    }

    fn watches(&self, name: &String) -> bool {
        self.devices.contains(name) || self.uplinks.contains(name)
    }
}

fn address_of(frame: Frame<'_>) -> Option<u32> {
    match frame.kind {
        libc::RTM_NEWADDR => Address::read(frame).map(|address| address.link),
        libc::RTM_DELADDR => Some(u32::from_ne_bytes(frame.body.get(4..8)?.try_into().ok()?)),
        _ => None,
    }
}

/// A firewall table, or iptables' FORWARD chain, which has one owned rule.
fn owned_table(frame: Frame<'_>) -> Option<String> {
    let (table, chain) = nft::subject(frame)?;
    let is_forward = table.name == "filter" && chain.as_deref() == Some("FORWARD");
    (table == TABLE || table == tunnel::TABLE || is_forward).then(|| format!("table {table}"))
}
