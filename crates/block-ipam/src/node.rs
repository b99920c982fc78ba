//! Calico's Node object: the node's addresses and tunnel addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::json::{self, Unknown};
use super::key;
use super::record::{Record, Value};
use super::Error;
use crate::selector::Labels;
use crate::store::{Entry, Store, StoreError};
use podwire_ip::IpFamily;

/// How often an update is retried after a conflict.
const MAX_RETRIES: usize = 16;

/// A `Node` object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    metadata: Map<String, Json>,
    #[serde(default)]
    spec: Spec,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bgp: Option<Bgp>,
    #[serde(rename = "ipv4VXLANTunnelAddr", default, skip_serializing_if = "String::is_empty")]
    vxlan4: String,
    #[serde(rename = "vxlanTunnelMACAddr", default, skip_serializing_if = "String::is_empty")]
    mac4: String,
    #[serde(rename = "ipv6VXLANTunnelAddr", default, skip_serializing_if = "String::is_empty")]
    vxlan6: String,
    #[serde(rename = "vxlanTunnelMACAddrV6", default, skip_serializing_if = "String::is_empty")]
    mac6: String,
    #[serde(rename = "orchRefs", default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "json::null_is_empty")]
    references: Vec<Reference>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The node's name in an orchestrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reference {
    #[serde(rename = "nodeName", default, skip_serializing_if = "String::is_empty")]
    node: String,
    #[serde(default)]
    orchestrator: String,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The name of Kubernetes in references.
const KUBERNETES: &str = "k8s";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bgp {
    /// A number, or a text with a number or with two numbers and a dot.
    #[serde(rename = "asNumber", default, skip_serializing_if = "Option::is_none")]
    asn: Option<Json>,
    #[serde(rename = "ipv4Address", default, skip_serializing_if = "String::is_empty")]
    v4: String,
    #[serde(rename = "ipv6Address", default, skip_serializing_if = "String::is_empty")]
    v6: String,
    #[serde(rename = "ipv4IPIPTunnelAddr", default, skip_serializing_if = "String::is_empty")]
    ipip: String,
    #[serde(rename = "routeReflectorClusterID", default, skip_serializing_if = "String::is_empty")]
    reflector: String,
    #[serde(flatten)]
    unknown: Unknown,
}

/// A kind of tunnel. Each node has an address of a pool for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// VXLAN.
    Vxlan(IpFamily),
    /// IPv4 in IPv4.
    Ipip,
}

impl Tunnel {
    /// All kinds.
    pub const ALL: [Tunnel; 3] = [Tunnel::Vxlan(IpFamily::V4), Tunnel::Vxlan(IpFamily::V6), Tunnel::Ipip];

    /// The handle of a node's tunnel address.
    pub fn handle(self, node: &str) -> String {
        match self {
            Tunnel::Vxlan(IpFamily::V4) => format!("vxlan-tunnel-addr-{node}"),
            Tunnel::Vxlan(IpFamily::V6) => format!("vxlan-v6-tunnel-addr-{node}"),
            Tunnel::Ipip => format!("ipip-tunnel-addr-{node}"),
        }
    }

    /// The attribute `type` of a tunnel address.
    pub fn attribute(self) -> &'static str {
        match self {
            Tunnel::Vxlan(IpFamily::V4) => "vxlanTunnelAddress",
            Tunnel::Vxlan(IpFamily::V6) => "vxlanV6TunnelAddress",
            Tunnel::Ipip => "ipipTunnelAddress",
        }
    }

    /// The family of the encapsulated packets.
    pub fn family(self) -> IpFamily {
        match self {
            Tunnel::Vxlan(family) => family,
            Tunnel::Ipip => IpFamily::V4,
        }
    }
}

impl Node {
    /// An object without a spec.
    pub fn new(name: &str) -> Node {
        Node {
            kind: "Node".into(),
            api_version: "projectcalico.org/v3".into(),
            metadata: [("name".to_owned(), name.into())].into_iter().collect(),
            spec: Spec::default(),
            unknown: Unknown::new(),
        }
    }

    /// Parses an object.
    pub fn parse(key: &str, value: &[u8]) -> Result<Node, Error> {
        Node::decode(value).map_err(|why| Error::Malformed { key: key.into(), why })
    }

    /// The key of a node's object.
    pub fn key(name: &str) -> String {
        format!("{}{name}", key::NODES)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.metadata.get("name").and_then(Json::as_str).unwrap_or_default()
    }

    /// The labels.
    pub fn labels(&self) -> Labels {
        let labels = self.metadata.get("labels").and_then(Json::as_object);
        let pairs = labels.into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// The address by which other nodes reach it, with the prefix length of its subnet. Without a prefix, it is alone
    /// in its subnet.
    pub fn address(&self, family: IpFamily) -> Option<IpNet> {
        let bgp = self.spec.bgp.as_ref()?;
        let text = match family {
            IpFamily::V4 => &bgp.v4,
            IpFamily::V6 => &bgp.v6,
        };
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
    }

    /// Sets the address by which other nodes reach it.
    pub fn set_address(&mut self, address: IpNet) {
        let bgp = self.spec.bgp.get_or_insert_default();
        match address {
            IpNet::V4(_) => bgp.v4 = address.to_string(),
            IpNet::V6(_) => bgp.v6 = address.to_string(),
        }
    }

    /// A tunnel address.
    pub fn tunnel(&self, tunnel: Tunnel) -> Option<IpAddr> {
        let text = match tunnel {
            Tunnel::Vxlan(IpFamily::V4) => &self.spec.vxlan4,
            Tunnel::Vxlan(IpFamily::V6) => &self.spec.vxlan6,
            Tunnel::Ipip => &self.spec.bgp.as_ref()?.ipip,
        };
        text.parse().ok()
    }

    /// Sets or removes a tunnel address.
    pub fn set_tunnel(&mut self, tunnel: Tunnel, address: Option<IpAddr>) {
        let text = address.map(|ip| ip.to_string()).unwrap_or_default();
        match tunnel {
            Tunnel::Vxlan(IpFamily::V4) => self.spec.vxlan4 = text,
            Tunnel::Vxlan(IpFamily::V6) => self.spec.vxlan6 = text,
            // Removing the address must not create an empty BGP spec.
            Tunnel::Ipip if address.is_none() && self.spec.bgp.is_none() => {}
            Tunnel::Ipip => self.spec.bgp.get_or_insert_default().ipip = text,
        }
    }

    /// The MAC address of its VXLAN device, if it is not the default.
    pub fn mac(&self, family: IpFamily) -> Option<&str> {
        let text = match family {
            IpFamily::V4 => &self.spec.mac4,
            IpFamily::V6 => &self.spec.mac6,
        };
        Some(text.as_str()).filter(|text| !text.is_empty())
    }

    /// Its Kubernetes name, if it is a Kubernetes node.
    pub fn kubernetes_name(&self) -> Option<&str> {
        let reference = self.spec.references.iter().find(|one| one.orchestrator == KUBERNETES)?;
        Some(reference.node.as_str()).filter(|name| !name.is_empty())
    }

    /// Sets its Kubernetes name to its own name, unless it has one. When that Kubernetes node is deleted, this object
    /// is an orphan.
    pub fn set_kubernetes_name(&mut self) {
        if self.kubernetes_name().is_none() {
            self.spec.references.retain(|one| one.orchestrator != KUBERNETES);
            let (node, orchestrator) = (self.name().to_owned(), KUBERNETES.to_owned());
            self.spec.references.push(Reference { node, orchestrator, unknown: Unknown::new() });
        }
    }

    /// The names of all Node objects, each with its Kubernetes name. A malformed object has none.
    pub fn list(store: &dyn Store) -> Result<Vec<(String, Option<String>)>, Error> {
        let named = |entry: Entry| {
            let name = entry.key.strip_prefix(key::NODES)?.to_owned();
            let node = Node::decode(&entry.value).ok();
            Some((name, node.and_then(|node| node.kubernetes_name().map(String::from))))
        };
        Ok(store.list(key::NODES)?.into_iter().filter_map(named).collect())
    }

    /// Deletes the object, if it exists with this Kubernetes name. Returns whether it was deleted.
    pub(super) fn delete(store: &dyn Store, name: &str, kubernetes_name: &str) -> Result<bool, Error> {
        match Record::<Node>::find(store, &Node::key(name))? {
            Some(record) if record.value.kubernetes_name() == Some(kubernetes_name) => {
                match record.delete(store) {
                    // It was written just now: the node may be alive.
                    Err(Error::Store(error)) if error.is_conflict() => Ok(false),
                    done => done.map(|()| true),
                }
            }
            _ => Ok(false),
        }
    }

    /// Its AS number, if it differs from the cluster's.
    pub fn asn(&self) -> Option<u32> {
        parse_asn(self.spec.bgp.as_ref()?.asn.as_ref()?)
    }

    /// The cluster ID, if it is a route reflector.
    pub fn route_reflector_cluster_id(&self) -> Option<&str> {
        let id = self.spec.bgp.as_ref()?.reflector.as_str();
        Some(id).filter(|id| !id.is_empty())
    }

    /// Updates a node's object, or creates it. Returns whether anything was written.
    pub fn update(store: &dyn Store, name: &str, change: impl Fn(&mut Node)) -> Result<bool, Error> {
        let create = |key| {
            let mut node = Node::new(name);
            change(&mut node);
            Record::create(store, key, node).map(|_| true)
        };
        Node::update_or(store, name, &change, create)
    }

    /// Removes all tunnel addresses from a node's object, if it exists.
    pub(super) fn remove_tunnels(store: &dyn Store, name: &str) -> Result<(), Error> {
        let remove = |node: &mut Node| Tunnel::ALL.iter().for_each(|tunnel| node.set_tunnel(*tunnel, None));
        Node::update_or(store, name, &remove, |_| Ok(false)).map(drop)
    }

    fn update_or(
        store: &dyn Store,
        name: &str,
        change: &dyn Fn(&mut Node),
        if_missing: impl Fn(String) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let key = Node::key(name);
        let mut last = StoreError::Missing { key: key.clone() };
        for _ in 0..MAX_RETRIES {
            let written = match Record::<Node>::find(store, &key)? {
                None => if_missing(key.clone()),
                Some(mut record) => {
                    let before = record.value.clone();
                    change(&mut record.value);
                    if record.value == before {
                        return Ok(false);
                    }
                    record.save(store).map(|()| true)
                }
            };
            match written {
                Err(Error::Store(error)) if error.is_conflict() => last = error,
                other => return other,
            }
        }
        Err(last.into())
    }
}

/// Parses an AS number: a number, a text with a number, or two halves with a dot.
pub fn parse_asn(written: &Json) -> Option<u32> {
    if let Some(number) = written.as_u64() {
        return number.try_into().ok();
    }
    match written.as_str()?.split_once('.') {
        Some((high, low)) => {
            Some(u32::from(high.parse::<u16>().ok()?) << 16 | u32::from(low.parse::<u16>().ok()?))
        }
        None => written.as_str()?.parse().ok(),
    }
}

impl Value for Node {
    fn decode(bytes: &[u8]) -> Result<Node, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    const TEXT: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node1","labels":{"rack":"7"},"uid":"1"},"spec":{"bgp":{"asNumber":64600,"ipv4Address":"172.18.0.2/16","ipv4IPIPTunnelAddr":"10.244.1.1","routeReflectorClusterID":"244.0.0.1"},"ipv4VXLANTunnelAddr":"10.244.1.0","orchRefs":[{"nodeName":"node1","orchestrator":"k8s"}]},"status":{}}"#;

    #[test]
    fn calicos_object_is_kept_byte_by_byte() {
        let node = Node::decode(TEXT.as_bytes()).unwrap();
        assert_eq!(node.encode().unwrap(), TEXT.as_bytes());
        assert_eq!(node.name(), "node1");
        assert_eq!(node.labels()["rack"], "7");
        assert_eq!(node.address(IpFamily::V4).unwrap().to_string(), "172.18.0.2/16");
        assert_eq!(node.address(IpFamily::V6), None);
        assert_eq!(node.tunnel(Tunnel::Vxlan(IpFamily::V4)), "10.244.1.0".parse().ok());
        assert_eq!(node.tunnel(Tunnel::Ipip), "10.244.1.1".parse().ok());
        assert_eq!((node.asn(), node.route_reflector_cluster_id()), (Some(64600), Some("244.0.0.1")));
    }

    #[test]
    fn an_asn_has_three_notations() {
        for (written, number) in [
            (Json::from(64512), Some(64512)),
            ("64512".into(), Some(64512)),
            ("1.10".into(), Some(65546)),
            ("1.70000".into(), None),
            ("x".into(), None),
            (Json::from(1u64 << 40), None),
        ] {
            assert_eq!(parse_asn(&written), number, "{written}");
        }
    }

    #[test]
    fn an_update_keeps_unknown_fields_and_is_skipped_without_a_change() {
        let store = Memory::new();
        store.create(&Node::key("node1"), TEXT.as_bytes()).unwrap();
        let six = "fd00::2/64".parse().unwrap();
        assert!(Node::update(&store, "node1", |node| node.set_address(six)).unwrap());
        assert!(!Node::update(&store, "node1", |node| node.set_address(six)).unwrap());
        let text = String::from_utf8(store.get(&Node::key("node1")).unwrap().unwrap().value).unwrap();
        assert_eq!(text, TEXT.replace("\"ipv4IPIP", "\"ipv6Address\":\"fd00::2/64\",\"ipv4IPIP"));
        assert!(Node::update(&store, "node2", |node| node.set_tunnel(Tunnel::Ipip, "10.0.0.1".parse().ok()))
            .unwrap());
        let made = store.get(&Node::key("node2")).unwrap().unwrap().value;
        assert_eq!(
            String::from_utf8(made).unwrap(),
            r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node2"},"spec":{"bgp":{"ipv4IPIPTunnelAddr":"10.0.0.1"}}}"#
        );
    }
}
