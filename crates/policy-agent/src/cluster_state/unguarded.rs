//! Pods of this node whose interfaces the agent does not know.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::Interface;
use podwire_policy::api::Pod;

use super::{ClusterState, LocalNode};

impl ClusterState {
    /// Whether a pod has one of the interface's addresses, this interface included.
    pub fn is_attached(&self, interface: &Interface) -> bool {
        self.interfaces.values().any(|one| one.addresses.iter().any(|ip| interface.addresses.contains(ip)))
    }

    /// Whether a pod has the address on this node.
    pub fn has_address(&self, ip: &IpAddr) -> bool {
        self.interfaces.values().any(|one| one.addresses.contains(ip))
    }

    /// Whether the source lists the interface's pod with one of its addresses. The other interfaces of a pod do not
    /// belong to the cluster's pod network.
    pub fn lists_address_of(&self, interface: &Interface) -> bool {
        let is_own = |ip: &IpAddr| interface.addresses.contains(ip);
        self.pods
            .get(&interface.pod_name())
            .is_some_and(|pod| pod.has_pod_network() && pod.has_address(is_own))
    }

    /// The pods of this node whose interfaces are not known: another plugin attached them, or the record of their ADD is
    /// lost. Policies apply to what the node forwards from and to their addresses. The source addresses that they
    /// send from are not checked, and neither are packets between them on one bridge.
    pub fn unguarded(&mut self, node: &LocalNode, pod_networks: &[IpNet]) -> BTreeSet<String> {
        self.detached.retain(|name| self.pods.get(name).is_some());
        let guarded: BTreeSet<String> = self
            .interfaces
            .values()
            .filter(|one| one.host_interface.is_some())
            .map(Interface::pod_name)
            .collect();
        let in_networks = |ip: &IpAddr| pod_networks.iter().any(|net| net.contains(ip));
        let is_here = |pod: &Pod| match pod.spec.node_name.as_str() {
            "" => pod.has_address(in_networks),
            name => name == node.name && pod.has_address(|_| true),
        };
        let is_unguarded = |name: &String, pod: &Pod| {
            pod.has_pod_network() && is_here(pod) && !guarded.contains(name) && !self.detached.contains(name)
        };
        self.pods.iter().filter(|(name, pod)| is_unguarded(name, pod)).map(|(name, _)| name.clone()).collect()
    }
}
