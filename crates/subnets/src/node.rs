//! The record of a node.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A node's record.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name in the source: the Node object's name, the last part of the key in etcd (which has no names), the row's
    /// name.
    pub name: String,
    /// Its pod CIDRs.
    pub pod_cidrs: PodCidrs,
    /// The addresses by which other nodes reach it.
    pub underlay: Underlay,
    /// The parameters of its tunnel endpoint.
    pub backend: Backend,
    /// How long the record is valid.
    pub lease_term: LeaseTerm,
}

/// The pod CIDRs of a node, of one family or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodCidrs {
    /// The IPv4 CIDR.
    pub v4: Option<Ipv4Net>,
    /// The IPv6 CIDR.
    pub v6: Option<Ipv6Net>,
}

impl PodCidrs {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// All CIDRs, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.v4.map(IpNet::V4).into_iter().chain(self.v6.map(IpNet::V6))
    }

    /// Whether any address is in both.
    pub fn overlap(&self, other: &PodCidrs) -> bool {
        self.iter().any(|own| other.iter().any(|theirs| overlap(own, theirs)))
    }
}

/// Whether two networks have an address in common: one contains the other.
pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The addresses by which other nodes reach a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Underlay {
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

/// A node's backend and the parameters of its tunnel endpoint. The data are kept as they were read, so that a backend
/// that this program does not know is passed on unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backend {
    /// flannel's backend type: `vxlan`, `host-gw`, `wireguard`, `ipip`, `alloc`…
    pub kind: String,
    /// For the IPv4 underlay.
    pub data: Option<Value>,
    /// For the IPv6 underlay.
    pub data_v6: Option<Value>,
}

/// A VXLAN tunnel endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// The VXLAN network identifier.
    #[serde(rename = "VNI")]
    pub vni: u32,
    /// The device's MAC address, which peers write into their forwarding tables.
    #[serde(rename = "VtepMAC")]
    pub mac: String,
}

/// A WireGuard peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardPeer {
    /// The public key, in base64.
    #[serde(rename = "PublicKey")]
    pub public_key: String,
    /// The UDP port. Old versions of flannel do not write it; their port is 51820.
    #[serde(rename = "Port", default = "WireguardPeer::default_port")]
    pub port: u16,
}

impl WireguardPeer {
    const fn default_port() -> u16 {
        51820
    }
}

impl Backend {
    /// A backend without data.
    pub fn named(kind: &str) -> Backend {
        Backend { kind: kind.into(), data: None, data_v6: None }
    }

    /// VXLAN, with a device for each family that is in use.
    pub fn vxlan(v4: Option<Vtep>, v6: Option<Vtep>) -> Backend {
        let data = |vtep: Option<Vtep>| vtep.map(|vtep| serde_json::json!(vtep));
        Backend { kind: "vxlan".into(), data: data(v4), data_v6: data(v6) }
    }

    /// WireGuard.
    pub fn wireguard(v4: Option<WireguardPeer>, v6: Option<WireguardPeer>) -> Backend {
        let data = |peer: Option<WireguardPeer>| peer.map(|peer| serde_json::json!(peer));
        Backend { kind: "wireguard".into(), data: data(v4), data_v6: data(v6) }
    }

    /// The VXLAN endpoint for the IPv4 underlay. After a restart, the device must get the same MAC address: all peers
    /// have it in their tables.
    pub fn vtep(&self) -> Option<Vtep> {
        read(self.data.as_ref()).filter(|_| self.kind == "vxlan")
    }

    /// The VXLAN endpoint for the IPv6 underlay.
    pub fn vtep_v6(&self) -> Option<Vtep> {
        read(self.data_v6.as_ref()).filter(|_| self.kind == "vxlan")
    }

    /// The WireGuard peer for the IPv4 underlay.
    pub fn wireguard_peer(&self) -> Option<WireguardPeer> {
        read(self.data.as_ref()).filter(|_| self.kind == "wireguard")
    }

    /// The WireGuard peer for the IPv6 underlay.
    pub fn wireguard_peer_v6(&self) -> Option<WireguardPeer> {
        read(self.data_v6.as_ref()).filter(|_| self.kind == "wireguard")
    }
}

fn read<T: serde::de::DeserializeOwned>(data: Option<&Value>) -> Option<T> {
    podwire_cni_spec::json::decode(data?).ok()
}

/// How long a node has its pod CIDRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTerm {
    /// Until the record is deleted: an etcd reservation, a row, a Node object.
    Permanent,
    /// Until the lease is not renewed. The end is not known: etcd would need one request for each node.
    Leased,
    /// Until this time, unless it is renewed.
    Until(SystemTime),
}

/// The registration of this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registration {
    /// Its name. etcd does not store it: there the public address identifies a node.
    pub name: String,
    /// The addresses by which other nodes reach it.
    pub underlay: Underlay,
    /// The parameters of its tunnel endpoint.
    pub backend: Backend,
    /// Its previous pod CIDRs, from [`SubnetEnv`](crate::SubnetEnv): running pods have addresses of them.
    pub previous: PodCidrs,
}

/// The pairs of nodes whose pod CIDRs overlap, by name. No single allocator creates such pairs, but people and
/// competing controllers do. Packets for the common addresses go to one of the two nodes.
pub fn find_overlaps(nodes: &[Node]) -> Vec<(String, String)> {
    // Two networks are nested or disjoint, so in the order of addresses all networks inside of one follow it directly.
    let mut cidrs: Vec<(IpNet, &str)> =
        nodes.iter().flat_map(|node| node.pod_cidrs.iter().map(|cidr| (cidr, node.name.as_str()))).collect();
    cidrs.sort_by_key(|(cidr, name)| (cidr.network(), cidr.prefix_len(), *name));
    let mut pairs = Vec::new();
    for (at, (cidr, name)) in cidrs.iter().enumerate() {
        let nested = cidrs[at + 1..].iter().take_while(|(other, _)| cidr.contains(&other.network()));
        for (_, other) in nested.filter(|(_, other)| other != name) {
            let (a, b) = if name < other { (name, other) } else { (other, name) };
            pairs.push((a.to_string(), b.to_string()));
        }
    }
    pairs.sort();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, v4: &str, v6: &str) -> Node {
        let pod_cidrs = PodCidrs { v4: v4.parse().ok(), v6: v6.parse().ok() };
        let (underlay, backend) = (Underlay::default(), Backend::named("host-gw"));
        Node { name: name.into(), pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent }
    }

    #[test]
    fn backend_data_are_flannels() {
        let vtep = Vtep { vni: 1, mac: "12:c6:65:89:b4:e3".into() };
        let backend = Backend::vxlan(Some(vtep.clone()), None);
        assert_eq!(backend.data.as_ref().unwrap().to_string(), r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#);
        assert_eq!((backend.vtep(), backend.vtep_v6()), (Some(vtep), None));
        let peer = WireguardPeer { public_key: "a+/=".into(), port: 51821 };
        let backend = Backend::wireguard(None, Some(peer.clone()));
        assert_eq!(backend.data_v6.as_ref().unwrap().to_string(), r#"{"PublicKey":"a+/=","Port":51821}"#);
        assert_eq!((backend.wireguard_peer_v6(), backend.vtep_v6()), (Some(peer), None));
    }

    #[test]
    fn overlapping_pod_cidrs_are_found() {
        let nodes = [
            node("a", "10.1.0.0/16", "fd00:1::/64"),
            node("b", "10.2.0.0/16", "fd00:2::/64"),
            node("c", "10.1.3.0/24", "fd00:2::/80"),
            node("d", "10.1.4.0/24", ""),
            node("e", "10.1.4.0/24", ""),
        ];
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        let expected = [pair("a", "c"), pair("a", "d"), pair("a", "e"), pair("b", "c"), pair("d", "e")];
        assert_eq!(find_overlaps(&nodes), expected);
        assert!(find_overlaps(&nodes[..2]).is_empty());
    }
}
