//! The specification of a lab, and what follows from it: names, addresses and the network config. No I/O.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::{Error, Result};

/// The backends that a lab can have, if the kernel supports them.
pub const BACKENDS: [&str; 6] = ["vxlan", "direct-or-vxlan", "host-gw", "ipip", "wireguard", "alloc"];

/// The networks that attach pods: the plugins flannel, bridge and ptp with the flannel agent, or calico with its agent.
pub const NETWORKS: [&str; 4] = ["flannel", "bridge", "ptp", CALICO];

/// The network with the Calico agent.
pub(crate) const CALICO: &str = "calico";

/// The machine that connects the subnets.
pub(crate) const ROUTER: &str = "router";
/// Each node has two addresses in its subnet: the initial one and the one of the fault `change-address`.
const MAX_NODES: u16 = 100;
const MAX_SUBNETS: u16 = 20;
const MAX_PODS: u16 = 100;
/// The host part of a node's address is its number plus this offset.
const OFFSET: u16 = 10;
/// The offset of the changed address.
const CHANGED_OFFSET: u16 = OFFSET + MAX_NODES;
/// The host part of the address of the node that claims a duplicate pod CIDR.
const INTRUDER: u16 = 250;

/// The store of the nodes or blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// An SQLite file in the shared directory.
    Embedded,
    /// A list file in the shared directory.
    Static,
    /// etcd, on the router.
    Etcd,
}

/// The address families of pods and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
    /// Both.
    Dual,
}

/// The specification of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabSpec {
    /// The name of the lab.
    pub name: String,
    /// The number of nodes.
    pub nodes: u16,
    /// The number of pods on each node.
    pub pods: u16,
    /// The backend between the nodes.
    pub backend: String,
    /// The store of the nodes or blocks.
    pub store: Store,
    /// The number of L2 segments, with a router between them.
    pub subnets: u16,
    /// The address families of pods and nodes.
    pub families: Families,
    /// The network, one of [`NETWORKS`].
    pub cni_network: String,
    /// The directory of policies that the agents enforce.
    pub policies: Option<PathBuf>,
    /// The directory of Services that the agents serve.
    pub services: Option<PathBuf>,
    /// The directories of plugins.
    pub plugin_dirs: Vec<PathBuf>,
}

/// The connection of a node to the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uplink {
    pub subnet: u16,
    /// One address for each family.
    pub addresses: Vec<UplinkAddress>,
}

/// An address of a node in the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UplinkAddress {
    pub ip: IpAddr,
    pub prefix: u8,
    pub gateway: IpAddr,
}

impl Uplink {
    pub fn ips(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(|address| address.ip).collect()
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Store::Embedded => "embedded",
            Store::Static => "static",
            Store::Etcd => "etcd",
        })
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Families::Ipv4 => "ipv4",
            Families::Ipv6 => "ipv6",
            Families::Dual => "dual",
        })
    }
}

impl fmt::Display for LabSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LabSpec { nodes, pods, backend, store, subnets, families, .. } = self;
        let many = |count: u16, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (nodes, pods, subnets) = (many(*nodes, "node"), many(*pods, "pod"), many(*subnets, "subnet"));
        write!(f, "{nodes} with {pods} each, {subnets}, {families}, backend {backend}, store {store}")
    }
}

impl LabSpec {
    /// Checks the specification, before anything is created.
    pub(crate) fn check(&self) -> Result<()> {
        podwire_sandbox::PodName::new(&self.namespace(), "n1").map_err(|error| {
            Error::input(format!("{:?} is not a valid name for a lab", self.name), error.details)
        })?;
        let within = |what: &str, count: u16, max: u16| {
            if (1..=max).contains(&count) {
                return Ok(());
            }
            Err(Error::input(format!("{count} {what}: expected 1 to {max}"), ""))
        };
        within("nodes", self.nodes, MAX_NODES)?;
        within("subnets", self.subnets, MAX_SUBNETS.min(self.nodes))?;
        if self.pods > MAX_PODS {
            return Err(Error::input(
                format!("{} pods on a node: expected at most {MAX_PODS}", self.pods),
                "",
            ));
        }
        if !BACKENDS.contains(&self.backend.as_str()) {
            let hint = format!("choose one of {}", BACKENDS.join(", "));
            return Err(Error::input(format!("unknown backend {:?}", self.backend), hint));
        }
        if !NETWORKS.contains(&self.cni_network.as_str()) {
            let hint = format!("choose one of {}", NETWORKS.join(", "));
            return Err(Error::input(format!("unknown network {:?}", self.cni_network), hint));
        }
        if self.is_calico() {
            return self.check_calico();
        }
        match (self.store, self.families, self.backend.as_str()) {
            (Store::Etcd, Families::Ipv6, _) => Err(Error::input(
                "flannel's keys in etcd do not support IPv6 without IPv4",
                "choose --family dual, or --store embedded",
            )),
            (Store::Static, _, "wireguard") => Err(Error::input(
                "a static list needs the WireGuard key of every node, which a node creates at its start",
                "choose --store embedded",
            )),
            (_, Families::Ipv6, "ipip") => {
                Err(Error::input("IPIP carries IPv4 only", "choose --backend vxlan, or --family ipv4"))
            }
            _ => Ok(()),
        }
    }

    /// The namespace in the names of the lab's processes.
    pub(crate) fn namespace(&self) -> String {
        format!("lab-{}", self.name)
    }

    /// All nodes of the specification.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = String> {
        (1..=self.nodes).map(|number| format!("n{number}"))
    }

    /// The pods of a node.
    pub(crate) fn pod_names(&self, node: &str) -> Vec<String> {
        (1..=self.pods).map(|number| format!("{node}-pod{number}")).collect()
    }

    /// The node of one of these pods, by `namespace/name`.
    pub(crate) fn node_of(&self, pod: &str) -> Option<String> {
        let name = pod.strip_prefix("default/")?;
        self.node_names().find(|node| self.pod_names(node).iter().any(|one| one == name))
    }

    pub(crate) fn number(&self, node: &str) -> Option<u16> {
        let number = node.strip_prefix('n')?.parse().ok()?;
        (1..=self.nodes).contains(&number).then_some(number)
    }

    /// The address families, IPv4 first.
    pub(crate) fn families(&self) -> &'static [IpFamily] {
        match self.families {
            Families::Ipv4 => &[IpFamily::V4],
            Families::Ipv6 => &[IpFamily::V6],
            Families::Dual => &IpFamily::ALL,
        }
    }

    /// The addresses of the router in a subnet.
    pub(crate) fn gateways(&self, subnet: u16) -> Vec<(IpAddr, u8)> {
        self.families().iter().map(|family| (address(*family, subnet, 1), prefix(*family))).collect()
    }

    /// The URL of etcd, on the router.
    pub(crate) fn etcd(&self) -> String {
        format!("http://{}", SocketAddr::new(address(self.families()[0], 1, 1), 2379))
    }

    /// The uplink of a node, with its initial or its changed addresses.
    pub(crate) fn uplink(&self, number: u16, changed: bool) -> Uplink {
        // Nodes with adjacent numbers share a subnet.
        let subnet = (number - 1) * self.subnets / self.nodes + 1;
        let host = number + if changed { CHANGED_OFFSET } else { OFFSET };
        let uplink_address = |family: &IpFamily| UplinkAddress {
            ip: address(*family, subnet, host),
            prefix: prefix(*family),
            gateway: address(*family, subnet, 1),
        };
        Uplink { subnet, addresses: self.families().iter().map(uplink_address).collect() }
    }

    /// The addresses of the node that claims a duplicate pod CIDR. No node of the lab has them.
    pub(crate) fn intruder(&self) -> Vec<IpAddr> {
        self.families().iter().map(|family| address(*family, 1, INTRUDER)).collect()
    }

    /// flannel's net-conf.json.
    pub(crate) fn net_conf(&self) -> Value {
        let (v4, v6) = (self.families != Families::Ipv6, self.families != Families::Ipv4);
        let mut conf = json!({ "EnableIPv4": v4, "EnableIPv6": v6, "Backend": { "Type": self.backend } });
        if v4 {
            conf["Network"] = json!("10.244.0.0/16");
        }
        if v6 {
            conf["IPv6Network"] = json!("fd00:244::/48");
            conf["IPv6SubnetLen"] = json!(64);
        }
        conf
    }

    /// The content of the static store.
    pub(crate) fn node_list(&self, nodes: &[String]) -> Value {
        let entry = |node: &String| {
            let number = self.number(node).unwrap_or_default();
            let pod_cidr = |family: &IpFamily| match family {
                IpFamily::V4 => format!("10.244.{number}.0/24"),
                IpFamily::V6 => format!("fd00:244:0:{number:x}::/64"),
            };
            let pod_cidrs: Vec<String> = self.families().iter().map(pod_cidr).collect();
            self.node_list_entry(node, &pod_cidrs, &self.uplink(number, false).ips())
        };
        json!({ "network": self.net_conf(), "nodes": nodes.iter().map(entry).collect::<Vec<_>>() })
    }

    /// A node in the static store.
    pub(crate) fn node_list_entry(&self, node: &str, pod_cidrs: &[String], underlay: &[IpAddr]) -> Value {
        let mut entry = json!({ "name": node, "ranges": pod_cidrs, "underlay": underlay });
        if self.has_vxlan() {
            let (data, data_v6) = self.vteps(node);
            entry["backend"] = json!({ "type": "vxlan", "data": data, "dataV6": data_v6 });
        }
        entry
    }

    /// Whether the store contains the VTEPs of nodes.
    pub(crate) fn has_vxlan(&self) -> bool {
        self.backend.ends_with("vxlan")
    }

    /// The backend type in the store.
    pub(crate) fn backend_type(&self) -> &str {
        if self.has_vxlan() {
            "vxlan"
        } else {
            &self.backend
        }
    }

    /// The IPv4 and IPv6 VTEP of a node that has no agent to create them.
    pub(crate) fn vteps(&self, node: &str) -> (Option<Value>, Option<Value>) {
        let vtep = |family: IpFamily| {
            let mac = Mac::of(&format!("{} {node} {}", self.name, family.name())).to_string();
            let has_vtep = self.has_vxlan() && self.families().contains(&family);
            has_vtep.then(|| json!({ "VNI": 1, "VtepMAC": mac }))
        };
        (vtep(IpFamily::V4), vtep(IpFamily::V6))
    }
}

fn address(family: IpFamily, subnet: u16, host: u16) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([192, 168, (10 * subnet) as u8, host as u8]),
        // The groups read as decimal numbers: subnet 2, host 13 is fd00:0:0:20::13.
        IpFamily::V6 => IpAddr::from([0xfd00, 0, 0, decimal(10 * subnet), 0, 0, 0, decimal(host)]),
    }
}

/// The number whose hexadecimal digits are the decimal digits of this one.
fn decimal(number: u16) -> u16 {
    (0..4).fold(0, |sum, digit| sum + (number / 10u16.pow(digit) % 10) * 16u16.pow(digit))
}

fn prefix(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 24,
        IpFamily::V6 => 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> LabSpec {
        LabSpec {
            name: "lab".into(),
            nodes: 3,
            pods: 2,
            backend: "vxlan".into(),
            store: Store::Embedded,
            subnets: 2,
            families: Families::Dual,
            cni_network: "flannel".into(),
            policies: None,
            services: None,
            plugin_dirs: Vec::new(),
        }
    }

    #[test]
    fn nodes_are_spread_over_the_subnets_in_their_order() {
        let spec = spec();
        let subnets: Vec<u16> = (1..=3).map(|number| spec.uplink(number, false).subnet).collect();
        assert_eq!(subnets, [1, 1, 2]);
        let text = |ip: IpAddr| ip.to_string();
        let uplink = spec.uplink(3, false);
        assert_eq!(
            uplink
                .addresses
                .iter()
                .map(|one| (text(one.ip), one.prefix, text(one.gateway)))
                .collect::<Vec<_>>(),
            [
                ("192.168.20.13".into(), 24, "192.168.20.1".into()),
                ("fd00:0:0:20::13".into(), 64, "fd00:0:0:20::1".into())
            ]
        );
    }

    #[test]
    fn addresses_are_unique() {
        let spec = LabSpec { nodes: MAX_NODES, subnets: MAX_SUBNETS, ..spec() };
        let mut all: Vec<IpAddr> = spec.intruder();
        for number in 1..=spec.nodes {
            for changed in [false, true] {
                all.extend(spec.uplink(number, changed).ips());
            }
        }
        (1..=spec.subnets)
            .for_each(|subnet| all.extend(spec.gateways(subnet).iter().map(|gateway| gateway.0)));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn invalid_specifications_are_refused_with_a_hint() {
        assert!(spec().check().is_ok());
        let refused = |spec: LabSpec| spec.check().unwrap_err();
        assert!(refused(LabSpec { nodes: 0, ..spec() }).to_string().contains("0 nodes: expected 1 to 100"));
        assert!(refused(LabSpec { subnets: 4, ..spec() }).to_string().contains("4 subnets: expected 1 to 3"));
        assert!(refused(LabSpec { name: "A b".into(), ..spec() }).to_string().contains("not a valid name"));
        assert!(refused(LabSpec { backend: "udp".into(), ..spec() }).hint().contains("vxlan"));
        let alone = LabSpec { store: Store::Etcd, families: Families::Ipv6, ..spec() };
        assert!(refused(alone).hint().contains("--family dual"));
    }

    #[test]
    fn calico_labs_have_the_backends_of_pools() {
        let calico = LabSpec { cni_network: "calico".into(), ..spec() };
        let refused = |spec: LabSpec| spec.check().unwrap_err();
        let alone = LabSpec { store: Store::Etcd, families: Families::Ipv6, ..calico.clone() };
        assert!(calico.check().is_ok() && alone.check().is_ok());
        assert_eq!(alone.etcd(), "http://[fd00:0:0:10::1]:2379");
        assert!(refused(LabSpec { backend: "wireguard".into(), ..calico.clone() })
            .hint()
            .contains("host-gw"));
        assert!(refused(LabSpec { store: Store::Static, ..calico.clone() })
            .hint()
            .contains("--store embedded"));
        assert!(refused(LabSpec { backend: "ipip".into(), ..calico }).hint().contains("--family ipv4"));
    }

    #[test]
    fn the_node_list_has_cidrs_addresses_and_vteps() {
        let spec = LabSpec { store: Store::Static, ..spec() };
        let list = spec.node_list(&["n1".into(), "n3".into()]);
        assert_eq!(list["nodes"][1]["ranges"][0], "10.244.3.0/24");
        assert_eq!(list["nodes"][1]["underlay"][0], "192.168.20.13");
        let mac = |node: usize| list["nodes"][node]["backend"]["data"]["VtepMAC"].to_string();
        assert_ne!(mac(0), mac(1));
    }
}
