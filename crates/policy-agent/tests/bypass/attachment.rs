//! The three ways in which a pod is attached, and the pods of a table.

use podwire_kernel::Mac;
use podwire_policy::compile;
use podwire_policy_agent::dataplane::{Nftables, NodeInput, PodPort};
use serde_json::{json, Value};

use crate::testbed::{network_policy, pod, run, snapshot, Endpoint};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    Bridge,
    Ptp,
    Calico,
}

impl Attachment {
    pub fn pod(self, number: u8) -> Endpoint {
        match self {
            Attachment::Bridge => Endpoint::bridged(number),
            Attachment::Ptp => Endpoint::routed(number),
            Attachment::Calico => Endpoint::calico(number),
        }
    }

    pub fn device(self, number: u8) -> String {
        let prefix = match self {
            Attachment::Bridge => "veth",
            Attachment::Ptp => "ptp",
            Attachment::Calico => "cali",
        };
        format!("{prefix}{number}")
    }
}

fn mac(link: &str) -> [u8; 6] {
    let mac: Mac =
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().parse().unwrap();
    mac.0
}

/// The MAC address of a device of the node.
pub fn mac_on_node(device: &str) -> [u8; 6] {
    mac(&run(&format!("ip -o link show dev {device}")))
}

/// The index of a device of the node.
pub fn index_on_node(device: &str) -> Option<u32> {
    run(&format!("ip -o link show dev {device}")).split(':').next().and_then(|index| index.parse().ok())
}

/// A pod's port and MAC address.
pub fn port(endpoint: &Endpoint, device: &str, name: &str, bridged: bool) -> PodPort {
    PodPort {
        device: device.into(),
        index: index_on_node(device),
        pod: format!("x/{name}"),
        bridged,
        addresses: vec![endpoint.ip4.parse().unwrap(), endpoint.ip6.parse().unwrap()],
        prefixes: Vec::new(),
        mac: Some(mac(&endpoint.sh("ip -o link show dev eth0"))),
        first_mac: None,
        is_trunk: false,
        uses_dhcp: false,
    }
}

pub fn apply(nft: &mut Nftables, objects: &[Value], ports: &[PodPort]) {
    let program = compile(&snapshot(objects), Some("node")).program;
    nft.apply(&program, &NodeInput { ports: ports.to_vec(), ..NodeInput::default() }).unwrap();
}

/// Four pods: `a` may do everything, `b` receives only from `c`, `e` sends only to UDP port 7.
pub struct Pods {
    pub attachment: Attachment,
    pub pods: [Endpoint; 4],
    pub ports: [PodPort; 4],
    pub objects: Vec<Value>,
}

pub const NAMES: [&str; 4] = ["a", "b", "c", "e"];

impl Pods {
    pub fn of(attachment: Attachment) -> Pods {
        let numbers = [10, 11, 12, 13];
        let pods = numbers.map(|number| attachment.pod(number));
        let bridged = attachment == Attachment::Bridge;
        let ports = [0, 1, 2, 3].map(|n| port(&pods[n], &attachment.device(numbers[n]), NAMES[n], bridged));
        let mut objects: Vec<Value> =
            NAMES.iter().zip(&pods).map(|(name, one)| pod(name, json!({ "app": name }), one)).collect();
        let selects = |name: &str| json!({ "matchLabels": { "app": name } });
        objects.push(network_policy(
            "b",
            json!({ "podSelector": selects("b"), "ingress": [{ "from": [{ "podSelector": selects("c") }] }] }),
        ));
        objects.push(network_policy(
            "e",
            json!({ "podSelector": selects("e"), "policyTypes": ["Egress"],
                "egress": [{ "ports": [{ "protocol": "UDP", "port": 7 }] }] }),
        ));
        Pods { attachment, pods, ports, objects }
    }

    /// The MAC address to which pod `from` sends packets to pod `to`.
    pub fn next_hop(&self, from: usize, to: usize) -> [u8; 6] {
        match self.attachment {
            Attachment::Bridge => self.ports[to].mac.unwrap(),
            _ => mac_on_node(&self.ports[from].device),
        }
    }

    /// The MAC address of the gateway of pod `from`.
    pub fn gateway(&self, from: usize) -> [u8; 6] {
        match self.attachment {
            Attachment::Bridge => mac_on_node("br0"),
            _ => mac_on_node(&self.ports[from].device),
        }
    }
}
