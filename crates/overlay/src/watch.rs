//! Waiting until something of ours was touched.
//!
//! The kernel tells of every change of links, addresses, neighbours, routes and firewall rules. Here those are picked out that
//! concern us: our devices and what hangs on them, the uplinks, routes of ours, the firewall's table. They say only that it
//! is time to look: what is to be done is found out by comparing ([`apply`](crate::apply)). That sends notices too, so one
//! more comparison follows each change, and finds nothing.
//!
//! Open it before the first `apply`, and nothing is missed in between.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use podwire_kernel::firewall::cluster::TABLE;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address::Address;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::rt::{link, neighbour, GROUPS_ADDRESS, GROUPS_ROUTE, GROUP_LINK, GROUP_NEIGHBOUR};
use podwire_netlink::{nft, sys, Frame, Socket};

use crate::{Result, PROTOCOL};

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something of ours was touched: what, in words, each once.
    Changed(Vec<String>),
    /// The descriptor that was waited for besides can be read.
    Woken,
    /// Nothing, in the time that was given.
    Timeout,
}

/// Ears for what happens to our things in one namespace.
#[derive(Debug)]
pub struct Watch {
    route: Socket,
    netfilter: Socket,
    scope: Scope,
}

/// What is ours.
#[derive(Debug, Default)]
struct Scope {
    /// Names of our devices.
    devices: Vec<String>,
    /// Names of the uplinks.
    uplinks: Vec<String>,
    /// The indices of both, as long as they are there.
    links: HashMap<u32, String>,
    /// Every link could become an uplink.
    any_uplink: bool,
}

impl Watch {
    /// Listens to what happens to our devices, to the uplinks, to our routes and to our rules.
    pub fn open(host: &mut Host, devices: &[&str], uplinks: &[&str]) -> Result<Watch> {
        let (mut route, mut netfilter) =
            host.run(|| -> Result<_> { Ok((Socket::route()?, Socket::netfilter()?)) })??;
        for group in [GROUP_LINK, GROUP_NEIGHBOUR].into_iter().chain(GROUPS_ADDRESS).chain(GROUPS_ROUTE) {
            route.subscribe(group)?;
        }
        netfilter.subscribe(nft::GROUP)?;
        // Listening began: a link that comes or goes now is heard of.
        let there = link::list(&mut host.route)?;
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let mut scope = Scope { devices: owned(devices), uplinks: owned(uplinks), ..Scope::default() };
        scope.links = there
            .into_iter()
            .filter(|link| scope.knows(&link.name))
            .map(|link| (link.index, link.name))
            .collect();
        Ok(Watch { route, netfilter, scope })
    }

    /// Listens to all that could make an interface the uplink, or another one: for a node that has found none.
    pub fn for_uplinks(host: &mut Host) -> Result<Watch> {
        let mut watch = Watch::open(host, &[], &[])?;
        watch.scope.any_uplink = true;
        Ok(watch)
    }

    /// Waits until something of ours is touched, until `caller` (a pipe, a socket) can be read, or until the time is over.
    pub fn wait(&mut self, patience: Duration, caller: Option<BorrowedFd<'_>>) -> Result<Event> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut fds = vec![self.route.as_fd(), self.netfilter.as_fd()];
            fds.extend(caller);
            let ready = sys::readable(&fds, left).map_err(|source| podwire_netlink::Error::Io {
                doing: "wait for the kernel's notices".into(),
                source,
            })?;
            if ready.get(2) == Some(&true) {
                return Ok(Event::Woken);
            }
            if !ready[0] && !ready[1] {
                return Ok(Event::Timeout);
            }
            let touched = self.read_events()?;
            if !touched.is_empty() {
                return Ok(Event::Changed(touched));
            }
        }
    }

    /// The sockets on which notifications arrive, for `poll`.
    pub fn event_sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.netfilter.as_fd()]
    }

    /// Reads all notifications that have arrived, without waiting. Returns what they changed of ours, each once.
    pub fn read_events(&mut self) -> Result<Vec<String>> {
        let mut touched: Vec<String> = Vec::new();
        let mut tell = |what: Option<String>| touched.extend(what);
        let scope = &mut self.scope;
        let complete = self.route.drain(|frame| tell(scope.concerns(frame)))?;
        let whole = self.netfilter.drain(|frame| tell(of_our_rules(frame)))?;
        if !complete || !whole {
            tell(Some("more happened than could be listened to".into()));
        }
        touched.sort();
        touched.dedup();
        Ok(touched)
    }
}

impl Scope {
    /// What of ours a notice of rtnetlink is about.
    fn concerns(&mut self, frame: Frame<'_>) -> Option<String> {
        if let Some(link) = Link::read(frame) {
            // A bridge tells of a port that left it as if the port were gone.
            let of_bridge = frame.body.first() == Some(&(libc::AF_BRIDGE as u8));
            let touched = self.link(&link, frame.kind == libc::RTM_DELLINK && !of_bridge);
            return touched.or_else(|| self.any_uplink.then(|| format!("device {}", link.name)));
        }
        if let Some(index) = neighbour::link_of(frame) {
            // Neighbours of an uplink come and go all the time.
            let ours = self.links.get(&index).filter(|name| self.devices.contains(name));
            return ours.map(|name| format!("neighbours of {name}"));
        }
        if let Some(index) = address_of(frame) {
            let touched = self.links.get(&index).map(|name| format!("addresses of {name}"));
            return touched.or_else(|| self.any_uplink.then(|| format!("addresses of link number {index}")));
        }
        let mut ways = Vec::new();
        Route::read_into(frame, &mut ways)?;
        ways.iter().filter(|way| way.table == route::MAIN).find_map(|way| self.way(way))
    }

    /// Links come and go under the same name with other indices.
    fn link(&mut self, link: &Link, is_gone: bool) -> Option<String> {
        let known = self.links.get(&link.index).cloned();
        if is_gone {
            self.links.remove(&link.index);
        } else if self.knows(&link.name) {
            self.links.insert(link.index, link.name.clone());
        }
        known
            .or_else(|| self.knows(&link.name).then(|| link.name.clone()))
            .map(|name| format!("device {name}"))
    }

    fn way(&self, way: &Route) -> Option<String> {
        let ours = self.any_uplink
            || way.protocol == PROTOCOL
            || way.link.is_some_and(|link| self.links.contains_key(&link));
        ours.then(|| format!("route to {}/{}", way.dst, way.prefix))
    }

    fn knows(&self, name: &String) -> bool {
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

/// Our table; and iptables' FORWARD, in which one rule of ours stands.
fn of_our_rules(frame: Frame<'_>) -> Option<String> {
    let (table, chain) = nft::subject(frame)?;
    let passes = table.name == "filter" && chain.as_deref() == Some("FORWARD");
    (table == TABLE || passes).then(|| format!("table {table}"))
}
