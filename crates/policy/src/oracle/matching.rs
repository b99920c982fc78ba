//! Whether a selector, a peer, a port or a rule fits a packet, read off the objects as they were written.

use std::net::IpAddr;

use super::{contains, ClusterRule};
use crate::api::{
    CnpAction, CnpPeer, CnpPort, CnpProtocol, CnpSubject, CnpTransport, IntOrString, LabelSelector, Labels,
    NamespacedPod, NetworkPolicyPeer, NetworkPolicyPort, Node, Pod,
};
use crate::{Direction, Packet, Protocol, Snapshot};

/// A packet, seen from a pod: who is at the other end.
pub(super) struct Traffic<'a> {
    pub snapshot: &'a Snapshot,
    pub peer: IpAddr,
    pub packet: &'a Packet,
}

/// Whether the selector selects an object with these labels; `None` if it makes no sense.
pub(super) fn selects(selector: &LabelSelector, labels: &Labels) -> Option<bool> {
    let mut all = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    for requirement in &selector.match_expressions {
        let (value, values) = (labels.get(&requirement.key), &requirement.values);
        let listed = value.is_some_and(|value| values.contains(value));
        all &= match requirement.operator.as_str() {
            _ if requirement.key.is_empty() => return None,
            "In" if !values.is_empty() => listed,
            "NotIn" if !values.is_empty() => !listed,
            "Exists" if values.is_empty() => value.is_some(),
            "DoesNotExist" if values.is_empty() => value.is_none(),
            _ => return None,
        };
    }
    Some(all)
}

fn makes_sense(selector: &LabelSelector) -> bool {
    selects(selector, &Labels::new()).is_some()
}

impl Traffic<'_> {
    /// The pod at the other end, if it is one with a network of its own.
    fn peer_pod(&self) -> Option<&Pod> {
        self.snapshot.pod_at(self.peer)
    }

    fn in_namespace(&self, pod: &Pod, selector: &LabelSelector) -> bool {
        selects(selector, &self.snapshot.labels_of(&pod.metadata.namespace)) == Some(true)
    }

    // NetworkPolicy

    pub fn fits_peer(&self, peer: &NetworkPolicyPeer, namespace: &str) -> bool {
        if let Some(block) = &peer.ip_block {
            let alone = peer.pod_selector.is_none() && peer.namespace_selector.is_none();
            // An exception that nobody can read might be about this very address.
            let excepted = block.except.iter().any(|hole| contains(hole, self.peer) != Some(false));
            return alone && contains(&block.cidr, self.peer) == Some(true) && !excepted;
        }
        let Some(pod) = self.peer_pod() else { return false };
        let pod_fits = |selector: &LabelSelector| selects(selector, &pod.metadata.labels) == Some(true);
        match (&peer.namespace_selector, &peer.pod_selector) {
            (None, None) => false,
            (None, Some(pods)) => pod.metadata.namespace == namespace && pod_fits(pods),
            (Some(namespaces), None) => self.in_namespace(pod, namespaces),
            (Some(namespaces), Some(pods)) => self.in_namespace(pod, namespaces) && pod_fits(pods),
        }
    }

    pub fn fits_port(&self, port: &NetworkPolicyPort) -> bool {
        let Some((protocol, number)) = self.packet.service else { return false };
        if port.protocol.as_deref().unwrap_or("TCP") != protocol.name() {
            return false;
        }
        let is_port = |number: i64| (1..=65535).contains(&number);
        match (&port.port, port.end_port) {
            (None, None) => true,
            (Some(IntOrString::Number(wanted)), None) => i64::from(number) == *wanted && is_port(*wanted),
            (Some(IntOrString::Number(first)), Some(last)) => {
                is_port(*first) && is_port(last) && (*first..=last).contains(&i64::from(number))
            }
            (Some(IntOrString::Name(name)), None) => self.is_named(name, Some(protocol)),
            (None | Some(IntOrString::Name(_)), Some(_)) => false,
        }
    }

    /// Whether the receiver calls the port of this packet by that name.
    fn is_named(&self, name: &str, protocol: Option<Protocol>) -> bool {
        let Some(receiver) = self.snapshot.pod_at(self.packet.destination) else { return false };
        let mut ports = receiver.named_ports(name);
        ports.any(|(of, port)| {
            self.packet.service == Some((of, port)) && protocol.is_none_or(|wanted| wanted == of)
        })
    }

    // ClusterNetworkPolicy

    pub fn is_subject(&self, pod: &Pod, subject: &CnpSubject) -> bool {
        match (&subject.namespaces, &subject.pods) {
            (Some(namespaces), None) => self.in_namespace(pod, namespaces),
            (None, Some(pods)) => self.is_one_of(pod, pods),
            _ => false,
        }
    }

    fn is_one_of(&self, pod: &Pod, pods: &NamespacedPod) -> bool {
        self.in_namespace(pod, &pods.namespace_selector)
            && selects(&pods.pod_selector, &pod.metadata.labels) == Some(true)
    }

    /// Whether every part of the rule is something that the API allows there.
    pub fn understands(&self, rule: &ClusterRule<'_>, direction: Direction) -> bool {
        let peers = rule.peers.iter().all(|peer| self.understands_peer(peer, rule.action, direction));
        let nameless = rule
            .peers
            .iter()
            .any(|peer| peer.nodes.is_some() || peer.networks.is_some() || peer.domain_names.is_some());
        let protocols = rule.protocols.is_none_or(|protocols| {
            let names = protocols.iter().any(|protocol| protocol.destination_named_port.is_some());
            !protocols.is_empty() && protocols.iter().all(understands_protocol) && !(names && nameless)
        });
        !rule.peers.is_empty() && peers && protocols
    }

    fn understands_peer(&self, peer: &CnpPeer, action: CnpAction, direction: Direction) -> bool {
        let egress = direction == Direction::Egress;
        match peer {
            CnpPeer {
                namespaces: Some(selector),
                pods: None,
                nodes: None,
                networks: None,
                domain_names: None,
                ..
            } => makes_sense(selector),
            CnpPeer {
                namespaces: None,
                pods: Some(pods),
                nodes: None,
                networks: None,
                domain_names: None,
                ..
            } => makes_sense(&pods.namespace_selector) && makes_sense(&pods.pod_selector),
            CnpPeer {
                namespaces: None,
                pods: None,
                nodes: Some(nodes),
                networks: None,
                domain_names: None,
                ..
            } => egress && makes_sense(nodes),
            CnpPeer {
                namespaces: None,
                pods: None,
                nodes: None,
                networks: Some(networks),
                domain_names: None,
                ..
            } => {
                let readable = |network: &String| contains(network, self.peer).is_some();
                egress && !networks.is_empty() && networks.iter().all(readable)
            }
            CnpPeer {
                namespaces: None,
                pods: None,
                nodes: None,
                networks: None,
                domain_names: Some(_),
                ..
            } => egress && action == CnpAction::Accept,
            _ => false,
        }
    }

    /// Whether a rule that is understood fits.
    pub fn fits_rule(&self, rule: &ClusterRule<'_>) -> bool {
        let peer = rule.peers.iter().any(|peer| self.fits_cluster_peer(peer));
        let port = rule.protocols.is_none_or(|protocols| protocols.iter().any(|one| self.fits_protocol(one)));
        peer && port
    }

    fn fits_cluster_peer(&self, peer: &CnpPeer) -> bool {
        if let Some(networks) = &peer.networks {
            return networks.iter().any(|network| contains(network, self.peer) == Some(true));
        }
        if let Some(selector) = &peer.nodes {
            let selected = |node: &&Node| selects(selector, &node.metadata.labels) == Some(true);
            return self
                .snapshot
                .nodes
                .iter()
                .filter(selected)
                .any(|node| node.addresses().contains(&self.peer));
        }
        let Some(pod) = self.peer_pod() else { return false };
        match (&peer.namespaces, &peer.pods) {
            (Some(namespaces), _) => self.in_namespace(pod, namespaces),
            (_, Some(pods)) => self.is_one_of(pod, pods),
            // Nobody resolves domain names here, so nothing is accepted for them.
            (None, None) => false,
        }
    }

    fn fits_protocol(&self, wanted: &CnpProtocol) -> bool {
        let Some((protocol, number)) = self.packet.service else { return false };
        if let Some(name) = &wanted.destination_named_port {
            return self.is_named(name, None);
        }
        let transport = match protocol {
            Protocol::Tcp => &wanted.tcp,
            Protocol::Udp => &wanted.udp,
            Protocol::Sctp => &wanted.sctp,
        };
        let port = transport.as_ref().and_then(|transport| transport.destination_port.as_ref());
        port.is_some_and(|port| match (port.number, &port.range) {
            (Some(wanted), _) => i64::from(number) == wanted,
            (None, Some(range)) => (range.start..=range.end).contains(&i64::from(number)),
            (None, None) => false,
        })
    }
}

/// Exactly one of the four, with a port or a range that is one.
fn understands_protocol(protocol: &CnpProtocol) -> bool {
    let is_port = |number: &i64| (1..=65535).contains(number);
    let transport = |transport: &CnpTransport| match &transport.destination_port {
        Some(CnpPort { number: Some(number), range: None, .. }) => is_port(number),
        Some(CnpPort { number: None, range: Some(range), .. }) => {
            is_port(&range.start) && is_port(&range.end) && range.start < range.end
        }
        _ => false,
    };
    match (&protocol.tcp, &protocol.udp, &protocol.sctp, &protocol.destination_named_port) {
        (Some(one), None, None, None) | (None, Some(one), None, None) | (None, None, Some(one), None) => {
            transport(one)
        }
        (None, None, None, Some(name)) => !name.is_empty(),
        _ => false,
    }
}
