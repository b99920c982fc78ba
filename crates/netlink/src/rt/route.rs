//! Routes (`linux/rtnetlink.h`).

use std::net::IpAddr;

use podwire_ip::IpFamily;

use super::address_family;
use crate::attr::Attr;
use crate::error::Result;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTNH_F_ONLINK: u32 = 4;

/// The main table, which is used unless a rule selects another.
pub const MAIN: u32 = libc::RT_TABLE_MAIN as u32;
/// `RT_SCOPE_UNIVERSE`: behind a gateway.
pub const UNIVERSE: u8 = libc::RT_SCOPE_UNIVERSE;
/// `RT_SCOPE_LINK`: on the link.
pub const LINK: u8 = libc::RT_SCOPE_LINK;
/// `RT_SCOPE_NOWHERE`: in a deletion, "any scope".
pub const NOWHERE: u8 = libc::RT_SCOPE_NOWHERE;
/// `RTPROT_KERNEL`: created by the kernel for an address.
pub const BY_KERNEL: u8 = libc::RTPROT_KERNEL;
/// `RTPROT_BOOT`: created by a tool without a protocol number.
pub const BY_TOOL: u8 = libc::RTPROT_BOOT;
/// `RTPROT_STATIC`: created by an administrator.
pub const BY_ADMINISTRATOR: u8 = libc::RTPROT_STATIC;
const UNICAST: u8 = libc::RTN_UNICAST;

/// A route with one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination address; all zero for the default route.
    pub dst: IpAddr,
    /// Length of the destination's prefix.
    pub prefix: u8,
    /// The next hop; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The link's index.
    pub link: Option<u32>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// Table number.
    pub table: u32,
    /// Metric: smaller wins.
    pub priority: Option<u32>,
    /// `RT_SCOPE_…`.
    pub scope: u8,
    /// `RTPROT_…`: the program that created it.
    pub protocol: u8,
    /// `RTN_…`: unicast, local, blackhole…
    pub kind: u8,
    /// Treat the gateway as on the link even if no route says so.
    pub onlink: bool,
    /// Path MTU.
    pub mtu: Option<u32>,
    /// The TCP segment size to announce.
    pub advmss: Option<u32>,
}

impl Route {
    /// A unicast route of the main table to `dst`/`prefix`.
    pub fn to(dst: IpAddr, prefix: u8) -> Route {
        Route {
            dst,
            prefix,
            gateway: None,
            link: None,
            source: None,
            table: MAIN,
            priority: None,
            scope: UNIVERSE,
            protocol: BY_TOOL,
            kind: UNICAST,
            onlink: false,
            mtu: None,
            advmss: None,
        }
    }

    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.prefix == 0
    }

    fn describe(&self, verb: &str) -> String {
        let mut text = if self.is_default() {
            format!("{verb} default route")
        } else {
            format!("{verb} route to {}/{}", self.dst, self.prefix)
        };
        if let Some(gateway) = self.gateway {
            text += &format!(" via {gateway}");
        }
        if self.table != MAIN {
            text += &format!(" in table {}", self.table);
        }
        text
    }

    fn encode(&self, kind: u16, flags: u16, doing: String) -> Message {
        let small = if self.table < 256 { self.table as u8 } else { libc::RT_TABLE_COMPAT };
        let head = [
            address_family(IpFamily::of(self.dst)),
            self.prefix,
            0,
            0,
            small,
            self.protocol,
            self.scope,
            self.kind,
        ];
        let nexthop = if self.onlink { RTNH_F_ONLINK } else { 0 };
        Message::new(kind, flags, doing)
            .raw(&[&head[..], &nexthop.to_ne_bytes()].concat())
            .maybe((self.prefix > 0).then_some(self.dst), |m, dst| m.ip(RTA_DST, dst))
            .maybe(self.gateway, |m, gateway| m.ip(RTA_GATEWAY, gateway))
            .maybe(self.link, |m, link| m.u32(RTA_OIF, link))
            .maybe(self.source, |m, source| m.ip(RTA_PREFSRC, source))
            .maybe(self.priority, |m, priority| m.u32(RTA_PRIORITY, priority))
            .maybe((self.table >= 256).then_some(self.table), |m, table| m.u32(RTA_TABLE, table))
            .maybe((self.mtu.is_some() || self.advmss.is_some()).then_some(()), |m, ()| {
                m.nest(RTA_METRICS, |m| {
                    m.maybe(self.mtu, |m, mtu| m.u32(RTAX_MTU, mtu))
                        .maybe(self.advmss, |m, advmss| m.u32(RTAX_ADVMSS, advmss))
                })
            })
    }

    /// A message that adds the route after others to the same destination (IPv4), or as another path (IPv6).
    pub fn add(&self) -> Message {
        self.encode(libc::RTM_NEWROUTE, super::APPEND, self.describe("add"))
    }

    /// As [`add`](Self::add), but before the others in IPv4, so that packets take this one.
    pub fn prepend(&self) -> Message {
        self.encode(libc::RTM_NEWROUTE, super::PREPEND, self.describe("add"))
    }

    /// A message that adds the route or replaces the one to the same destination.
    pub fn replace(&self) -> Message {
        self.encode(libc::RTM_NEWROUTE, super::REPLACE, self.describe("add"))
    }

    /// A message that adds the route; fails if there is one with the same destination and metric.
    pub fn create(&self) -> Message {
        self.encode(libc::RTM_NEWROUTE, super::CREATE, self.describe("add"))
    }

    /// A message that deletes the route.
    pub fn delete(&self) -> Message {
        self.encode(libc::RTM_DELROUTE, 0, self.describe("delete"))
    }

    /// Reads the route's paths from `RTM_NEWROUTE` (or `RTM_DELROUTE`).
    pub fn read_into(frame: Frame<'_>, all: &mut Vec<Route>) -> Option<()> {
        if frame.kind != libc::RTM_NEWROUTE && frame.kind != libc::RTM_DELROUTE {
            return None;
        }
        let head = frame.body.get(..12)?;
        let zero = match i32::from(head[0]) {
            libc::AF_INET => IpAddr::from([0u8; 4]),
            libc::AF_INET6 => IpAddr::from([0u8; 16]),
            _ => return None,
        };
        let mut route = Route::to(zero, head[1]);
        (route.table, route.protocol, route.scope, route.kind) =
            (u32::from(head[4]), head[5], head[6], head[7]);
        // The flags of the only next hop are the route's.
        route.onlink = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) & RTNH_F_ONLINK != 0;
        let mut paths = None;
        for attr in frame.attrs(12) {
            match attr.kind {
                RTA_DST => route.dst = attr.ip()?,
                RTA_TABLE => route.table = attr.u32()?,
                RTA_PRIORITY => route.priority = attr.u32(),
                RTA_PREFSRC => route.source = attr.ip(),
                RTA_METRICS => route.read_metrics(attr),
                RTA_MULTIPATH => paths = Some(attr.value),
                _ => route.read_path(attr),
            }
        }
        match paths {
            None => all.push(route),
            Some(bytes) => read_paths(bytes, &route, all),
        }
        Some(())
    }

    fn read_path(&mut self, attr: Attr<'_>) {
        match attr.kind {
            RTA_OIF => self.link = attr.u32(),
            RTA_GATEWAY => self.gateway = attr.ip(),
            _ => {}
        }
    }

    fn read_metrics(&mut self, metrics: Attr<'_>) {
        for attr in metrics.nested() {
            match attr.kind {
                RTAX_MTU => self.mtu = attr.u32(),
                RTAX_ADVMSS => self.advmss = attr.u32(),
                _ => {}
            }
        }
    }
}

/// `struct rtnexthop`: length, flags, hops, interface; attributes follow.
fn read_paths(mut bytes: &[u8], route: &Route, all: &mut Vec<Route>) {
    while let Some(head) = bytes.get(..8) {
        let length = u16::from_ne_bytes([head[0], head[1]]) as usize;
        let Some(attrs) = bytes.get(8..length) else { return };
        let mut path = route.clone();
        path.link = Some(u32::from_ne_bytes([head[4], head[5], head[6], head[7]]));
        path.onlink = u32::from(head[2]) & RTNH_F_ONLINK != 0;
        crate::attr::attrs(attrs).for_each(|attr| path.read_path(attr));
        all.push(path);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

/// The index of the link by which a packet to `ip` leaves.
pub fn lookup(route: &mut Socket, ip: IpAddr) -> Result<u32> {
    let full = IpFamily::of(ip).bits();
    let message = Route { table: 0, protocol: 0, kind: 0, ..Route::to(ip, full) }.encode(
        libc::RTM_GETROUTE,
        0,
        format!("look up the route to {ip}"),
    );
    route
        .query(message, |frame| frame.attrs(12).find(|attr| attr.kind == RTA_OIF).and_then(|attr| attr.u32()))
}

/// As [`lookup`]; `None` if there is no route, or an unreachable, prohibit or blackhole route.
pub fn find(route: &mut Socket, ip: IpAddr) -> Result<Option<u32>> {
    let no_route = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
    match lookup(route, ip) {
        Err(error) if error.errno().is_some_and(|errno| no_route.contains(&errno)) => Ok(None),
        found => found.map(Some),
    }
}

/// The route that a packet to `ip` takes: link, gateway, preferred source.
pub fn get(route: &mut Socket, ip: IpAddr) -> Result<Route> {
    let full = IpFamily::of(ip).bits();
    let request = Route { table: 0, protocol: 0, kind: 0, ..Route::to(ip, full) };
    let message = request.encode(libc::RTM_GETROUTE, 0, format!("look up the route to {ip}"));
    route.query(message, |frame| {
        let mut routes = Vec::new();
        Route::read_into(frame, &mut routes);
        routes.pop()
    })
}

/// The routes of one family in one table, of any kind, a row for each path. Kernels from 4.20 on filter by table.
pub fn list_table(route: &mut Socket, family: IpFamily, table: u32) -> Result<Vec<Route>> {
    let mut head = [0; 12];
    head[0] = address_family(family);
    let message = Message::new(libc::RTM_GETROUTE, 0, format!("list routes of table {table}"))
        .raw(&head)
        .u32(RTA_TABLE, table);
    let rows = route.list(message, |frame| {
        let mut rows = Vec::new();
        Route::read_into(frame, &mut rows);
        Some(rows)
    })?;
    Ok(rows.into_iter().flatten().filter(|route| route.table == table).collect())
}

/// The unicast routes of every table and both families, a row for each path.
pub fn list(route: &mut Socket) -> Result<Vec<Route>> {
    let mut all = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut head = [0; 12];
        head[0] = family as u8;
        let message = Message::new(libc::RTM_GETROUTE, 0, "list routes").raw(&head);
        let rows = route.list(message, |frame| {
            let mut rows = Vec::new();
            Route::read_into(frame, &mut rows);
            Some(rows)
        })?;
        all.extend(rows.into_iter().flatten().filter(|route| route.kind == UNICAST));
    }
    Ok(all)
}
