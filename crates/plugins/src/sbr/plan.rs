//! Which table for which address, and which route goes where. No kernel here: lists in, lists out.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_spec::{addr, Error, Ip};
use podwire_kernel::rt::route::{self, Route};
use podwire_kernel::rt::rule::Rule;

/// Smaller numbers are left to people.
const FIRST_TABLE: u32 = 100;
/// `default`, `main` and `local` (linux/rtnetlink.h).
const RESERVED: std::ops::RangeInclusive<u32> = 253..=255;

/// The length of a prefix that is one address.
pub fn host_prefix(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() {
        32
    } else {
        128
    }
}

/// The gateways that the config names, at most one of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gateways {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Gateways {
    /// Reads the list in the config.
    pub fn parse(list: &[String]) -> Result<Gateways, Error> {
        let mut all = Gateways::default();
        for text in list {
            let ip = addr::parse_ip(text)
                .map_err(|_| Error::invalid_config(format!("invalid static gateway IP address: {text}")))?;
            let place = if ip.is_ipv4() { &mut all.v4 } else { &mut all.v6 };
            if let Some(other) = place.replace(ip) {
                let text = format!(
                    "gateways: {other} and {ip} are of the same family, at most one of each is possible"
                );
                return Err(Error::invalid_config(text));
            }
        }
        Ok(all)
    }

    pub(super) fn of(&self, ip: &Ip) -> Option<IpAddr> {
        let configured = if ip.address.addr().is_ipv4() { self.v4 } else { self.v6 };
        configured.or(ip.gateway)
    }
}

/// An address and the table in which packets from it look for their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub(super) address: IpNet,
    pub(super) gateway: Option<IpAddr>,
    pub(super) table: u32,
    /// Its rule is still to be made.
    pub is_new: bool,
}

impl Lane {
    /// "Packets from this address look into that table."
    pub fn rule(&self) -> Rule {
        let ip = self.address.addr();
        Rule { source: (ip, host_prefix(&ip)), table: self.table, priority: None }
    }

    pub(super) fn default_route(&self, link: u32) -> Option<Route> {
        let everywhere = match self.address {
            IpNet::V4(_) => IpAddr::from([0u8; 4]),
            IpNet::V6(_) => IpAddr::from([0u8; 16]),
        };
        let route = Route { table: self.table, link: Some(link), ..Route::to(everywhere, 0) };
        self.gateway.map(|gateway| Route { gateway: Some(gateway), ..route })
    }

    /// Whether a route of the interface is this address's business: it comes from its subnet, or leads through
    /// a gateway in it, or is for everyone.
    pub(super) fn claims(&self, route: &Route) -> bool {
        let within = |ip: Option<IpAddr>| ip.is_some_and(|ip| self.address.contains(&ip));
        self.is_of_family(route)
            && (within(route.source)
                || within(route.gateway)
                || (route.source.is_none() && route.gateway.is_none()))
    }

    pub(super) fn is_of_family(&self, route: &Route) -> bool {
        self.address.addr().is_ipv4() == route.dst.is_ipv4()
    }
}

/// What the config wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The table for all addresses, which the administrator fills.
    pub table: Option<u32>,
    /// The gateways in place of the recorded ones.
    pub gateways: Gateways,
    /// Whether routes on the wire stay in the main table.
    pub hints: bool,
}

impl Plan {
    /// The lane of `ip`, if its rule is there.
    pub fn find_lane(&self, ip: &Ip, rules: &[Rule]) -> Option<Lane> {
        let source = ip.address.addr();
        let ours = |rule: &&Rule| rule.source == (source, host_prefix(&source)) && self.fits(rule.table);
        let table = rules.iter().find(ours)?.table;
        Some(Lane { address: ip.address, gateway: self.gateways.of(ip), table, is_new: false })
    }

    /// Whether a table can be one of ours.
    pub(super) fn fits(&self, table: u32) -> bool {
        match self.table {
            Some(wanted) => table == wanted,
            None => table >= FIRST_TABLE && !RESERVED.contains(&table),
        }
    }

    /// A lane for each address. The rule of an ADD that was cut off says which table it began with; else each
    /// gets the first that is not `taken`, unless the config names one for all.
    pub fn lanes(&self, sources: &[Ip], rules: &[Rule], taken: &[u32]) -> Result<Vec<Lane>, Error> {
        if self.table == Some(0) {
            return Err(Error::invalid_config("table: 0 is no routing table"));
        }
        let mut free = (FIRST_TABLE..).filter(|number| !taken.contains(number) && !RESERVED.contains(number));
        let lane = |ip: &Ip| {
            self.find_lane(ip, rules).or_else(|| {
                let table = self.table.or_else(|| free.next())?;
                Some(Lane { address: ip.address, gateway: self.gateways.of(ip), table, is_new: true })
            })
        };
        let all: Option<Vec<Lane>> = sources.iter().map(lane).collect();
        all.ok_or_else(|| Error::internal("no routing table is free"))
    }

    /// Plans the move of the routes that `link` has in the main table.
    pub fn moves(&self, lanes: &[Lane], routes: &[Route], link: u32) -> Moves {
        let mut moves = Moves::default();
        moves.copies.extend(lanes.iter().filter_map(|lane| lane.default_route(link)));
        let is_ours = |route: &&Route| route.table == route::MAIN && route.link == Some(link);
        let mut of_link: Vec<&Route> = routes.iter().filter(is_ours).collect();
        // What is on the wire first: the way to a gateway must be there before the routes through it.
        of_link.sort_by_key(|route| route.gateway.is_some());
        for route in of_link {
            // A route that no address claims would be lost: all of its family get it.
            let claimed = lanes.iter().any(|lane| lane.claims(route));
            let takes = |lane: &&Lane| if claimed { lane.claims(route) } else { lane.is_of_family(route) };
            let takers: Vec<&Lane> = lanes.iter().filter(takes).collect();
            moves.copies.extend(takers.iter().map(|lane| Route { table: lane.table, ..route.clone() }));
            // Of a family in which the interface has no address: nobody else could use it.
            let Some(first) = takers.first() else { continue };
            let hint = Route { source: Some(first.address.addr()), ..route.clone() };
            // Neighbours on the wire are reached by link-local addresses, whoever sends.
            let stays = is_link_local(route) || (self.hints && route.gateway.is_none() && *route == hint);
            if !stays {
                moves.leaving.push(route.clone());
                moves.hints.extend(Some(hint).filter(|_| self.hints && route.gateway.is_none()));
            }
        }
        // Routes through a gateway leave first, as they rest on the others.
        moves.leaving.reverse();
        moves
    }
}

/// What happens to the interface's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Go into the lanes' tables.
    pub copies: Vec<Route>,
    /// Come to the main table, with the address to send from.
    pub hints: Vec<Route>,
    /// Leave the main table.
    pub leaving: Vec<Route>,
}

fn is_link_local(route: &Route) -> bool {
    matches!(route.dst, IpAddr::V6(v6) if v6.is_unicast_link_local() && route.prefix >= 10)
}

#[cfg(test)]
mod tests;
