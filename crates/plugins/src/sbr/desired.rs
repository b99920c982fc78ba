//! Computes the desired tables and routes: which table for which address, and which route into which table. No I/O.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_spec::{addr, Error, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::route::{self, Route};
use podwire_kernel::rt::rule::Rule;

/// Smaller numbers are left to administrators.
const FIRST_TABLE: u32 = 100;
/// `default`, `main` and `local` (linux/rtnetlink.h).
const RESERVED: std::ops::RangeInclusive<u32> = 253..=255;

/// The prefix length of a single address.
pub fn host_prefix(ip: &IpAddr) -> u8 {
    IpFamily::of(*ip).bits()
}

/// The configured gateways, at most one of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gateways {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Gateways {
    /// Parses the list of the config.
    pub fn parse(list: &[String]) -> Result<Gateways, Error> {
        let mut all = Gateways::default();
        for text in list {
            let ip = addr::parse_ip(text)
                .map_err(|_| Error::invalid_config(format!("invalid static gateway IP address: {text}")))?;
            let gateway = if ip.is_ipv4() { &mut all.v4 } else { &mut all.v6 };
            if let Some(other) = gateway.replace(ip) {
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

/// An address and the routing table for packets from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTable {
    pub(super) address: IpNet,
    pub(super) gateway: Option<IpAddr>,
    pub(super) number: u32,
    /// Whether its rule must be added.
    pub is_new: bool,
}

impl SourceTable {
    /// The rule that sends packets from the address to the table.
    pub fn rule(&self) -> Rule {
        let ip = self.address.addr();
        Rule { source: (ip, host_prefix(&ip)), table: self.number, priority: None }
    }

    pub(super) fn default_route(&self, link: u32) -> Option<Route> {
        let everything = IpFamily::of_net(self.address).unspecified();
        let route = Route { table: self.number, link: Some(link), ..Route::to(everything, 0) };
        self.gateway.map(|gateway| Route { gateway: Some(gateway), ..route })
    }

    /// Whether a route of the interface belongs to this address: its source or gateway is in the address's subnet, or
    /// it has neither.
    pub(super) fn claims(&self, route: &Route) -> bool {
        let within = |ip: Option<IpAddr>| ip.is_some_and(|ip| self.address.contains(&ip));
        self.is_of_family(route)
            && (within(route.source)
                || within(route.gateway)
                || (route.source.is_none() && route.gateway.is_none()))
    }

    pub(super) fn is_of_family(&self, route: &Route) -> bool {
        IpFamily::of_net(self.address) == IpFamily::of(route.dst)
    }
}

/// The settings of the config.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceRouting {
    /// The table for all addresses, which the administrator fills.
    pub table: Option<u32>,
    /// The gateways to use instead of the recorded ones.
    pub gateways: Gateways,
    /// Whether on-link routes stay in the main table, with a source address as a hint.
    pub hints: bool,
}

impl SourceRouting {
    /// The table of `ip`, if its rule exists.
    pub fn find_table(&self, ip: &Ip, rules: &[Rule]) -> Option<SourceTable> {
        let source = ip.address.addr();
        let is_ours = |rule: &&Rule| rule.source == (source, host_prefix(&source)) && self.fits(rule.table);
        let table = rules.iter().find(is_ours)?.table;
        Some(SourceTable { address: ip.address, gateway: self.gateways.of(ip), number: table, is_new: false })
    }

    /// Whether sbr may use the table.
    pub(super) fn fits(&self, table: u32) -> bool {
        match self.table {
            Some(wanted) => table == wanted,
            None => table >= FIRST_TABLE && !RESERVED.contains(&table),
        }
    }

    /// A table for each address. An address that has a rule, from an interrupted ADD, keeps its table. Other addresses
    /// get the first that is not `taken`, unless the config names a table for all.
    pub fn tables(&self, sources: &[Ip], rules: &[Rule], taken: &[u32]) -> Result<Vec<SourceTable>, Error> {
        if self.table == Some(0) {
            return Err(Error::invalid_config("table: 0 is not a routing table"));
        }
        let mut free = (FIRST_TABLE..).filter(|number| !taken.contains(number) && !RESERVED.contains(number));
        let table = |ip: &Ip| {
            self.find_table(ip, rules).or_else(|| {
                let table = self.table.or_else(|| free.next())?;
                Some(SourceTable {
                    address: ip.address,
                    gateway: self.gateways.of(ip),
                    number: table,
                    is_new: true,
                })
            })
        };
        let all: Option<Vec<SourceTable>> = sources.iter().map(table).collect();
        all.ok_or_else(|| Error::internal("no routing table is free"))
    }

    /// Computes how the routes of `link` move from the main table.
    pub fn moves(&self, tables: &[SourceTable], routes: &[Route], link: u32) -> RouteMoves {
        let mut moves = RouteMoves::default();
        moves.copies.extend(tables.iter().filter_map(|table| table.default_route(link)));
        let is_ours = |route: &&Route| route.table == route::MAIN && route.link == Some(link);
        let mut of_link: Vec<&Route> = routes.iter().filter(is_ours).collect();
        // On-link routes first: a gateway must be reachable before a route through it is added.
        of_link.sort_by_key(|route| route.gateway.is_some());
        for route in of_link {
            // A route that no address claims goes to all tables of its family.
            let is_claimed = tables.iter().any(|table| table.claims(route));
            let takes = |table: &&SourceTable| {
                if is_claimed {
                    table.claims(route)
                } else {
                    table.is_of_family(route)
                }
            };
            let takers: Vec<&SourceTable> = tables.iter().filter(takes).collect();
            moves.copies.extend(takers.iter().map(|table| Route { table: table.number, ..route.clone() }));
            // A route of a family in which the interface has no address stays in the main table.
            let Some(first) = takers.first() else { continue };
            let hint = Route { source: Some(first.address.addr()), ..route.clone() };
            // Link-local routes stay, because neighbour discovery needs them for every source.
            let stays = is_link_local(route) || (self.hints && route.gateway.is_none() && *route == hint);
            if !stays {
                moves.leaving.push(route.clone());
                moves.hints.extend(Some(hint).filter(|_| self.hints && route.gateway.is_none()));
            }
        }
        // Routes through a gateway are deleted first, because they depend on the others.
        moves.leaving.reverse();
        moves
    }
}

/// The changes to the interface's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMoves {
    /// Routes to add to the tables of addresses.
    pub copies: Vec<Route>,
    /// Routes to add to the main table, with a source address.
    pub hints: Vec<Route>,
    /// Routes to delete from the main table.
    pub leaving: Vec<Route>,
}

fn is_link_local(route: &Route) -> bool {
    matches!(route.dst, IpAddr::V6(v6) if v6.is_unicast_link_local() && route.prefix >= 10)
}

#[cfg(test)]
mod tests;
