//! The choice of the uplink: the interface, and its address, that connects a node with the others.
//!
//! Settings decide, in this order: an interface name or address, a pattern, an address to reach, the addresses by which
//! the cluster knows the node. Without settings it is the interface of the default route. Ambiguity is an error: the
//! wrong interface gives a cluster in which only some nodes reach each other.
//!
//! Each family is decided separately, because the default routes of IPv4 and IPv6 may use different interfaces.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address::{self, Address};
use podwire_netlink::rt::link;
use podwire_netlink::rt::route::{self, Route};
use regex_lite::Regex;

use crate::error::{Error, Result};
use crate::ownership::ALIAS;

const SCOPE_UNIVERSE: u8 = libc::RT_SCOPE_UNIVERSE;
const SCOPE_LINK: u8 = libc::RT_SCOPE_LINK;
/// Flags of linux/if_addr.h. IFA_F_SECONDARY: a temporary address of privacy extensions (IPv6), or a second address of
/// the same network (IPv4).
const IFA_F_SECONDARY: u32 = 0x01;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_PERMANENT: u32 = 0x80;

/// The interface to the other nodes, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
    /// The address that other nodes use to reach this node.
    pub address: IpAddr,
}

/// The settings that select the interface, in order of precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkPreference {
    /// Names or addresses; the first that exists is used (`--iface`).
    pub interfaces: Vec<String>,
    /// Regular expressions for an address or a name; the first that matches is used (`--iface-regex`).
    pub patterns: Vec<String>,
    /// Addresses that are reached through the interface (`--iface-can-reach`).
    pub can_reach: Vec<IpAddr>,
    /// The addresses by which the cluster knows this node (InternalIP, `--public-ip`).
    pub node_addresses: Vec<IpAddr>,
}

/// The links, addresses and routes of the node.
struct Interfaces {
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Route>,
    family: IpFamily,
}

impl UplinkPreference {
    /// The uplink for one family.
    pub fn choose(&self, host: &mut Host, family: IpFamily) -> Result<Uplink> {
        let links = link::list(&mut host.route)?;
        let addresses = address::list(&mut host.route, 0)?;
        let routes = route::list_table(&mut host.route, family, route::MAIN).unwrap_or_default();
        let interfaces = Interfaces { links, addresses, routes, family };
        if let Some(found) = self.find_selected(&interfaces)? {
            return Ok(found);
        }
        if let Some(target) = self.can_reach.iter().find(|ip| IpFamily::of(**ip) == family) {
            let route = route::get(&mut host.route, *target)
                .map_err(|source| Error::Unreachable { address: *target, source })?;
            return interfaces.used_by(&route);
        }
        if let Some(found) = self.node_addresses.iter().find_map(|ip| interfaces.holder(*ip)) {
            return Ok(found);
        }
        interfaces.default_route()
    }

    /// The interface that names or patterns select; an error if there are some and none matches.
    fn find_selected(&self, interfaces: &Interfaces) -> Result<Option<Uplink>> {
        for selector in &self.interfaces {
            let by_address = selector.parse().ok().and_then(|ip| interfaces.holder(ip));
            if let Some(found) = by_address {
                return Ok(Some(found));
            }
            if let Some(link) = interfaces.links.iter().find(|link| link.name == *selector) {
                return interfaces.with_address(link).map(Some);
            }
            // An address of the other family also selects the interface.
            if let Some(link) = selector.parse().ok().and_then(|ip| interfaces.link_with(ip)) {
                return interfaces.with_address(link).map(Some);
            }
        }
        for pattern in &self.patterns {
            let regex = Regex::new(pattern)
                .map_err(|error| Error::BadPattern { pattern: pattern.clone(), reason: error.to_string() })?;
            if let Some(found) = interfaces.matching(&regex)? {
                return Ok(Some(found));
            }
        }
        if self.interfaces.is_empty() && self.patterns.is_empty() {
            return Ok(None);
        }
        let selectors = self.interfaces.iter().chain(&self.patterns).cloned().collect::<Vec<_>>().join(", ");
        Err(interfaces.none(format!("matches {selectors}")))
    }
}

impl Interfaces {
    fn link_with(&self, ip: IpAddr) -> Option<&Link> {
        let index = self.addresses.iter().find(|one| one.ip == ip)?.link;
        self.links.iter().find(|link| link.index == index)
    }

    /// The interface with exactly this address.
    fn holder(&self, ip: IpAddr) -> Option<Uplink> {
        let link = self.link_with(ip).filter(|_| IpFamily::of(ip) == self.family)?;
        Some(Uplink { index: link.index, name: link.name.clone(), mtu: link.mtu, address: ip })
    }

    /// The addresses of a link that other nodes can reach, the best first.
    fn usable(&self, link: &Link) -> Vec<&Address> {
        let mut all: Vec<&Address> = self
            .addresses
            .iter()
            .filter(|one| one.link == link.index && IpFamily::of(one.ip) == self.family)
            .filter(|one| matches!(one.scope, SCOPE_UNIVERSE | SCOPE_LINK) && !one.ip.is_loopback())
            .filter(|one| !one.is_duplicate())
            .collect();
        // A stable sort: equal addresses stay in the kernel's order.
        all.sort_by_key(|one| {
            let has = |flag: u32| one.flags & flag != 0;
            let is_temporary = self.family.is_v6() && !has(IFA_F_PERMANENT);
            (one.scope != SCOPE_UNIVERSE, has(IFA_F_DEPRECATED), has(IFA_F_SECONDARY), is_temporary)
        });
        all
    }

    fn with_address(&self, link: &Link) -> Result<Uplink> {
        match self.usable(link).first() {
            Some(best) => {
                Ok(Uplink { index: link.index, name: link.name.clone(), mtu: link.mtu, address: best.ip })
            }
            None => Err(Error::NoAddress {
                name: link.name.clone(),
                family: self.family,
                addresses: self.addresses_of(link),
            }),
        }
    }

    /// The only interface with a matching address, or else with a matching name, as in flannel.
    fn matching(&self, regex: &Regex) -> Result<Option<Uplink>> {
        let by_address = |link: &&Link| {
            self.addresses.iter().any(|one| one.link == link.index && regex.is_match(&one.ip.to_string()))
        };
        let mut matches: Vec<&Link> = self.candidates().filter(by_address).collect();
        if matches.is_empty() {
            matches = self.candidates().filter(|link| regex.is_match(&link.name)).collect();
        }
        match matches.as_slice() {
            [] => Ok(None),
            [one] => {
                // The matching address, if one of this family matches.
                let is_match = |one: &&&Address| regex.is_match(&one.ip.to_string());
                let address = self.usable(one).iter().find(is_match).map(|found| found.ip);
                let uplink = self.with_address(one)?;
                Ok(Some(Uplink { address: address.unwrap_or(uplink.address), ..uplink }))
            }
            several => Err(self.several(format!("match the pattern {:?}", regex.as_str()), several)),
        }
    }

    /// Links that can be uplinks: up, not a loopback, not owned, and with a usable address.
    fn candidates(&self) -> impl Iterator<Item = &Link> {
        let is_owned = |link: &Link| link.name.starts_with("flannel") || link.alias == ALIAS;
        self.links.iter().filter(move |link| {
            link.is_up()
                && link.flags & link::LOOPBACK == 0
                && !is_owned(link)
                && !self.usable(link).is_empty()
        })
    }

    fn used_by(&self, route: &Route) -> Result<Uplink> {
        let link = route.link.and_then(|index| self.links.iter().find(|link| link.index == index));
        let Some(link) = link else { return Err(self.none(format!("leads to {}", route.dst))) };
        let uplink = self.with_address(link)?;
        Ok(Uplink { address: route.source.unwrap_or(uplink.address), ..uplink })
    }

    /// The interface of the default route with the smallest metric.
    fn default_route(&self) -> Result<Uplink> {
        let defaults = || self.routes.iter().filter(|route| route.is_default() && route.link.is_some());
        let metric = |route: &Route| route.priority.unwrap_or(0);
        let Some(best) = defaults().map(metric).min() else {
            return Err(self.none(format!("has the {} default route", self.family)));
        };
        let mut found: Vec<&Link> = defaults()
            .filter(|route| metric(route) == best)
            .filter_map(|route| self.links.iter().find(|link| Some(link.index) == route.link))
            .collect();
        found.sort_by_key(|link| link.index);
        found.dedup_by_key(|link| link.index);
        match found.as_slice() {
            [] => Err(self.none(format!("has the {} default route", self.family))),
            [one] => self.with_address(one),
            several => {
                Err(self
                    .several(format!("have an {} default route with metric {best}", self.family), several))
            }
        }
    }

    fn none(&self, what: String) -> Error {
        let all: Vec<&Link> = self.links.iter().filter(|link| link.flags & link::LOOPBACK == 0).collect();
        Error::NoInterface { what, candidates: self.list(&all) }
    }

    fn several(&self, what: String, links: &[&Link]) -> Error {
        Error::AmbiguousInterface { what, candidates: self.list(links) }
    }

    fn list(&self, links: &[&Link]) -> String {
        let one = |link: &&Link| format!("{} ({})", link.name, self.addresses_of(link));
        let all: Vec<String> = links.iter().map(one).collect();
        if all.is_empty() {
            "none".into()
        } else {
            all.join(", ")
        }
    }

    fn addresses_of(&self, link: &Link) -> String {
        let own = self.addresses.iter().filter(|one| one.link == link.index);
        let all: Vec<String> = own.map(|one| format!("{}/{}", one.ip, one.prefix)).collect();
        if all.is_empty() {
            "no address".into()
        } else {
            all.join(", ")
        }
    }
}
