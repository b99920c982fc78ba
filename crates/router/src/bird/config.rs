//! The config of BIRD: what follows for this node from pools, nodes and Calico's objects about BGP.
//!
//! - This node announces its blocks, whole, and no single pod.
//! - What it hears goes into the kernel, but for pools with tunnels: their roads are ours.
//! - It speaks to every other node (the mesh), or to those and to routers outside that `BGPPeer`s name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_block_ipam::selector::Selector;
use podwire_block_ipam::{key, BlockIndex, IpFamily, Node, Pool};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::filter;
use super::names::{self, hash};
use super::objects::{Configuration, Filter, NextHop, Object, Peer, DEFAULT_AS, RESTART};
use super::passwords::{Password, Passwords};
use super::Sketch;

/// So many seconds BIRD waits for a word of a peer.
const HOLD: u32 = 240;

/// What BIRD is told, which may hold passwords, and what of the objects could not be said.
pub(super) struct Config {
    pub(super) text: String,
    pub(super) problems: Vec<String>,
}

pub(super) fn config(node: &str, sketch: &Sketch, passwords: &Passwords) -> Config {
    let mut problems = Vec::new();
    let atlas = &sketch.atlas;
    let general: Configuration = object(atlas, key::BGP[0], "default", &mut problems).unwrap_or_default();
    let own: Configuration =
        object(atlas, key::BGP[0], &format!("node.{node}"), &mut problems).unwrap_or_default();
    let mut writer = Writer {
        atlas,
        node,
        settings: general.clone().overlaid(own),
        cluster: general.number().unwrap_or(DEFAULT_AS),
        addresses: sketch.places.iter().map(|(uplink, _)| uplink.address).collect(),
        filters: filters(atlas, &mut problems),
        passwords,
        text: String::new(),
        problems,
    };
    writer.write();
    Config { text: writer.text, problems: writer.problems }
}

fn object<T: DeserializeOwned + Default>(
    atlas: &BlockIndex,
    root: &str,
    name: &str,
    problems: &mut Vec<String>,
) -> Option<T> {
    let value = atlas.bgp.get(&format!("{root}{name}"))?;
    match serde_json::from_slice::<Object<T>>(value) {
        Ok(object) => Some(object.spec),
        Err(error) => {
            problems.push(format!("{root}{name} is left out: {error}"));
            None
        }
    }
}

/// All objects under a root, by their names.
fn objects<T: DeserializeOwned + Default>(
    atlas: &BlockIndex,
    root: &str,
    problems: &mut Vec<String>,
) -> BTreeMap<String, T> {
    let names = atlas.bgp.keys().filter_map(|key| key.strip_prefix(root));
    names.filter_map(|name| Some((name.to_owned(), object(atlas, root, name, problems)?))).collect()
}

/// The filters that could be said, each by its name.
fn filters(atlas: &BlockIndex, problems: &mut Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut said = BTreeMap::new();
    for (name, filter) in objects::<Filter>(atlas, key::BGP[2], problems) {
        let sides = [(true, true), (true, false), (false, true), (false, false)];
        let functions: Result<Vec<Option<String>>, String> =
            sides.into_iter().map(|(v4, import)| filter::function(&name, &filter, v4, import)).collect();
        match functions {
            Ok(functions) => drop(said.insert(name, functions.into_iter().flatten().collect())),
            Err(why) => problems.push(format!("BGPFilter {name}: {why}; peers that need it are left out")),
        }
    }
    said
}

/// A session that is to be.
struct Session<'a> {
    name: String,
    ip: IpAddr,
    port: Option<u16>,
    number: u32,
    /// Of whom this node is the reflector.
    is_client: bool,
    peer: Option<&'a Peer>,
    password: Option<Password>,
}

struct Writer<'a> {
    atlas: &'a BlockIndex,
    node: &'a str,
    settings: Configuration,
    /// The AS of nodes that have none of their own.
    cluster: u32,
    addresses: Vec<IpAddr>,
    filters: BTreeMap<String, Vec<String>>,
    passwords: &'a Passwords,
    text: String,
    problems: Vec<String>,
}

macro_rules! say {
    ($writer:expr, $($words:tt)*) => {
        // A String takes everything.
        let _ = writeln!($writer.text, $($words)*);
    };
}

impl Writer<'_> {
    fn write(&mut self) {
        say!(self, "# Written by podwire for node {}. Changes are lost.", self.node.escape_default());
        say!(self, "log syslog all;");
        let id = self.addresses.iter().find(|ip| ip.is_ipv4());
        say!(self, "router id {};", id.map_or_else(|| hashed(self.node), ToString::to_string));
        say!(self, "graceful restart wait 60;");
        say!(self, "protocol device {{ scan time 5; }}");
        let ignored = self.settings.ignored_interfaces.iter().flatten().cloned();
        let ignored = ["cali*", "vxlan*.calico", "podwire*"].map(String::from).into_iter().chain(ignored);
        let is_name = |name: &String| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*?@".contains(&byte))
        };
        let ignored: Vec<String> = ignored.filter(is_name).map(|name| format!("-\"{name}\"")).collect();
        say!(self, "protocol direct {{ ipv4; ipv6; interface {}, \"*\"; }}", ignored.join(", "));
        for functions in self.filters.values() {
            functions.iter().for_each(|function| self.text.push_str(function));
        }
        let peers: BTreeMap<String, Peer> = objects(self.atlas, key::BGP[1], &mut self.problems);
        let sessions = self.sessions(&peers);
        for v4 in [true, false] {
            self.family(v4);
        }
        for session in &sessions {
            self.session(session);
        }
    }

    /// Blocks, what goes to the kernel, and what goes to others.
    fn family(&mut self, v4: bool) {
        let family = if v4 { "ipv4" } else { "ipv6" };
        let digit = if v4 { 4 } else { 6 };
        let of_family = |net: &IpNet| net.addr().is_ipv4() == v4;
        let pools: Vec<&Pool> = self.atlas.pools.values().filter(|pool| of_family(&pool.cidr())).collect();
        let within = |nets: Vec<IpNet>| -> String {
            let all: Vec<String> = nets.iter().map(|net| format!("{net}+")).collect();
            format!("net ~ [ {} ]", all.join(", "))
        };
        let tunnelled: Vec<IpNet> =
            pools.iter().filter(|pool| pool.encapsulation().is_some()).map(|pool| pool.cidr()).collect();
        let reject = |nets: Vec<IpNet>| match nets.is_empty() {
            true => String::new(),
            false => format!("if ({}) then reject; ", within(nets)),
        };
        say!(
            self,
            "filter to_kernel{digit} {{ {}if (source = RTS_BGP) then accept; reject; }}",
            reject(tunnelled)
        );
        say!(
            self,
            "protocol kernel kernel{digit} {{ learn; persist; scan time 10; graceful restart; merge paths on; \
             {family} {{ import all; export filter to_kernel{digit}; }}; }}"
        );
        say!(self, "protocol static blocks{digit} {{ {family};");
        let own = self.atlas.routes().into_iter().filter(|(_, node)| *node == self.node);
        let own = own.map(|(net, _)| net).filter(of_family).filter(|net| is_announced(self.atlas, net));
        for block in own.collect::<BTreeSet<IpNet>>() {
            say!(self, "  route {block} blackhole;");
        }
        say!(self, "}}");
    }

    /// Who is spoken to.
    fn sessions<'p>(&mut self, peers: &'p BTreeMap<String, Peer>) -> Vec<Session<'p>> {
        let own = self.atlas.nodes.get(self.node).cloned().unwrap_or_else(|| Node::new(self.node));
        let mut sessions = Vec::new();
        if self.settings.node_to_node_mesh_enabled.unwrap_or(true)
            && own.route_reflector_cluster_id().is_none()
        {
            match self.mesh(&own) {
                Ok(mesh) => sessions.extend(mesh),
                Err(why) => self.problems.push(format!("the mesh of nodes is left out: {why}")),
            }
        }
        for (name, peer) in peers {
            let sessions_to = self.for_peer(name, peer, &own);
            match sessions_to.and_then(|more| self.with_password(more, peer.password.as_ref())) {
                Ok(more) => sessions.extend(more),
                Err(why) => self.problems.push(format!("BGPPeer {name} is left out: {why}")),
            }
        }
        // Who is named twice is spoken to once: by what a peer's object says rather than by the mesh.
        let mut spoken = BTreeSet::new();
        sessions.sort_by_key(|session| session.peer.is_none());
        sessions.retain(|session| spoken.insert((session.ip, session.port)));
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        sessions
    }

    /// The sessions to all other nodes but reflectors.
    fn mesh<'p>(&self, own: &Node) -> Result<Vec<Session<'p>>, String> {
        let others = self.atlas.nodes.values().filter(|node| node.name() != self.node);
        let others = others.filter(|node| node.route_reflector_cluster_id().is_none());
        let sessions = others.flat_map(|node| self.to_node(("mesh", ""), node, own, None)).collect();
        self.with_password(sessions, self.settings.node_mesh_password.as_ref())
    }

    /// Sessions, each with the password that is to be there; none without it. Who speaks to nobody needs none.
    fn with_password<'p>(
        &self,
        mut sessions: Vec<Session<'p>>,
        wanted: Option<&Value>,
    ) -> Result<Vec<Session<'p>>, String> {
        if let Some(wanted) = wanted.filter(|_| !sessions.is_empty()) {
            let password = self.passwords.find(wanted)?;
            sessions.iter_mut().for_each(|session| session.password = Some(password.clone()));
        }
        Ok(sessions)
    }

    fn for_peer<'p>(&self, name: &str, peer: &'p Peer, own: &Node) -> Result<Vec<Session<'p>>, String> {
        if peer.local_workload_selector.is_some() {
            return Err("peers that are pods are not supported".into());
        }
        let missing = peer.filters.iter().flatten().find(|name| !self.filters.contains_key(*name));
        if let Some(missing) = missing {
            return Err(format!("its filter {missing} is not there, or cannot be said in BIRD's language"));
        }
        let speaks = |node: &Node| match (&peer.node, &peer.node_selector) {
            (Some(named), _) => Ok(named == node.name()),
            (None, Some(selector)) => selected(selector, node),
            (None, None) => Ok(true),
        };
        if let Some(selector) = &peer.peer_selector {
            let mut sessions = Vec::new();
            let (own_speaks, own_named) = (speaks(own)?, selected(selector, own)?);
            for node in self.atlas.nodes.values().filter(|node| node.name() != self.node) {
                let forth = own_speaks && selected(selector, node)?;
                let back = peer.is_mutual() && own_named && speaks(node)?;
                if forth || back {
                    sessions.extend(self.to_node(("node", name), node, own, Some(peer)));
                }
            }
            return Ok(sessions);
        }
        if !speaks(own)? {
            return Ok(Vec::new());
        }
        let target = peer.peer_ip.as_deref().ok_or("it has neither peerIP nor peerSelector")?;
        let (ip, port) = endpoint(target).ok_or_else(|| format!("peerIP {target:?} is no address"))?;
        let number = peer.number().ok_or("it has no asNumber")?;
        if self.addresses.contains(&ip) {
            return Ok(Vec::new());
        }
        if matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return Err(format!("peerIP {ip} is of one link only, and nobody says of which"));
        }
        if port == Some(0) || number == 0 {
            return Err("neither its port nor its asNumber may be 0".into());
        }
        let name = names::session("peer", name, &ip.to_string());
        let is_client = is_client(
            own,
            self.atlas.nodes.values().find(|node| has_address(node, ip)),
            number,
            self.own_number(own),
        );
        Ok(vec![Session { name, ip, port, number, is_client, peer: Some(peer), password: None }])
    }

    fn own_number(&self, own: &Node) -> u32 {
        own.asn().or_else(|| self.settings.number()).unwrap_or(self.cluster)
    }

    /// The sessions to another node: one for each family that both have.
    fn to_node<'p>(
        &self,
        (kind, name): (&str, &str),
        node: &Node,
        own: &Node,
        peer: Option<&'p Peer>,
    ) -> Vec<Session<'p>> {
        let number = peer.and_then(Peer::number).or_else(|| node.asn()).unwrap_or(self.cluster);
        let both = [IpFamily::V4, IpFamily::V6]
            .into_iter()
            .filter(|family| self.addresses.iter().any(|ip| IpFamily::of(*ip) == *family));
        both.filter_map(|family| {
            let ip = node.address(family)?.addr();
            Some(Session {
                name: names::session(kind, name, &ip.to_string()),
                ip,
                port: self.settings.listen_port,
                number,
                is_client: is_client(own, Some(node), number, self.own_number(own)),
                peer,
                password: None,
            })
        })
        .collect()
    }

    fn session(&mut self, session: &Session<'_>) {
        let v4 = session.ip.is_ipv4();
        let (family, digit) = if v4 { ("ipv4", 4) } else { ("ipv6", 6) };
        let own = self.atlas.nodes.get(self.node).cloned().unwrap_or_else(|| Node::new(self.node));
        let peer = session.peer;
        let local = peer.and_then(Peer::local_number).unwrap_or_else(|| self.own_number(&own));
        let Session { name, ip, port, number, is_client, .. } = session;
        if let Some(gateway) = peer.and_then(|peer| peer.reachable_by.as_ref()) {
            match gateway.parse::<IpAddr>() {
                Ok(gateway) => {
                    say!(
                        self,
                        "protocol static reach_{name} {{ {family}; route {} via {gateway}; }}",
                        IpNet::from(*ip)
                    );
                }
                Err(_) => self.problems.push(format!("{name}: reachableBy {gateway:?} is no address")),
            }
        }
        say!(self, "protocol bgp {name} {{");
        let source = self.addresses.iter().find(|own| own.is_ipv4() == v4);
        let port_of = self.settings.listen_port.map(|port| format!(" port {port}")).unwrap_or_default();
        match source.filter(|_| peer.is_none_or(|peer| peer.source_address.as_deref() != Some("None"))) {
            Some(source) => {
                say!(self, "  local {source}{port_of} as {local};");
            }
            None => {
                say!(self, "  local{port_of} as {local};");
            }
        }
        let their_port = port.map(|port| format!(" port {port}")).unwrap_or_default();
        say!(self, "  neighbor {ip}{their_port} as {number};");
        if let Some(password) = &session.password {
            say!(self, "  password {};", password.quoted());
        }
        match peer.and_then(|peer| peer.ttl_security).filter(|hops| *hops > 0) {
            Some(hops) => {
                say!(self, "  multihop {hops}; ttl security on;");
            }
            None => {
                say!(self, "  multihop;");
            }
        }
        let restart = peer.and_then(Peer::restart).or_else(|| self.settings.restart()).unwrap_or(RESTART);
        say!(self, "  graceful restart on; graceful restart time {restart};");
        say!(self, "  connect delay time 1; connect retry time 5; error wait time 1, 10;");
        match peer.and_then(Peer::keepalive) {
            None => {}
            Some(keepalive) if (1..=HOLD).contains(&keepalive) => {
                say!(self, "  keepalive time {keepalive};");
            }
            Some(odd) => {
                let why = format!("{name}: keepaliveTime of {odd} s is not within BIRD's hold time of {HOLD} s: BIRD chooses one");
                self.problems.push(why);
            }
        }
        if let Some(times) = peer.and_then(|peer| peer.allowed_local) {
            say!(self, "  allow local as {times};");
        }
        if *is_client {
            let id = own.route_reflector_cluster_id().and_then(|id| id.parse::<std::net::Ipv4Addr>().ok());
            say!(self, "  rr client;");
            if let Some(id) = id {
                say!(self, "  rr cluster id {id};");
            }
        }
        let filters: Vec<String> = peer.and_then(|peer| peer.filters.clone()).unwrap_or_default();
        let calls = |import: bool| -> String {
            let has = |name: &&String| {
                let call = filter::call(name, v4, import);
                self.filters[*name].iter().any(|function| function.contains(&format!("{call}()")))
            };
            filters.iter().filter(has).map(|name| format!("{}(); ", filter::call(name, v4, import))).collect()
        };
        let (import, export) = (calls(true), calls(false));
        // A router outside hears of each node's blocks from that node. Only a reflector speaks for others, and it is not on the way to them.
        let (is_outside, is_reflector) = (*number != local, own.route_reflector_cluster_id().is_some());
        let learned = match is_outside && !is_reflector {
            true => "",
            false => " || source = RTS_BGP",
        };
        let hop = match peer.map_or(NextHop::Auto, Peer::next_hop) {
            NextHop::Auto if is_outside && is_reflector => " next hop keep;",
            NextHop::Auto => "",
            NextHop::Own => " next hop self;",
            NextHop::Keep => " next hop keep;",
        };
        let bar = self.unsaid(v4);
        say!(
            self,
            "  {family} {{ import filter {{ {import}accept; }}; export filter {{ {bar}{export}if (proto = \"blocks{digit}\"{learned}) then accept; reject; }}; \
             add paths on; gateway recursive;{hop} }};"
        );
        say!(self, "}}");
    }

    /// What is told to nobody: pools that are not to be exported.
    fn unsaid(&self, v4: bool) -> String {
        let pools = self.atlas.pools.values().filter(|pool| !pool.is_exported());
        let nets = pools.map(Pool::cidr).filter(|net| net.addr().is_ipv4() == v4);
        let nets: Vec<String> = nets.map(|net| format!("{net}+")).collect();
        match nets.is_empty() {
            true => String::new(),
            false => format!("if (net ~ [ {} ]) then reject; ", nets.join(", ")),
        }
    }
}

/// Blocks are announced, and single addresses only if another node's block would swallow them.
fn is_announced(atlas: &BlockIndex, net: &IpNet) -> bool {
    atlas.pool_of(net).is_some_and(Pool::is_exported)
}

/// A reflector has as clients those of its AS that are none, or that are of another cluster of them.
fn is_client(own: &Node, peer: Option<&Node>, number: u32, own_number: u32) -> bool {
    let theirs = peer.and_then(Node::route_reflector_cluster_id);
    own.route_reflector_cluster_id().is_some()
        && number == own_number
        && own.route_reflector_cluster_id() != theirs
}

fn has_address(node: &Node, ip: IpAddr) -> bool {
    node.address(IpFamily::of(ip)).is_some_and(|net| net.addr() == ip)
}

fn selected(selector: &str, node: &Node) -> Result<bool, String> {
    let selector = Selector::parse(selector).map_err(|why| format!("selector {selector:?}: {why}"))?;
    Ok(selector.matches(&node.labels()))
}

/// `10.0.0.1`, `10.0.0.1:179`, `fd00::1`, `[fd00::1]:179`.
fn endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, None));
    }
    let socket: std::net::SocketAddr = text.parse().ok()?;
    Some((socket.ip(), Some(socket.port())))
}

/// A number for a router without an IPv4 address, in the form of one.
fn hashed(node: &str) -> String {
    std::net::Ipv4Addr::from(hash(node).max(1)).to_string()
}

#[cfg(test)]
mod tests;
