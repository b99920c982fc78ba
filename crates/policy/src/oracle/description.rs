//! Selectors, peers and ports in words, as their authors wrote them.

use crate::api::{
    CnpPeer, CnpPort, CnpProtocol, CnpSubject, CnpTransport, IntOrString, LabelSelector, NamespacedPod,
    NetworkPolicyPeer, NetworkPolicyPort, Pod,
};

fn list(items: impl Iterator<Item = String>, none: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        none.to_owned()
    } else {
        items.join(" or ")
    }
}

/// `{app=web,tier in (a,b)}`; `{}` selects everything.
pub(super) fn selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let more = selector.match_expressions.iter().map(|one| match one.operator.as_str() {
        "In" => format!("{} in ({})", one.key, one.values.join(",")),
        "NotIn" => format!("{} not in ({})", one.key, one.values.join(",")),
        "Exists" => one.key.clone(),
        "DoesNotExist" => format!("!{}", one.key),
        other => format!("{} {other} (invalid)", one.key),
    });
    format!("{{{}}}", labels.chain(more).collect::<Vec<_>>().join(","))
}

/// The labels of a pod, and its namespace.
pub(super) fn labels(pod: &Pod) -> String {
    let labels = pod.metadata.labels.iter().map(|(key, value)| format!("{key}={value}"));
    format!("labels {{{}}} in namespace {}", labels.collect::<Vec<_>>().join(","), pod.metadata.namespace)
}

fn namespaced(pods: &NamespacedPod) -> String {
    format!("pods {} in namespaces {}", selector(&pods.pod_selector), selector(&pods.namespace_selector))
}

pub(super) fn subject(subject: &CnpSubject) -> String {
    match (&subject.namespaces, &subject.pods) {
        (Some(namespaces), None) => format!("namespaces {}", selector(namespaces)),
        (None, Some(pods)) => namespaced(pods),
        _ => "nothing (invalid)".to_owned(),
    }
}

pub(super) fn peers(peers: &[NetworkPolicyPeer], namespace: &str) -> String {
    let one = |peer: &NetworkPolicyPeer| match (&peer.ip_block, &peer.namespace_selector, &peer.pod_selector)
    {
        (Some(block), _, _) if block.except.is_empty() => block.cidr.clone(),
        (Some(block), _, _) => format!("{} except {}", block.cidr, block.except.join(", ")),
        (None, Some(namespaces), Some(pods)) => {
            format!("pods {} in namespaces {}", selector(pods), selector(namespaces))
        }
        (None, Some(namespaces), None) => format!("pods in namespaces {}", selector(namespaces)),
        (None, None, Some(pods)) => format!("pods {} in namespace {namespace}", selector(pods)),
        (None, None, None) => "nothing (an empty peer)".to_owned(),
    };
    list(peers.iter().map(one), "anything")
}

pub(super) fn ports(ports: &[NetworkPolicyPort]) -> String {
    let one = |port: &NetworkPolicyPort| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        match (&port.port, port.end_port) {
            (None, _) => format!("{protocol}, any port"),
            (Some(IntOrString::Number(first)), Some(last)) => format!("{protocol} {first}-{last}"),
            (Some(IntOrString::Number(number)), None) => format!("{protocol} {number}"),
            (Some(IntOrString::Name(name)), _) => format!("{protocol} port {name:?} of the receiver"),
        }
    };
    list(ports.iter().map(one), "any port")
}

pub(super) fn cluster_peers(peers: &[CnpPeer]) -> String {
    let one = |peer: &CnpPeer| match peer {
        CnpPeer { namespaces: Some(namespaces), .. } => {
            format!("pods in namespaces {}", selector(namespaces))
        }
        CnpPeer { pods: Some(pods), .. } => namespaced(pods),
        CnpPeer { nodes: Some(nodes), .. } => format!("nodes {}", selector(nodes)),
        CnpPeer { networks: Some(networks), .. } => networks.join(" or "),
        CnpPeer { domain_names: Some(names), .. } => {
            format!("domain names {} (not supported)", names.join(", "))
        }
        _ => "nothing (an empty peer)".to_owned(),
    };
    list(peers.iter().map(one), "anything")
}

pub(super) fn protocols(protocols: &[CnpProtocol]) -> String {
    let transport = |name: &str, transport: &CnpTransport| match &transport.destination_port {
        Some(CnpPort { number: Some(number), .. }) => format!("{name} {number}"),
        Some(CnpPort { range: Some(range), .. }) => format!("{name} {}-{}", range.start, range.end),
        _ => format!("{name} without a port"),
    };
    let one = |protocol: &CnpProtocol| match protocol {
        CnpProtocol { tcp: Some(one), .. } => transport("TCP", one),
        CnpProtocol { udp: Some(one), .. } => transport("UDP", one),
        CnpProtocol { sctp: Some(one), .. } => transport("SCTP", one),
        CnpProtocol { destination_named_port: Some(name), .. } => format!("port {name:?} of the receiver"),
        _ => "nothing (an empty protocol)".to_owned(),
    };
    list(protocols.iter().map(one), "any port")
}
