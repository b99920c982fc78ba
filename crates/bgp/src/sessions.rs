//! The BGP sessions of a node: the mesh of nodes, and the peers that `BGPPeer` objects name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_block_ipam::selector::Selector;
use podwire_block_ipam::{BlockIndex, IpFamily, Node};
use serde_json::Value;

use crate::model::Function;
use crate::names;
use crate::objects::{Configuration, Peer};
use crate::passwords::{Password, Passwords};

/// A session of this node.
pub(crate) struct Session<'p> {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    pub(crate) port: Option<u16>,
    pub(crate) asn: u32,
    /// Whether this node is the peer's route reflector.
    pub(crate) is_client: bool,
    /// The object that names the peer; none for the mesh.
    pub(crate) peer: Option<&'p Peer>,
    pub(crate) password: Option<Password>,
}

/// What sessions follow from.
pub(crate) struct Sessions<'a> {
    pub(crate) index: &'a BlockIndex,
    /// This node.
    pub(crate) node: &'a Node,
    pub(crate) own_asn: u32,
    /// The ASN of nodes without their own.
    pub(crate) default_asn: u32,
    pub(crate) settings: &'a Configuration,
    pub(crate) addresses: &'a [IpAddr],
    pub(crate) filters: &'a BTreeMap<String, Vec<Function>>,
    pub(crate) passwords: &'a Passwords,
}

/// Where the name of a session comes from.
struct Origin<'a> {
    kind: &'static str,
    /// The `BGPPeer`; empty for the mesh.
    object: &'a str,
}

impl Sessions<'_> {
    /// All sessions by name, and the peers that get none, each with the reason.
    pub(crate) fn all<'p>(&self, peers: &'p BTreeMap<String, Peer>) -> (Vec<Session<'p>>, Vec<String>) {
        let (mut sessions, mut problems) = (Vec::new(), Vec::new());
        if self.settings.node_to_node_mesh_enabled.unwrap_or(true)
            && self.node.route_reflector_cluster_id().is_none()
        {
            match self.mesh() {
                Ok(mesh) => sessions.extend(mesh),
                Err(why) => problems.push(format!("the mesh of nodes is ignored: {why}")),
            }
        }
        for (name, peer) in peers {
            let sessions_to = self.for_peer(name, peer);
            match sessions_to.and_then(|more| self.with_password(more, peer.password.as_ref())) {
                Ok(more) => sessions.extend(more),
                Err(why) => problems.push(format!("BGPPeer {name} is ignored: {why}")),
            }
        }
        // A neighbor that is named twice gets one session. A BGPPeer takes precedence over the mesh.
        let mut seen = BTreeSet::new();
        sessions.sort_by_key(|session| session.peer.is_none());
        sessions.retain(|session| seen.insert((session.ip, session.port)));
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        (sessions, problems)
    }

    fn others(&self) -> impl Iterator<Item = &Node> {
        self.index.nodes.values().filter(|node| node.name() != self.node.name())
    }

    /// Sessions with all other nodes except route reflectors.
    fn mesh<'p>(&self) -> Result<Vec<Session<'p>>, String> {
        let nodes = self.others().filter(|node| node.route_reflector_cluster_id().is_none());
        let origin = Origin { kind: "mesh", object: "" };
        let sessions = nodes.flat_map(|node| self.with_node(&origin, node, None)).collect();
        self.with_password(sessions, self.settings.node_mesh_password.as_ref())
    }

    /// Sets the password of sessions that need one. A password that no session needs is not read.
    fn with_password<'p>(
        &self,
        mut sessions: Vec<Session<'p>>,
        reference: Option<&Value>,
    ) -> Result<Vec<Session<'p>>, String> {
        if let Some(reference) = reference.filter(|_| !sessions.is_empty()) {
            let password = self.passwords.find(reference)?;
            sessions.iter_mut().for_each(|session| session.password = Some(password.clone()));
        }
        Ok(sessions)
    }

    fn for_peer<'p>(&self, name: &str, peer: &'p Peer) -> Result<Vec<Session<'p>>, String> {
        if peer.local_workload_selector.is_some() {
            return Err("localWorkloadSelector (peers that are pods) is not supported".into());
        }
        let missing = peer.filters.iter().flatten().find(|name| !self.filters.contains_key(*name));
        if let Some(missing) = missing {
            return Err(format!(
                "its filter {missing} does not exist or cannot be expressed in BIRD's language"
            ));
        }
        match &peer.peer_selector {
            Some(selector) => self.with_selected_nodes(name, peer, selector),
            None => self.with_router(name, peer),
        }
    }

    /// Sessions with the nodes that `selector` names; unless `reversePeering` is `Manual`, they have one with this node
    /// too.
    fn with_selected_nodes<'p>(
        &self,
        name: &str,
        peer: &'p Peer,
        selector: &str,
    ) -> Result<Vec<Session<'p>>, String> {
        let mut sessions = Vec::new();
        let (own_peers, own_selected) = (has_peer(self.node, peer)?, selected(selector, self.node)?);
        for node in self.others() {
            let forward = own_peers && selected(selector, node)?;
            let reverse = peer.is_mutual() && own_selected && has_peer(node, peer)?;
            if forward || reverse {
                sessions.extend(self.with_node(&Origin { kind: "node", object: name }, node, Some(peer)));
            }
        }
        Ok(sessions)
    }

    /// The session with a router that `peerIP` names; none if the object is for other nodes or names this node.
    fn with_router<'p>(&self, name: &str, peer: &'p Peer) -> Result<Vec<Session<'p>>, String> {
        if !has_peer(self.node, peer)? {
            return Ok(Vec::new());
        }
        let target = peer.peer_ip.as_deref().ok_or("it has neither peerIP nor peerSelector")?;
        let (ip, port) =
            parse_endpoint(target).ok_or_else(|| format!("peerIP {target:?} is not an address"))?;
        let asn = peer.asn().ok_or("it has no asNumber")?;
        if self.addresses.contains(&ip) {
            return Ok(Vec::new());
        }
        if matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return Err(format!("peerIP {ip} is link-local, and a BGPPeer cannot name its link"));
        }
        if port == Some(0) || asn == 0 {
            return Err("its port and asNumber must not be 0".into());
        }
        let node = self.index.nodes.values().find(|node| has_address(node, ip));
        let (name, is_client) = (names::session("peer", name, &ip.to_string()), self.is_client(node, asn));
        Ok(vec![Session { name, ip, port, asn, is_client, peer: Some(peer), password: None }])
    }

    /// Sessions with another node: one for each family that both have.
    fn with_node<'p>(&self, origin: &Origin<'_>, node: &Node, peer: Option<&'p Peer>) -> Vec<Session<'p>> {
        let asn = peer.and_then(Peer::asn).or_else(|| node.asn()).unwrap_or(self.default_asn);
        let has_family = |family: &IpFamily| self.addresses.iter().any(|ip| IpFamily::of(*ip) == *family);
        let session = |family: IpFamily| {
            let ip = node.address(family)?.addr();
            Some(Session {
                name: names::session(origin.kind, origin.object, &ip.to_string()),
                ip,
                port: self.settings.listen_port,
                asn,
                is_client: self.is_client(Some(node), asn),
                peer,
                password: None,
            })
        };
        IpFamily::ALL.into_iter().filter(has_family).filter_map(session).collect()
    }

    /// The clients of a reflector are the peers of its ASN that are not reflectors or have another cluster ID.
    fn is_client(&self, peer: Option<&Node>, asn: u32) -> bool {
        let own = self.node.route_reflector_cluster_id();
        own.is_some() && asn == self.own_asn && own != peer.and_then(Node::route_reflector_cluster_id)
    }
}

/// Whether a `BGPPeer` is for this node.
fn has_peer(node: &Node, peer: &Peer) -> Result<bool, String> {
    match (&peer.node, &peer.node_selector) {
        (Some(named), _) => Ok(named == node.name()),
        (None, Some(selector)) => selected(selector, node),
        (None, None) => Ok(true),
    }
}

fn has_address(node: &Node, ip: IpAddr) -> bool {
    node.address(IpFamily::of(ip)).is_some_and(|net| net.addr() == ip)
}

fn selected(selector: &str, node: &Node) -> Result<bool, String> {
    let selector = Selector::parse(selector).map_err(|why| format!("selector {selector:?}: {why}"))?;
    Ok(selector.matches(&node.labels()))
}

/// Parses `10.0.0.1`, `10.0.0.1:179`, `fd00::1` and `[fd00::1]:179`.
fn parse_endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, None));
    }
    let socket: SocketAddr = text.parse().ok()?;
    Some((socket.ip(), Some(socket.port())))
}
