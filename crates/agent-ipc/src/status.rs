//! The status of a node's agent: what it serves as JSON at `/status`, in both modes.
//!
//! The agent fills it; `podwire lab`, `podwire` and tests read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The status of a node's agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// The mode that the agent runs in.
    pub mode: Mode,
    /// Whether the node can carry pod traffic.
    pub phase: Phase,
    /// flannel mode: the backend of the network config, such as `vxlan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The node's pod CIDRs; in calico mode, its blocks.
    pub pod_cidrs: Vec<String>,
    /// The interfaces and addresses that other nodes use to reach this node: `eth0 192.168.1.7`.
    pub uplinks: Vec<String>,
    /// The MTU of new pod interfaces.
    pub mtu: u32,
    /// The pods with a larger MTU, which they got before the network's MTU changed: `namespace/name`, each with its MTU.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub oversized_pods: BTreeMap<String, u32>,
    /// The number of other nodes that this node has routes to.
    pub peers: usize,
    /// calico mode: the number of routes to the blocks of other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes: Option<usize>,
    /// The nodes that this node has no route to.
    pub unreachable: Vec<UnreachableNode>,
    /// The connection to the store of nodes or blocks.
    pub store: StoreStatus,
    /// What is wrong now, one sentence each.
    pub problems: Vec<String>,
    /// calico mode with BGP: the state of each session, by its name in BIRD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bgp_sessions: Option<BTreeMap<String, String>>,
    /// calico mode: the address allocator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressStatus>,
    /// The policy agent, if the agent enforces policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicyStatus>,
    /// The Services of the node, if the agent serves them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<ServicesStatus>,
    /// The fast path; `None` from an agent without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_path: Option<FastPathStatus>,
}

/// The mode of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In place of flanneld: one pod CIDR a node.
    #[default]
    Flannel,
    /// In place of calico-node: blocks of addresses from pools.
    Calico,
}

/// Whether a node can carry pod traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The routes were not yet set up since the agent started.
    #[default]
    Starting,
    /// The routes are set up.
    Ready,
    /// The routes cannot be set up.
    Broken,
}

/// A node without a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnreachableNode {
    /// The node's name.
    pub node: String,
    /// Why there is no route.
    pub reason: String,
}

/// The connection to a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StoreStatus {
    /// Whether the store answers and the agent has its current content.
    pub synced: bool,
    /// `current`, or why the store is not synced.
    pub detail: String,
}

/// The state of the address allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AddressStatus {
    /// The number of attachments that have addresses.
    pub leases: usize,
    /// The number of addresses that pods can get without a request to the store.
    pub warm_pool: usize,
    /// The number of leases and endpoints that are not in the store yet.
    pub unsynced: usize,
    /// Addresses that a pod has and that the store assigns to another owner.
    pub conflicting: Vec<String>,
    /// Blocks and handles that cannot be read, each with the reason. The allocator does not use or change them.
    pub unreadable: Vec<String>,
    /// Why the store cannot be used now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The state of the fast path: eBPF programs for packets of accepted connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FastPathStatus {
    /// Whether connections can take the fast path.
    pub on: bool,
    /// If not, why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of pod interfaces with programs.
    pub pods: usize,
    /// The uplinks and tunnels with programs.
    pub uplinks: Vec<String>,
    /// The number of pod interfaces without programs.
    pub normal_pod_count: usize,
    /// The first 20 of them as `network/container/interface`, each with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub normal_pods: BTreeMap<String, String>,
    /// Packets that took the fast path since the agent started.
    pub packets: u64,
    /// Bytes that took the fast path since the agent started.
    pub bytes: u64,
}

/// The state of the Services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicesStatus {
    /// Whether the Services of the source are in the kernel.
    pub synced: bool,
    /// The number of frontends: addresses with a protocol and a port.
    pub frontends: usize,
    /// The time from the last change of the source to the kernel, in milliseconds.
    pub last_change_ms: f64,
    /// Mistakes in objects.
    pub object_problems: ObjectProblems,
}

/// Mistakes in objects. What is right in them takes effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectProblems {
    /// The number of all.
    pub count: usize,
    /// The first 20, each with kind and name of the object.
    pub first: Vec<String>,
}

/// The state of the policy agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyStatus {
    /// Whether the kernel enforces the policies of the source.
    pub enforced: bool,
    /// The number of policies.
    pub policies: usize,
    /// The number of pod interfaces that policies are enforced for.
    pub interfaces: usize,
    /// The time from the last change of the source to the kernel, in milliseconds.
    pub last_change_ms: f64,
    /// For policies in files: the modification time of the newest change that is enforced, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
    /// Selectors that match nothing.
    pub unmatched_selectors: UnmatchedSelectors,
    /// Pods of this node that policies protect only in part.
    pub unguarded_pods: UnguardedPods,
    /// Why policies are not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Selectors of policies that match no pod or namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnmatchedSelectors {
    /// The number of all.
    pub count: usize,
    /// The first 20, each with the place in its policy.
    pub first: Vec<String>,
}

/// Pods of this node whose interfaces the policy agent does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnguardedPods {
    /// The number of all.
    pub count: usize,
    /// The first 20, `namespace/name`.
    pub first: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_names_are_camel_case_and_optional_parts_are_absent() {
        let unreachable = vec![UnreachableNode { node: "n2".into(), reason: "no address".into() }];
        let status = Status {
            node: "n1".into(),
            mode: Mode::Calico,
            unreachable,
            routes: Some(3),
            ..Status::default()
        };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(
            text,
            r#"{"node":"n1","mode":"calico","phase":"starting","podCidrs":[],"uplinks":[],"mtu":0,"peers":0,"routes":3,"unreachable":[{"node":"n2","reason":"no address"}],"store":{"synced":false,"detail":""},"problems":[]}"#
        );
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }
}
