//! Which interface, and which of its addresses, a node meets the others at.
//!
//! What is said decides: a name or an address, a pattern, an address to be reached, the address by which the cluster knows the
//! node. Only if nothing is said it is the interface of the default route. It is never guessed between two: a wrong
//! interface gives a cluster that half works.
//!
//! It is chosen for each family by itself: the default routes of IPv4 and IPv6 may lead through different interfaces.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::{Host, Link};
use podwire_netlink::rt::address::{self, Address};
use podwire_netlink::rt::link;
use podwire_netlink::rt::route::{self, Route};
use regex_lite::Regex;

use crate::{Error, Result};

const SCOPE_UNIVERSE: u8 = libc::RT_SCOPE_UNIVERSE;
const SCOPE_LINK: u8 = libc::RT_SCOPE_LINK;
/// Of linux/if_addr.h: made for a while by privacy extensions (IPv6), or a second one of its network (IPv4).
const IFA_F_SECONDARY: u32 = 0x01;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_PERMANENT: u32 = 0x80;

/// The interface at which a node meets the others, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
    /// The address on it.
    pub address: IpAddr,
}

/// What was said about the interface, in the order in which it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkPreference {
    /// Names or addresses; the first that is there is taken (`--iface`).
    pub interfaces: Vec<String>,
    /// Patterns for an address or a name; the first that fits something (`--iface-regex`).
    pub patterns: Vec<String>,
    /// An address that is to be reached through it (`--iface-can-reach`).
    pub can_reach: Vec<IpAddr>,
    /// Addresses of this node by which the cluster knows it (InternalIP, `--public-ip`).
    pub node_addresses: Vec<IpAddr>,
}

/// What the node has.
struct Survey {
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Route>,
    family: IpFamily,
}

impl UplinkPreference {
    /// The uplink for IPv4 or IPv6.
    pub fn choose(&self, host: &mut Host, family: IpFamily) -> Result<Uplink> {
        let links = link::list(&mut host.route)?;
        let addresses = address::list(&mut host.route, 0)?;
        let routes =
            route::list_table(&mut host.route, family.unspecified(), route::MAIN).unwrap_or_default();
        let survey = Survey { links, addresses, routes, family };
        if let Some(found) = self.said(&survey)? {
            return Ok(found);
        }
        if let Some(target) = self.can_reach.iter().find(|ip| IpFamily::of(**ip) == family) {
            let way = route::towards(&mut host.route, *target)
                .map_err(|source| Error::Unreachable { address: *target, source })?;
            return survey.reached_by(&way);
        }
        if let Some(found) = self.node_addresses.iter().find_map(|ip| survey.holder(*ip)) {
            return Ok(found);
        }
        survey.default_route()
    }

    /// By names and patterns; an error if some were given and none fits.
    fn said(&self, survey: &Survey) -> Result<Option<Uplink>> {
        for wish in &self.interfaces {
            let by_address = wish.parse().ok().and_then(|ip| survey.holder(ip));
            if let Some(found) = by_address {
                return Ok(Some(found));
            }
            if let Some(link) = survey.links.iter().find(|link| link.name == *wish) {
                return survey.with_address(link).map(Some);
            }
            // Of the other family: it names the interface all the same.
            if let Some(link) = wish.parse().ok().and_then(|ip| survey.link_with(ip)) {
                return survey.with_address(link).map(Some);
            }
        }
        for pattern in &self.patterns {
            let regex = Regex::new(pattern)
                .map_err(|error| Error::BadPattern { pattern: pattern.clone(), reason: error.to_string() })?;
            if let Some(found) = survey.matching(&regex)? {
                return Ok(Some(found));
            }
        }
        if self.interfaces.is_empty() && self.patterns.is_empty() {
            return Ok(None);
        }
        let wishes = self.interfaces.iter().chain(&self.patterns).cloned().collect::<Vec<_>>().join(", ");
        Err(survey.nothing(format!("is or fits {wishes}")))
    }
}

impl Survey {
    fn link_with(&self, ip: IpAddr) -> Option<&Link> {
        let index = self.addresses.iter().find(|one| one.ip == ip)?.link;
        self.links.iter().find(|link| link.index == index)
    }

    /// The interface with exactly this address.
    fn holder(&self, ip: IpAddr) -> Option<Uplink> {
        let link = self.link_with(ip).filter(|_| IpFamily::of(ip) == self.family)?;
        Some(Uplink { index: link.index, name: link.name.clone(), mtu: link.mtu, address: ip })
    }

    /// The addresses of a link that others can reach, the best first.
    fn usable(&self, link: &Link) -> Vec<&Address> {
        let mut all: Vec<&Address> = self
            .addresses
            .iter()
            .filter(|one| one.link == link.index && IpFamily::of(one.ip) == self.family)
            .filter(|one| matches!(one.scope, SCOPE_UNIVERSE | SCOPE_LINK) && !one.ip.is_loopback())
            .filter(|one| !one.is_duplicate())
            .collect();
        // A stable sort: among equals the kernel's order holds.
        all.sort_by_key(|one| {
            let has = |flag: u32| one.flags & flag != 0;
            let fleeting = self.family.is_v6() && !has(IFA_F_PERMANENT);
            (one.scope != SCOPE_UNIVERSE, has(IFA_F_DEPRECATED), has(IFA_F_SECONDARY), fleeting)
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

    /// The one interface of which an address or the name fits. Addresses are looked at first, as by flannel.
    fn matching(&self, regex: &Regex) -> Result<Option<Uplink>> {
        let by_address = |link: &&Link| {
            self.addresses.iter().any(|one| one.link == link.index && regex.is_match(&one.ip.to_string()))
        };
        let mut fitting: Vec<&Link> = self.candidates().filter(by_address).collect();
        if fitting.is_empty() {
            fitting = self.candidates().filter(|link| regex.is_match(&link.name)).collect();
        }
        match fitting.as_slice() {
            [] => Ok(None),
            [one] => {
                // The address that fits, if one of this family does.
                let fits = |one: &&&Address| regex.is_match(&one.ip.to_string());
                let address = self.usable(one).iter().find(fits).map(|found| found.ip);
                let uplink = self.with_address(one)?;
                Ok(Some(Uplink { address: address.unwrap_or(uplink.address), ..uplink }))
            }
            several => Err(self.several(format!("fit the pattern {:?}", regex.as_str()), several)),
        }
    }

    /// Links that can be uplinks at all: up, not a loopback, none of ours, and with an address.
    fn candidates(&self) -> impl Iterator<Item = &Link> {
        let ours = |link: &Link| link.name.starts_with("flannel") || link.alias == crate::ALIAS;
        self.links.iter().filter(move |link| {
            link.is_up() && link.flags & link::LOOPBACK == 0 && !ours(link) && !self.usable(link).is_empty()
        })
    }

    fn reached_by(&self, way: &Route) -> Result<Uplink> {
        let link = way.link.and_then(|index| self.links.iter().find(|link| link.index == index));
        let Some(link) = link else { return Err(self.nothing(format!("leads to {}", way.dst))) };
        let uplink = self.with_address(link)?;
        Ok(Uplink { address: way.source.unwrap_or(uplink.address), ..uplink })
    }

    /// The interface of the default route with the smallest metric.
    fn default_route(&self) -> Result<Uplink> {
        let defaults = || self.routes.iter().filter(|way| way.is_default() && way.link.is_some());
        let metric = |way: &Route| way.priority.unwrap_or(0);
        let Some(best) = defaults().map(metric).min() else {
            return Err(self.nothing(format!("has the {} default route", self.family)));
        };
        let mut found: Vec<&Link> = defaults()
            .filter(|way| metric(way) == best)
            .filter_map(|way| self.links.iter().find(|link| Some(link.index) == way.link))
            .collect();
        found.sort_by_key(|link| link.index);
        found.dedup_by_key(|link| link.index);
        match found.as_slice() {
            [] => Err(self.nothing(format!("has the {} default route", self.family))),
            [one] => self.with_address(one),
            several => {
                Err(self.several(format!("have an {} default route of metric {best}", self.family), several))
            }
        }
    }

    fn nothing(&self, what: String) -> Error {
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
