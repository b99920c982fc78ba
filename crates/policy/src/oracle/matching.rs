//! Whether a selector, a peer, a port or a rule matches a packet, directly from the API's objects.

use std::net::IpAddr;

use crate::api::{
    ClusterNetworkPolicy, CnpAction, CnpPeer, CnpPort, CnpProtocol, CnpSubject, CnpTransport, IntOrString,
    LabelSelector, Labels, NamespacedPod, NetworkPolicyPeer, NetworkPolicyPort, Node, Pod,
};
use crate::{Direction, Packet, Protocol, Snapshot};

/// A packet as seen from a pod.
pub(super) struct Traffic<'a> {
    pub snapshot: &'a Snapshot,
    /// The other end.
    pub peer: IpAddr,
    pub packet: &'a Packet,
}

/// Whether the selector selects an object with these labels; `None` if the selector is invalid.
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

fn is_valid_selector(selector: &LabelSelector) -> bool {
    selects(selector, &Labels::new()).is_some()
}

impl Traffic<'_> {
    /// The pod at the other end, if policies apply to it.
    pub fn peer_pod(&self) -> Option<&Pod> {
        self.snapshot.pod_with_address(self.peer)
    }

    fn in_namespace(&self, pod: &Pod, selector: &LabelSelector) -> bool {
        selects(selector, &self.snapshot.namespace_labels(&pod.metadata.namespace)) == Some(true)
    }

    pub fn matches_peer(&self, peer: &NetworkPolicyPeer, namespace: &str) -> bool {
        if let Some(block) = &peer.ip_block {
            let alone = peer.pod_selector.is_none() && peer.namespace_selector.is_none();
            // An invalid exception could mean any address.
            let excepted = block.except.iter().any(|exception| contains(exception, self.peer) != Some(false));
            return alone && contains(&block.cidr, self.peer) == Some(true) && !excepted;
        }
        let Some(pod) = self.peer_pod() else { return false };
        let pod_matches = |selector: &LabelSelector| selects(selector, &pod.metadata.labels) == Some(true);
        match (&peer.namespace_selector, &peer.pod_selector) {
            (None, None) => false,
            (None, Some(pods)) => pod.metadata.namespace == namespace && pod_matches(pods),
            (Some(namespaces), None) => self.in_namespace(pod, namespaces),
            (Some(namespaces), Some(pods)) => self.in_namespace(pod, namespaces) && pod_matches(pods),
        }
    }

    pub fn matches_port(&self, port: &NetworkPolicyPort) -> bool {
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

    /// Whether the receiver has a port of that name and the packet goes to it.
    fn is_named(&self, name: &str, protocol: Option<Protocol>) -> bool {
        let Some(receiver) = self.snapshot.pod_with_address(self.packet.destination) else { return false };
        let mut ports = receiver.named_ports(name);
        ports.any(|(of, port)| {
            self.packet.service == Some((of, port)) && protocol.is_none_or(|wanted| wanted == of)
        })
    }

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

    /// Whether the API allows every part of the rule.
    pub fn is_valid(&self, rule: &ClusterRule<'_>, direction: Direction) -> bool {
        let peers = rule.peers.iter().all(|peer| self.is_valid_peer(peer, rule.action, direction));
        let without_named_ports = rule
            .peers
            .iter()
            .any(|peer| peer.nodes.is_some() || peer.networks.is_some() || peer.domain_names.is_some());
        let protocols = rule.protocols.is_none_or(|protocols| {
            let names = protocols.iter().any(|protocol| protocol.destination_named_port.is_some());
            !protocols.is_empty()
                && protocols.iter().all(is_valid_protocol)
                && !(names && without_named_ports)
        });
        !rule.peers.is_empty() && peers && protocols
    }

    fn is_valid_peer(&self, peer: &CnpPeer, action: CnpAction, direction: Direction) -> bool {
        let egress = direction == Direction::Egress;
        match peer {
            CnpPeer {
                namespaces: Some(selector),
                pods: None,
                nodes: None,
                networks: None,
                domain_names: None,
                ..
            } => is_valid_selector(selector),
            CnpPeer {
                namespaces: None,
                pods: Some(pods),
                nodes: None,
                networks: None,
                domain_names: None,
                ..
            } => is_valid_selector(&pods.namespace_selector) && is_valid_selector(&pods.pod_selector),
            CnpPeer {
                namespaces: None,
                pods: None,
                nodes: Some(nodes),
                networks: None,
                domain_names: None,
                ..
            } => egress && is_valid_selector(nodes),
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

    /// Whether the peers of a valid rule match, and whether its ports do.
    pub fn matches_rule(&self, rule: &ClusterRule<'_>) -> (bool, bool) {
        let peer = rule.peers.iter().any(|peer| self.matches_cluster_peer(peer));
        let port =
            rule.protocols.is_none_or(|protocols| protocols.iter().any(|one| self.matches_protocol(one)));
        (peer, port)
    }

    fn matches_cluster_peer(&self, peer: &CnpPeer) -> bool {
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
            // Domain names are not supported, so nothing is accepted for them.
            (None, None) => false,
        }
    }

    fn matches_protocol(&self, wanted: &CnpProtocol) -> bool {
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

/// Exactly one of the four fields is set, with a valid port or range.
fn is_valid_protocol(protocol: &CnpProtocol) -> bool {
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

/// A rule of either direction.
pub(super) struct ClusterRule<'a> {
    pub name: &'a str,
    pub action: CnpAction,
    pub peers: &'a [CnpPeer],
    pub protocols: Option<&'a [CnpProtocol]>,
}

pub(super) fn cluster_rules(policy: &ClusterNetworkPolicy, direction: Direction) -> Vec<ClusterRule<'_>> {
    let ingress = policy.spec.ingress.iter().map(|rule| {
        let (peers, protocols) = (rule.from.as_slice(), rule.protocols.as_deref());
        ClusterRule { name: &rule.name, action: rule.action, peers, protocols }
    });
    let egress = policy.spec.egress.iter().map(|rule| {
        let (peers, protocols) = (rule.to.as_slice(), rule.protocols.as_deref());
        ClusterRule { name: &rule.name, action: rule.action, peers, protocols }
    });
    match direction {
        Direction::Ingress => ingress.collect(),
        Direction::Egress => egress.collect(),
    }
}

/// Whether the network contains the address; `None` if the text is not a network.
fn contains(network: &str, address: IpAddr) -> Option<bool> {
    let (start, length) = network.split_once('/')?;
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (start, length): (IpAddr, u32) = (start.parse().ok()?, length.parse().ok()?);
    let (bits, start, address, same) = match (start, address) {
        (IpAddr::V4(start), IpAddr::V4(address)) => {
            (32, u128::from(start.to_bits()), u128::from(address.to_bits()), true)
        }
        (IpAddr::V6(start), IpAddr::V6(address)) => (128, start.to_bits(), address.to_bits(), true),
        (IpAddr::V4(_), IpAddr::V6(_)) => (32, 0, 0, false),
        (IpAddr::V6(_), IpAddr::V4(_)) => (128, 0, 0, false),
    };
    if length > bits {
        return None;
    }
    // Host bits are ignored.
    let prefix = |address: u128| address.checked_shr(bits - length).unwrap_or(0);
    Some(same && prefix(start) == prefix(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_parsed_as_the_api_does() {
        let matches = |network: &str, address: &str| contains(network, address.parse().unwrap());
        assert_eq!(matches("10.0.0.0/8", "10.255.0.1"), Some(true));
        assert_eq!(matches("10.1.2.3/8", "10.255.0.1"), Some(true));
        assert_eq!(matches("10.0.0.0/8", "11.0.0.1"), Some(false));
        assert_eq!(matches("0.0.0.0/0", "11.0.0.1"), Some(true));
        assert_eq!(matches("0.0.0.0/0", "fd00::1"), Some(false));
        assert_eq!(matches("::/0", "fd00::1"), Some(true));
        assert_eq!(matches("fd00::1/128", "fd00::1"), Some(true));
        assert_eq!(matches("10.0.0.0/33", "10.0.0.0"), None);
        assert_eq!(matches("10.0.0.0", "10.0.0.0"), None);
    }
}
