//! Three nodes in namespaces: two on one L2 segment, the third behind a router. Each has one pod with both families.
//!
//! ```text
//!  n1 192.168.10.11 ─┐
//!                    ├─ lan10 ─ router ─ lan20 ─ n3 192.168.20.13
//!  n2 192.168.10.12 ─┘
//! ```

#![allow(dead_code, clippy::unwrap_used)] // Not every test uses everything; a test that cannot continue panics.

use std::cell::RefCell;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::{Host, Mac, Netns};
use podwire_overlay::{
    Backend, Cluster, FirewallOptions, LocalNode, LocalSubnet, Peer, PeerSubnet, Report, UplinkPreference,
    WireguardEndpoint,
};
use podwire_tests::{Node, Pod};
use serde_json::Value;

/// The router with its bridges, and the nodes.
pub struct Lab {
    pub router: Node,
    pub nodes: Vec<LabNode>,
}

/// A node, its pod, and what it has published.
pub struct LabNode {
    pub number: u8,
    pub node: Node,
    pub pod: Pod,
    pub host: RefCell<Host>,
    /// Of `flannel.1` and `flannel-v6.1`.
    pub macs: RefCell<[Option<Mac>; 2]>,
    /// Of `flannel-wg` and `flannel-wg-v6`.
    pub keys: RefCell<[Option<WireguardEndpoint>; 2]>,
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn networks() -> Vec<IpNet> {
    vec![net("10.244.0.0/16"), net("fd00:244::/48")]
}

/// The host sockets in a node's namespace.
pub fn host_of(node: &Node) -> Host {
    Host::within(Netns::open(format!("/proc/{}/ns/net", node.pid())).unwrap()).unwrap()
}

const NO_DAD: &str =
    "echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad";
const FORWARDING: &str =
    "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";

impl Lab {
    /// The three nodes, each with a pod whose MTU is `pod_mtu`.
    pub fn new(pod_mtu: u32) -> Lab {
        let router = Node::new();
        router.sh(NO_DAD);
        router.sh(FORWARDING);
        for lan in [10, 20] {
            router.sh(&format!(
                "ip link add lan{lan} type bridge && ip link set lan{lan} up \
                 && ip address add 192.168.{lan}.1/24 dev lan{lan} && ip address add fd{lan}::1/64 dev lan{lan} nodad"
            ));
        }
        let nodes =
            [(1, 10), (2, 10), (3, 20)].map(|(number, lan)| LabNode::new(&router, number, lan, pod_mtu));
        Lab { router, nodes: nodes.into() }
    }

    pub fn node(&self, number: u8) -> &LabNode {
        &self.nodes[usize::from(number) - 1]
    }

    /// The cluster as node `number` knows it.
    pub fn cluster(&self, number: u8) -> Cluster {
        let peers = self.nodes.iter().filter(|node| node.number != number).map(LabNode::as_peer).collect();
        Cluster { networks: networks(), local: self.node(number).local_node(), peers }
    }

    /// Applies the backend on one node.
    pub fn apply(&self, number: u8, backend: &dyn Backend) -> Report {
        let node = self.node(number);
        let report = node.apply(backend, &self.cluster(number));
        for tunnel in &report.tunnels {
            let place = usize::from(tunnel.name.contains("-v6"));
            node.macs.borrow_mut()[place] = tunnel.mac;
            let key = tunnel
                .public_key
                .map(|public_key| WireguardEndpoint { public_key, port: 51820 + place as u16 });
            node.keys.borrow_mut()[place] = key;
        }
        assert!(report.failed.is_empty(), "n{number}: {:#?}", report.failed);
        report
    }

    /// Applies the backend on all nodes: once so that each publishes its data, and again when all have.
    pub fn build(&self, backend: &dyn Backend) {
        for _ in 0..2 {
            self.nodes.iter().for_each(|node| drop(self.apply(node.number, backend)));
        }
    }

    /// Checks that all pods reach each other without NAT and that packets of the full MTU pass.
    #[track_caller]
    pub fn assert_all_talk(&self, mtu: u32) {
        self.assert_pairs_talk(mtu, &[(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)], &IpFamily::ALL);
    }

    #[track_caller]
    pub fn assert_pairs_talk(&self, mtu: u32, pairs: &[(u8, u8)], families: &[IpFamily]) {
        for (from, to) in pairs {
            let (from, to) = (self.node(*from), self.node(*to));
            let _listener = to.node.listen(Some(&to.pod), "tcp/80");
            for family in families {
                let (source, target) = (from.pod_address(*family), to.pod_address(*family));
                let answer = from.node.ask(Some(&from.pod), &target, "tcp/80");
                assert_eq!(answer, format!("{} {source}", to.pod.name), "{source} to {target}");
                // The headers of IP and ICMP.
                let size = mtu - if family.is_v4() { 28 } else { 48 };
                assert!(
                    from.node.pings_with(Some(&from.pod), &target, size),
                    "{size} bytes from {source} to {target}"
                );
            }
        }
    }

    /// Whether the pod of one node reaches the pod of another.
    pub fn pings(&self, from: u8, to: u8, family: IpFamily) -> bool {
        let (from, to) = (self.node(from), self.node(to));
        let program = format!("ip netns exec {} ping -q -c 1 -W 5 {}", from.pod.name, to.pod_address(family));
        from.node.can(&program)
    }
}

impl LabNode {
    /// Waits until every device that is up has a link-local address, which the kernel adds with a delay.
    #[allow(dead_code)] // Not every suite watches.
    pub fn settle(&self) {
        let own = "ip -6 -o address show dev $device scope link | grep fe80 | grep -qv tentative";
        let is_up = "ip -o link show dev $device 2>/dev/null | grep -q \"[<,]UP[,>]\"";
        let waits = format!("while {is_up} && ! {own}; do sleep 0.02; done");
        self.node
            .sh(&format!("timeout 20 sh -c 'for device in flannel.1 flannel-v6.1 eth0; do {waits}; done'"));
    }

    fn new(router: &Node, number: u8, lan: u8, pod_mtu: u32) -> LabNode {
        let node = Node::new();
        node.sh(NO_DAD);
        node.sh(FORWARDING);
        let pid = node.pid();
        router.sh(&format!(
            "ip link add n{number} type veth peer name eth0 netns {pid} && ip link set n{number} master lan{lan} up"
        ));
        node.sh(&format!(
            "ip address add 192.168.{lan}.1{number}/24 dev eth0 && ip address add fd{lan}::1{number}/64 dev eth0 nodad \
             && ip link set eth0 up && ip route add default via 192.168.{lan}.1 \
             && ip -6 route add default via fd{lan}::1 dev eth0"
        ));
        let pod = node.pod(&format!("pod{number}"));
        node.sh(&format!(
            "ip link add cni0 type bridge && ip link set cni0 mtu {pod_mtu} up \
             && ip address add 10.244.{number}.1/24 dev cni0 && ip address add fd00:244:0:{number}::1/64 dev cni0 nodad \
             && ip link add pod type veth peer name eth0 netns pod{number} && ip link set pod mtu {pod_mtu} master cni0 up \
             && ip netns exec pod{number} sh -c '{NO_DAD}' && ip -n pod{number} link set lo up \
             && ip -n pod{number} address add 10.244.{number}.10/24 dev eth0 \
             && ip -n pod{number} address add fd00:244:0:{number}::10/64 dev eth0 nodad \
             && ip -n pod{number} link set eth0 mtu {pod_mtu} up \
             && ip -n pod{number} route add default via 10.244.{number}.1 \
             && ip -n pod{number} -6 route add default via fd00:244:0:{number}::1 dev eth0"
        ));
        let host = RefCell::new(host_of(&node));
        LabNode { number, node, pod, host, macs: RefCell::default(), keys: RefCell::default() }
    }

    pub fn pod_cidr(&self, family: IpFamily) -> IpNet {
        let number = self.number;
        net(&if family.is_v4() {
            format!("10.244.{number}.0/24")
        } else {
            format!("fd00:244:0:{number}::/64")
        })
    }

    pub fn pod_address(&self, family: IpFamily) -> String {
        let number = self.number;
        if family.is_v4() {
            format!("10.244.{number}.10")
        } else {
            format!("fd00:244:0:{number}::10")
        }
    }

    /// This node with the uplink of the default route.
    pub fn local_node(&self) -> LocalNode {
        let mut host = self.host.borrow_mut();
        let mut subnet = |family| LocalSubnet {
            pod_cidr: self.pod_cidr(family),
            uplink: UplinkPreference::default().choose(&mut host, family).expect("an uplink"),
        };
        LocalNode {
            name: format!("n{}", self.number),
            subnets: vec![subnet(IpFamily::V4), subnet(IpFamily::V6)],
        }
    }

    pub fn as_peer(&self) -> Peer {
        let local = self.local_node();
        let subnet = |(place, subnet): (usize, &LocalSubnet)| PeerSubnet {
            vtep_mac: self.macs.borrow()[place],
            wireguard: self.keys.borrow()[place],
            ..PeerSubnet::new(subnet.pod_cidr, subnet.uplink.address)
        };
        Peer { name: local.name.clone(), subnets: local.subnets.iter().enumerate().map(subnet).collect() }
    }

    pub fn apply(&self, backend: &dyn Backend, cluster: &Cluster) -> Report {
        let firewall = FirewallOptions { masquerade: true, ..FirewallOptions::default() };
        podwire_overlay::apply(&mut self.host.borrow_mut(), backend, cluster, &firewall).expect("apply")
    }

    /// The owned routes, `10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink`, sorted.
    pub fn routes(&self) -> Vec<String> {
        let mut all = Vec::new();
        for family in ["-4", "-6"] {
            for route in rows(&self.node.json(&format!("ip -j {family} route show proto 112"))) {
                let word = |key: &str| route[key].as_str().unwrap_or("-").to_string();
                let onlink = route["flags"].as_array().is_some_and(|flags| flags.contains(&"onlink".into()));
                let end = if onlink { " onlink" } else { "" };
                all.push(format!("{} via {} dev {}{end}", word("dst"), word("gateway"), word("dev")));
            }
        }
        all.sort();
        all
    }

    /// The permanent neighbours on a device, `10.244.2.0 at <mac>`, sorted.
    pub fn neighbours(&self, device: &str) -> Vec<String> {
        let mut all = Vec::new();
        for family in ["-4", "-6"] {
            let shown = self.node.json(&format!("ip -j {family} neigh show dev {device} nud permanent"));
            all.extend(rows(&shown).map(|row| format!("{} at {}", text(row, "dst"), text(row, "lladdr"))));
        }
        all.sort();
        all
    }

    /// The forwarding database of a device, `<mac> behind 192.168.10.12`, sorted.
    pub fn forwarding(&self, device: &str) -> Vec<String> {
        let shown = self.node.json(&format!("bridge -j fdb show dev {device}"));
        let mut all: Vec<_> =
            rows(&shown).map(|row| format!("{} behind {}", text(row, "mac"), text(row, "dst"))).collect();
        all.sort();
        all
    }

    /// A description of all owned objects: a second apply must not change it.
    pub fn picture(&self) -> String {
        let mut picture = self.routes().join("\n");
        for device in ["flannel.1", "flannel-v6.1"] {
            // Without the index: a recreated device has another.
            let link = self.node.sh(&format!(
                "ip -d link show {device} | sed 's/^[0-9]*: //'; ip -o address show {device} | sed 's/^[0-9]*: //'"
            ));
            picture += &format!("\n{link}{:?}\n{:?}\n", self.neighbours(device), self.forwarding(device));
        }
        // The kernel adds link-local addresses with a delay.
        let kept: Vec<_> = picture.lines().filter(|line| !line.contains("fe80:")).collect();
        kept.join("\n") + &self.node.sh("nft list table inet podwire_overlay; nft -s list table inet podwire_tunnel 2>/dev/null || true")
    }

    /// The same, or an empty text if a device or the table is missing.
    pub fn picture_or_none(&self) -> String {
        let there =
            "ip link show flannel.1 && ip link show flannel-v6.1 && nft list table inet podwire_overlay && nft list table inet podwire_tunnel";
        if self.node.can(there) {
            self.picture()
        } else {
            String::new()
        }
    }
}

fn rows(json: &Value) -> impl Iterator<Item = &Value> {
    json.as_array().unwrap().iter().filter(|row| row.as_object().is_some_and(|row| !row.is_empty()))
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or("-").to_string()
}
