//! Builds BIRD's configuration for a node from pools, nodes and Calico's BGP objects.
//!
//! - The node announces its whole blocks, never single pods.
//! - BIRD writes the routes that it learns to the kernel, except those of pools with tunnels: the agent writes them.
//! - The node has sessions with all other nodes (the mesh) and with the peers of `BGPPeer` objects.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use podwire_block_ipam::{key, BlockIndex, IpFamily, Node, Pool};
use serde::de::DeserializeOwned;

use crate::filter;
use crate::model::{
    BgpProtocol, BirdConfig, Channel, Direction, FamilyTables, Function, NextHop, Reflection, Speaker,
};
use crate::names::hash;
use crate::objects::{Configuration, Filter, Object, Peer, DEFAULT_ASN, RESTART_TIME};
use crate::passwords::Passwords;
use crate::sessions::{Session, Sessions};
use crate::Desired;

/// BIRD's hold time in seconds; a keepalive interval must be shorter.
const HOLD_TIME: u32 = 240;

/// The configuration, which may contain passwords, and the objects that could not be applied.
pub(crate) struct Config {
    pub(crate) text: String,
    pub(crate) problems: Vec<String>,
}

/// Builds the configuration of `node`.
pub(crate) fn config(node: &str, desired: &Desired, passwords: &Passwords) -> Config {
    let mut problems = Vec::new();
    let index = &desired.index;
    let general: Configuration = object(index, key::BGP[0], "default", &mut problems).unwrap_or_default();
    let own: Configuration =
        object(index, key::BGP[0], &format!("node.{node}"), &mut problems).unwrap_or_default();
    let mut builder = Builder {
        index,
        node: index.nodes.get(node).cloned().unwrap_or_else(|| Node::new(node)),
        default_asn: general.asn().unwrap_or(DEFAULT_ASN),
        settings: general.overlaid(own),
        addresses: &desired.addresses,
        filters: filters(index, &mut problems),
        problems,
    };
    let text = builder.build(passwords).to_string();
    Config { text, problems: builder.problems }
}

fn object<T: DeserializeOwned + Default>(
    index: &BlockIndex,
    root: &str,
    name: &str,
    problems: &mut Vec<String>,
) -> Option<T> {
    let value = index.bgp.get(&format!("{root}{name}"))?;
    match serde_json::from_slice::<Object<T>>(value) {
        Ok(object) => Some(object.spec),
        Err(error) => {
            problems.push(format!("{root}{name} is ignored: {error}"));
            None
        }
    }
}

/// All objects under a root, by name.
fn objects<T: DeserializeOwned + Default>(
    index: &BlockIndex,
    root: &str,
    problems: &mut Vec<String>,
) -> BTreeMap<String, T> {
    let names = index.bgp.keys().filter_map(|key| key.strip_prefix(root));
    names.filter_map(|name| Some((name.to_owned(), object(index, root, name, problems)?))).collect()
}

/// The functions of each filter that BIRD can express, by the filter's name.
fn filters(index: &BlockIndex, problems: &mut Vec<String>) -> BTreeMap<String, Vec<Function>> {
    let mut all = BTreeMap::new();
    for (name, filter) in objects::<Filter>(index, key::BGP[2], problems) {
        match filter::functions(&name, &filter) {
            Ok(functions) => drop(all.insert(name, functions)),
            Err(why) => problems.push(format!("BGPFilter {name}: {why}; peers that use it are ignored")),
        }
    }
    all
}

struct Builder<'a> {
    index: &'a BlockIndex,
    node: Node,
    settings: Configuration,
    /// The ASN of nodes without their own.
    default_asn: u32,
    addresses: &'a [IpAddr],
    filters: BTreeMap<String, Vec<Function>>,
    problems: Vec<String>,
}

impl Builder<'_> {
    fn build(&mut self, passwords: &Passwords) -> BirdConfig {
        let peers: BTreeMap<String, Peer> = objects(self.index, key::BGP[1], &mut self.problems);
        let (sessions, ignored) = Sessions {
            index: self.index,
            node: &self.node,
            own_asn: self.own_asn(),
            default_asn: self.default_asn,
            settings: &self.settings,
            addresses: self.addresses,
            filters: &self.filters,
            passwords,
        }
        .all(&peers);
        self.problems.extend(ignored);
        BirdConfig {
            node: self.node.name().into(),
            router_id: self.router_id(),
            ignored_interfaces: self.ignored_interfaces(),
            functions: self.filters.values().flatten().cloned().collect(),
            tables: IpFamily::ALL.map(|family| self.tables(family)).into(),
            sessions: sessions.into_iter().map(|session| self.protocol(session)).collect(),
        }
    }

    fn own_asn(&self) -> u32 {
        self.node.asn().or_else(|| self.settings.asn()).unwrap_or(self.default_asn)
    }

    /// The IPv4 address; for a node without one, a hash of its name.
    fn router_id(&self) -> Ipv4Addr {
        let v4 = self.addresses.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        v4.unwrap_or_else(|| Ipv4Addr::from(hash(self.node.name()).max(1)))
    }

    fn ignored_interfaces(&self) -> Vec<String> {
        let configured = self.settings.ignored_interfaces.iter().flatten().cloned();
        let all = ["cali*", "vxlan*.calico", "podwire*"].map(String::from).into_iter().chain(configured);
        all.filter(|name| filter::is_interface_pattern(name)).collect()
    }

    fn tables(&self, family: IpFamily) -> FamilyTables {
        let tunnelled = self.index.pools.values().filter(|pool| pool.encapsulation().is_some());
        let own = self.index.routes().into_iter().filter(|(_, node)| *node == self.node.name());
        let is_exported = |net: &IpNet| self.index.pool_of(net).is_some_and(Pool::is_exported);
        FamilyTables {
            family,
            tunnelled: tunnelled.map(Pool::cidr).filter(|net| IpFamily::of_net(*net) == family).collect(),
            blocks: own
                .map(|(net, _)| net)
                .filter(|net| IpFamily::of_net(*net) == family && is_exported(net))
                .collect(),
        }
    }

    fn protocol(&mut self, session: Session<'_>) -> BgpProtocol {
        let family = IpFamily::of(session.ip);
        let peer = session.peer;
        let local_asn = peer.and_then(Peer::local_asn).unwrap_or_else(|| self.own_asn());
        let uses_source = peer.is_none_or(|peer| peer.source_address.as_deref() != Some("None"));
        let source = self.addresses.iter().copied().find(|own| IpFamily::of(*own) == family);
        let local =
            Speaker { ip: source.filter(|_| uses_source), port: self.settings.listen_port, asn: local_asn };
        let channel = self.channel(&session, family, local_asn);
        let reflection = session.is_client.then(|| Reflection {
            cluster_id: self.node.route_reflector_cluster_id().and_then(|id| id.parse::<Ipv4Addr>().ok()),
        });
        let restart_time = peer.and_then(Peer::restart_time).or_else(|| self.settings.restart_time());
        BgpProtocol {
            local,
            neighbor: Speaker { ip: Some(session.ip), port: session.port, asn: session.asn },
            gateway: self.gateway(&session),
            ttl_security: peer.and_then(|peer| peer.ttl_security).filter(|hops| *hops > 0),
            restart_time: restart_time.unwrap_or(RESTART_TIME),
            keepalive_time: self.keepalive_time(&session),
            allow_local_as: peer.and_then(|peer| peer.allowed_local),
            reflection,
            channel,
            name: session.name,
            password: session.password,
        }
    }

    fn gateway(&mut self, session: &Session<'_>) -> Option<IpAddr> {
        let gateway = session.peer?.reachable_by.as_ref()?;
        let parsed = gateway.parse().ok();
        if parsed.is_none() {
            self.problems.push(format!("{}: reachableBy {gateway:?} is not an address", session.name));
        }
        parsed
    }

    fn keepalive_time(&mut self, session: &Session<'_>) -> Option<u32> {
        let seconds = session.peer.and_then(Peer::keepalive_time)?;
        if (1..=HOLD_TIME).contains(&seconds) {
            return Some(seconds);
        }
        self.problems.push(format!(
            "{}: keepaliveTime of {seconds} s is not within BIRD's hold time of {HOLD_TIME} s; BIRD's default is used",
            session.name
        ));
        None
    }

    fn channel(&self, session: &Session<'_>, family: IpFamily, local_asn: u32) -> Channel {
        let names = session.peer.and_then(|peer| peer.filters.as_ref());
        let filters = |direction: Direction| -> Vec<String> {
            let functions = names.into_iter().flatten().flat_map(|name| &self.filters[name]);
            functions.filter(|one| one.is_for(family, direction)).map(|one| one.name.clone()).collect()
        };
        let hidden = self.index.pools.values().filter(|pool| !pool.is_exported()).map(Pool::cidr);
        // A router outside of the cluster learns each node's blocks from that node. Only a reflector announces routes
        // of other nodes, and it does not forward their packets.
        let (is_external, is_reflector) =
            (session.asn != local_asn, self.node.route_reflector_cluster_id().is_some());
        let next_hop = match session.peer.map_or(NextHop::Auto, Peer::next_hop) {
            NextHop::Auto if is_external && is_reflector => NextHop::Keep,
            other => other,
        };
        Channel {
            family,
            import_filters: filters(Direction::Import),
            export_filters: filters(Direction::Export),
            hidden: hidden.filter(|net| IpFamily::of_net(*net) == family).collect(),
            exports_learned: !is_external || is_reflector,
            next_hop,
        }
    }
}

#[cfg(test)]
mod tests;
