//! What a lab is to be like, and what follows from that: names, addresses, the network's config. Nothing here does anything.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use podwire_kernel::Mac;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::{routed, Error, Result};

/// Kinds of roads that a lab can have. Which of them work is the kernel's to say.
pub const BACKENDS: [&str; 6] = ["vxlan", "direct-or-vxlan", "host-gw", "ipip", "wireguard", "alloc"];

/// How pods can be attached: by flannel's plugin, to a bridge, each to a cable of its own, or routed.
pub const NETWORKS: [&str; 4] = ["flannel", "bridge", "ptp", routed::PLUGIN];

/// The machine between the subnets.
pub(crate) const ROUTER: &str = "router";
/// Each node has two addresses of each subnet that may be its own: where it is, and where it can be moved to.
const MOST_NODES: u16 = 100;
const MOST_SUBNETS: u16 = 20;
const MOST_PODS: u16 = 100;
/// A node's address is its number behind this one; one that was moved is behind the other.
const PLACE: u16 = 10;
const OTHER_PLACE: u16 = PLACE + MOST_NODES;
/// Where an intruder says that he is.
const INTRUDER: u16 = 250;

/// Where the nodes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// An SQLite file that all nodes see.
    Embedded,
    /// A list in a file that all nodes see.
    Static,
    /// etcd, on the router.
    Etcd,
}

/// Which addresses pods and nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
    /// Both.
    Dual,
}

/// What a lab is to be like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// How many nodes.
    pub nodes: u16,
    /// How many pods on each.
    pub pods: u16,
    /// The kind of roads.
    pub backend: String,
    /// Where the nodes are known.
    pub store: Store,
    /// How many wires the nodes are on, with a router between.
    pub subnets: u16,
    /// Which addresses there are.
    pub family: Family,
    /// How pods are attached.
    pub cni_network: String,
    /// A folder of policies that the agents enforce.
    pub policies: Option<PathBuf>,
    /// Where plugins are.
    pub plugin_dirs: Vec<PathBuf>,
}

/// A node's place in the underlay: addresses and the ways out, a pair for each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub subnet: u16,
    /// Address, length of the prefix, gateway.
    pub sides: Vec<(IpAddr, u8, IpAddr)>,
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

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
            Family::Dual => "dual",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { nodes, pods, backend, store, subnets, family, .. } = self;
        let many = |count: u16, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (nodes, pods, wires) = (many(*nodes, "node"), many(*pods, "pod"), many(*subnets, "subnet"));
        write!(f, "{nodes} with {pods} each, {wires}, {family}, backend {backend}, store {store}")
    }
}

impl Plan {
    /// Whether it makes sense; told before anything is made.
    pub(crate) fn check(&self) -> Result<()> {
        podwire_sandbox::PodName::new(&self.namespace(), "n1")
            .map_err(|error| Error::input(format!("{:?} is no name of a lab", self.name), error.details))?;
        let within = |what: &str, count: u16, most: u16| match (1..=most).contains(&count) {
            true => Ok(()),
            false => Err(Error::input(format!("{count} {what}: it must be 1 to {most}"), "")),
        };
        within("nodes", self.nodes, MOST_NODES)?;
        within("subnets", self.subnets, MOST_SUBNETS.min(self.nodes))?;
        if self.pods > MOST_PODS {
            return Err(Error::input(format!("{} pods on a node: at most {MOST_PODS}", self.pods), ""));
        }
        if !BACKENDS.contains(&self.backend.as_str()) {
            let hint = format!("there are {}", BACKENDS.join(", "));
            return Err(Error::input(format!("there is no backend {:?}", self.backend), hint));
        }
        if !NETWORKS.contains(&self.cni_network.as_str()) {
            let hint = format!("there are {}", NETWORKS.join(", "));
            return Err(Error::input(format!("there is no network {:?}", self.cni_network), hint));
        }
        if self.is_routed() {
            return self.check_routed();
        }
        match (self.store, self.family, self.backend.as_str()) {
            (Store::Etcd, Family::Ipv6, _) => Err(Error::input(
                "flannel's keys in etcd have no place for IPv6 alone",
                "choose --family dual, or --store embedded",
            )),
            (Store::Static, _, "wireguard") => Err(Error::input(
                "a static list needs every node's WireGuard key, which a node makes when it starts",
                "choose --store embedded",
            )),
            (_, Family::Ipv6, "ipip") => {
                Err(Error::input("IPIP carries IPv4 only", "choose --backend vxlan, or --family ipv4"))
            }
            _ => Ok(()),
        }
    }

    /// By which the lab's processes are known.
    pub(crate) fn namespace(&self) -> String {
        format!("lab-{}", self.name)
    }

    /// All nodes that there were at the beginning.
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

    /// Which families there are: whether each is IPv4.
    pub(crate) fn families(&self) -> &'static [bool] {
        match self.family {
            Family::Ipv4 => &[true],
            Family::Ipv6 => &[false],
            Family::Dual => &[true, false],
        }
    }

    /// The router's addresses on a wire.
    pub(crate) fn gateways(&self, subnet: u16) -> Vec<(IpAddr, u8)> {
        self.families().iter().map(|v4| (address(*v4, subnet, 1), prefix(*v4))).collect()
    }

    /// Where etcd answers.
    pub(crate) fn etcd(&self) -> String {
        let v4 = self.families().contains(&true);
        format!("http://{}", SocketAddr::new(address(v4, 1, 1), 2379))
    }

    /// Where a node is, or where it is after it was moved.
    pub(crate) fn seat(&self, number: u16, moved: bool) -> Seat {
        // Neighbours by number are neighbours on the wire.
        let subnet = (number - 1) * self.subnets / self.nodes + 1;
        let host = number + if moved { OTHER_PLACE } else { PLACE };
        let side = |v4: &bool| (address(*v4, subnet, host), prefix(*v4), address(*v4, subnet, 1));
        Seat { subnet, sides: self.families().iter().map(side).collect() }
    }

    /// An address that no node has.
    pub(crate) fn intruder(&self) -> Vec<IpAddr> {
        self.families().iter().map(|v4| address(*v4, 1, INTRUDER)).collect()
    }

    /// net-conf.json.
    pub(crate) fn net_conf(&self) -> Value {
        let (v4, v6) = (self.family != Family::Ipv6, self.family != Family::Ipv4);
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

    /// The list of nodes, for the store that is one.
    pub(crate) fn list(&self, nodes: &[String]) -> Value {
        let entry = |node: &String| {
            let number = self.number(node).unwrap_or_default();
            let ranges: Vec<String> = self
                .families()
                .iter()
                .map(|v4| match v4 {
                    true => format!("10.244.{number}.0/24"),
                    false => format!("fd00:244:0:{number:x}::/64"),
                })
                .collect();
            let underlay: Vec<IpAddr> = self.seat(number, false).sides.iter().map(|side| side.0).collect();
            self.list_entry(node, &ranges, &underlay)
        };
        json!({ "network": self.net_conf(), "nodes": nodes.iter().map(entry).collect::<Vec<_>>() })
    }

    /// A node in that list.
    pub(crate) fn list_entry(&self, node: &str, ranges: &[String], underlay: &[IpAddr]) -> Value {
        let mut entry = json!({ "name": node, "ranges": ranges, "underlay": underlay });
        if self.has_vxlan() {
            let (data, data_v6) = self.vteps(node);
            entry["backend"] = json!({ "type": "vxlan", "data": data, "dataV6": data_v6 });
        }
        entry
    }

    /// Whether nodes tell each other about ends of a VXLAN.
    pub(crate) fn has_vxlan(&self) -> bool {
        self.backend.ends_with("vxlan")
    }

    /// The kind of road that nodes tell each other.
    pub(crate) fn kind(&self) -> &str {
        if self.has_vxlan() {
            "vxlan"
        } else {
            &self.backend
        }
    }

    /// Both ends of a VXLAN that a node has, where somebody else decides about them.
    pub(crate) fn vteps(&self, node: &str) -> (Option<Value>, Option<Value>) {
        let end = |v4: bool| {
            let mac = Mac::of(&format!("{} {node} {v4}", self.name)).to_string();
            (self.has_vxlan() && self.families().contains(&v4)).then(|| json!({ "VNI": 1, "VtepMAC": mac }))
        };
        (end(true), end(false))
    }
}

fn address(v4: bool, subnet: u16, host: u16) -> IpAddr {
    match v4 {
        true => IpAddr::from([192, 168, (10 * subnet) as u8, host as u8]),
        // Read as decimal numbers, as people will.
        false => IpAddr::from([0xfd00, 0, 0, decimal(10 * subnet), 0, 0, 0, decimal(host)]),
    }
}

/// The number that reads in hexadecimal as this one does in decimal.
fn decimal(number: u16) -> u16 {
    (0..4).fold(0, |sum, digit| sum + (number / 10u16.pow(digit) % 10) * 16u16.pow(digit))
}

fn prefix(v4: bool) -> u8 {
    if v4 {
        24
    } else {
        64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            name: "lab".into(),
            nodes: 3,
            pods: 2,
            backend: "vxlan".into(),
            store: Store::Embedded,
            subnets: 2,
            family: Family::Dual,
            cni_network: "flannel".into(),
            policies: None,
            plugin_dirs: Vec::new(),
        }
    }

    #[test]
    fn nodes_are_spread_over_the_wires_in_their_order() {
        let plan = plan();
        let subnets: Vec<u16> = (1..=3).map(|number| plan.seat(number, false).subnet).collect();
        assert_eq!(subnets, [1, 1, 2]);
        let text = |ip: IpAddr| ip.to_string();
        let seat = plan.seat(3, false);
        assert_eq!(
            seat.sides.iter().map(|side| (text(side.0), side.1, text(side.2))).collect::<Vec<_>>(),
            [
                ("192.168.20.13".into(), 24, "192.168.20.1".into()),
                ("fd00:0:0:20::13".into(), 64, "fd00:0:0:20::1".into())
            ]
        );
    }

    #[test]
    fn nobody_shares_an_address() {
        let plan = Plan { nodes: MOST_NODES, subnets: MOST_SUBNETS, ..plan() };
        let mut all: Vec<IpAddr> = plan.intruder();
        for number in 1..=plan.nodes {
            for moved in [false, true] {
                all.extend(plan.seat(number, moved).sides.iter().map(|side| side.0));
            }
        }
        (1..=plan.subnets).for_each(|subnet| all.extend(plan.gateways(subnet).iter().map(|side| side.0)));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_way_out() {
        assert!(plan().check().is_ok());
        let refused = |plan: Plan| plan.check().unwrap_err();
        assert!(refused(Plan { nodes: 0, ..plan() }).to_string().contains("0 nodes: it must be 1 to 100"));
        assert!(refused(Plan { subnets: 4, ..plan() }).to_string().contains("4 subnets: it must be 1 to 3"));
        assert!(refused(Plan { name: "A b".into(), ..plan() }).to_string().contains("no name of a lab"));
        assert!(refused(Plan { backend: "udp".into(), ..plan() }).hint().contains("vxlan"));
        let alone = Plan { store: Store::Etcd, family: Family::Ipv6, ..plan() };
        assert!(refused(alone).hint().contains("--family dual"));
    }

    #[test]
    fn routed_pods_have_the_roads_that_pools_can_say() {
        let routed = Plan { cni_network: "calico".into(), ..plan() };
        let refused = |plan: Plan| plan.check().unwrap_err();
        let alone = Plan { store: Store::Etcd, family: Family::Ipv6, ..routed.clone() };
        assert!(routed.check().is_ok() && alone.check().is_ok());
        assert_eq!(alone.etcd(), "http://[fd00:0:0:10::1]:2379");
        assert!(refused(Plan { backend: "wireguard".into(), ..routed.clone() }).hint().contains("host-gw"));
        assert!(refused(Plan { store: Store::Static, ..routed.clone() }).hint().contains("--store embedded"));
        assert!(refused(Plan { backend: "ipip".into(), ..routed }).hint().contains("--family ipv4"));
    }

    #[test]
    fn a_list_has_what_nodes_need_of_each_other() {
        let plan = Plan { store: Store::Static, ..plan() };
        let list = plan.list(&["n1".into(), "n3".into()]);
        assert_eq!(list["nodes"][1]["ranges"][0], "10.244.3.0/24");
        assert_eq!(list["nodes"][1]["underlay"][0], "192.168.20.13");
        let mac = |node: usize| list["nodes"][node]["backend"]["data"]["VtepMAC"].to_string();
        assert_ne!(mac(0), mac(1));
    }
}
