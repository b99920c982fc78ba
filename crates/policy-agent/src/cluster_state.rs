//! The cluster state that policies depend on: the objects of the source and the interfaces that plugins attached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::Interface;
use podwire_agent_ipc::Owner;
use podwire_policy::api::{
    ClusterNetworkPolicy, Namespace, NetworkPolicy, Node, NodeAddress, ObjectMeta, Pod, PodIp, PodStatus,
};
use podwire_policy::{Compiler, Snapshot, Warning};

use crate::dataplane::PodPort;
use crate::objects::Objects;
use crate::source_claims::SourceClaims;
use crate::{Kind, Update};

mod unguarded;

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalNode {
    /// The name in the cluster.
    pub name: String,
    /// The addresses, for a source that has no Node object of this node.
    pub addresses: Vec<IpAddr>,
}

/// When more pods changed at once, everything is compiled again: finding the pods of each policy is then cheaper than
/// finding the policies of each pod.
const MAX_CHANGED_PODS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pods: Objects<Pod>,
    namespaces: Objects<Namespace>,
    nodes: Objects<Node>,
    network_policies: Objects<NetworkPolicy>,
    cluster_network_policies: Objects<ClusterNetworkPolicy>,
    /// The kinds that the source has listed at least once.
    listed: BTreeSet<Kind>,
    interfaces: BTreeMap<Owner, Interface>,
    /// Pods that were attached before the source listed them.
    starting: BTreeSet<String>,
    /// Pods whose interfaces were detached and that the source still lists.
    detached: BTreeSet<String>,
}

/// The attached interfaces of this node's pods.
struct Attached<'a> {
    /// By pod, `namespace/name`.
    interfaces: BTreeMap<String, Vec<&'a Interface>>,
    addresses: BTreeSet<IpAddr>,
}

impl ClusterState {
    pub fn update(&mut self, update: Update) {
        match update {
            Update::Listed(kind, all) => {
                match kind {
                    Kind::Pod => {
                        self.pods.list(named(all.pods));
                        self.starting.retain(|name| self.pods.get(name).is_none());
                    }
                    Kind::Namespace => self.namespaces.list(named(all.namespaces)),
                    Kind::Node => self.nodes.list(named(all.nodes)),
                    Kind::NetworkPolicy => self.network_policies.list(named(all.network_policies)),
                    Kind::ClusterNetworkPolicy => {
                        self.cluster_network_policies.list(named(all.cluster_network_policies));
                    }
                }
                self.listed.insert(kind);
            }
            Update::Changed(some) => {
                for (name, pod) in named(some.pods) {
                    self.starting.remove(&name);
                    self.pods.put(name, pod);
                }
                named(some.namespaces).for_each(|(name, one)| self.namespaces.put(name, one));
                named(some.nodes).for_each(|(name, one)| self.nodes.put(name, one));
                named(some.network_policies).for_each(|(name, one)| self.network_policies.put(name, one));
                named(some.cluster_network_policies)
                    .for_each(|(name, one)| self.cluster_network_policies.put(name, one));
            }
            Update::Deleted(kind, name) => match kind {
                Kind::Pod => self.pods.remove(&name),
                Kind::Namespace => self.namespaces.remove(&name),
                Kind::Node => self.nodes.remove(&name),
                Kind::NetworkPolicy => self.network_policies.remove(&name),
                Kind::ClusterNetworkPolicy => self.cluster_network_policies.remove(&name),
            },
        }
    }

    /// Whether the source has listed all kinds.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Kind::ALL.len()
    }

    /// Adds an interface. An address has one owner: other interfaces with one of its addresses are removed. The DEL of
    /// their pods was not reported. Returns the addresses that a pod no longer has, or that another pod had.
    pub fn attach(&mut self, interface: Interface) -> Vec<IpAddr> {
        let known = self.interfaces.get(&interface.owner);
        if known.is_some_and(|known| known.addresses == interface.addresses) {
            // Only another property has changed, such as the MAC address.
            self.interfaces.insert(interface.owner.clone(), interface);
            return Vec::new();
        }
        let taken = |other: &Interface| other.addresses.iter().any(|one| interface.addresses.contains(one));
        let previous_owners: Vec<_> =
            self.interfaces.iter().filter(|(_, other)| taken(other)).map(|(key, _)| key.clone()).collect();
        let mut released: Vec<IpAddr> = previous_owners.iter().flat_map(|key| self.detach(key)).collect();
        released.extend(self.detach(&interface.owner));
        self.mark_pods_of(&interface);
        // At the start, attached pods come before the first list. One that is not in it was deleted meanwhile.
        if self.is_complete() && !self.knows(&interface.pod_name()) {
            self.starting.insert(interface.pod_name());
        }
        self.detached.remove(&interface.pod_name());
        self.interfaces.insert(interface.owner.clone(), interface);
        released
    }

    /// Removes an interface. Returns its addresses.
    pub fn detach(&mut self, key: &Owner) -> Vec<IpAddr> {
        let Some(interface) = self.interfaces.remove(key) else { return Vec::new() };
        self.mark_pods_of(&interface);
        self.starting.remove(&interface.pod_name());
        self.detached.insert(interface.pod_name());
        interface.addresses
    }

    /// Marks the pod of the interface, and pods that the source lists with its addresses, as changed.
    fn mark_pods_of(&mut self, interface: &Interface) {
        let has_one = |pod: &Pod| pod.has_address(|address| interface.addresses.contains(address));
        let others: Vec<String> =
            self.pods.iter().filter(|(_, pod)| has_one(pod)).map(|(name, _)| name.clone()).collect();
        others.iter().for_each(|name| self.pods.mark_changed(name));
        self.pods.mark_changed(&interface.pod_name());
    }

    /// The ports of this node's pods, and the warnings about their source claims.
    pub fn ports(&self) -> (Vec<PodPort>, Vec<Warning>) {
        let mut claims = SourceClaims::default();
        let port = |interface: &Interface| {
            let port = interface.host_interface.as_ref()?;
            let parse = |mac: &str| mac.parse::<podwire_kernel::Mac>().ok().map(|mac| mac.0);
            let (mac, first_mac) = (parse(&port.pod_mac), parse(&port.first_mac));
            let (device, pod, addresses) =
                (port.name.clone(), interface.pod_name(), interface.addresses.clone());
            let prefixes = self.pods.get(&pod).map_or_else(Vec::new, |known| {
                claims.grant(known, interface, |network| self.has_address_of_another(network, &pod))
            });
            let (bridged, is_trunk, uses_dhcp) = (port.is_bridge_port, port.is_trunk, port.uses_dhcp);
            Some(PodPort {
                device,
                index: None,
                pod,
                bridged,
                addresses,
                prefixes,
                mac,
                first_mac,
                is_trunk,
                uses_dhcp,
            })
        };
        let ports = self.interfaces.values().filter_map(port).collect();
        (ports, claims.warnings)
    }

    /// Whether another pod has an address in the network.
    fn has_address_of_another(&self, network: &IpNet, pod: &str) -> bool {
        let inside = |ip: &IpAddr| network.contains(ip);
        self.pods
            .iter()
            .any(|(name, other)| name != pod && other.has_pod_network() && other.has_address(inside))
            || self.interfaces.values().any(|one| one.pod_name() != pod && one.addresses.iter().any(inside))
    }

    /// The pod whose veth pair has this device as its end on the node.
    pub fn pod_on_device(&self, device: &str) -> Option<String> {
        let has_device =
            |one: &&Interface| one.host_interface.as_ref().is_some_and(|port| port.name == device);
        self.interfaces.values().find(has_device).map(Interface::pod_name)
    }

    /// The pod with this address: an attached pod, or one that the source lists.
    pub fn pod_with_address(&self, ip: IpAddr) -> Option<String> {
        let here = self.interfaces.values().find(|interface| interface.addresses.contains(&ip));
        let has = |pod: &&Pod| pod.has_pod_network() && pod.has_address(|one| *one == ip);
        let elsewhere = || self.pods.iter().map(|(_, pod)| pod).find(has);
        here.map(Interface::pod_name).or_else(|| elsewhere().map(Pod::full_name))
    }

    /// Whether the source lists the pod.
    pub fn knows(&self, pod: &str) -> bool {
        self.pods.get(pod).is_some()
    }

    /// Whether the source no longer lists a pod that is still attached: it was deleted without waiting for its end.
    pub fn is_gone(&self, pod: &str) -> bool {
        let is_attached = self.interfaces.values().any(|interface| interface.pod_name() == pod);
        is_attached && self.is_complete() && !self.knows(pod) && !self.starting.contains(pod)
    }

    /// The number of policies and of interfaces.
    pub fn sizes(&self) -> (usize, usize) {
        (self.network_policies.len() + self.cluster_network_policies.len(), self.interfaces.len())
    }

    /// Updates the last compiler, or makes a new one. `include_unlisted`: attached pods that the source does not list
    /// count as pods without labels. With a source that lists all pods, such a pod does not exist.
    pub fn compiler(&mut self, last: Option<Compiler>, node: &LocalNode, include_unlisted: bool) -> Compiler {
        let pods = self.pods.take_changed();
        let network_policies = self.network_policies.take_changed();
        let cluster_network_policies = self.cluster_network_policies.take_changed();
        // A namespace or a node can concern every pod, and both change rarely.
        let others = self.namespaces.take_changed().len() + self.nodes.take_changed().len();
        let Some(mut compiler) = last.filter(|_| others == 0 && pods.len() <= MAX_CHANGED_PODS) else {
            return Compiler::new(&self.snapshot(node, include_unlisted), Some(&node.name));
        };
        let attached = self.attached();
        for name in pods {
            compiler.set_pod(&name, self.pod(&name, &attached, node, include_unlisted));
        }
        for name in network_policies {
            compiler.set_network_policy(&name, self.network_policies.get(&name));
        }
        for name in cluster_network_policies {
            compiler.set_cluster_network_policy(&name, self.cluster_network_policies.get(&name));
        }
        compiler
    }

    fn attached(&self) -> Attached<'_> {
        let mut attached = Attached { interfaces: BTreeMap::new(), addresses: BTreeSet::new() };
        for interface in self.interfaces.values() {
            attached.addresses.extend(&interface.addresses);
            attached.interfaces.entry(interface.pod_name()).or_default().push(interface);
        }
        attached
    }

    /// A pod with its current addresses. For pods of this node the plugins' addresses win: the source gets them later.
    fn pod(
        &self,
        name: &str,
        attached: &Attached<'_>,
        node: &LocalNode,
        include_unlisted: bool,
    ) -> Option<Pod> {
        let interfaces = attached.interfaces.get(name).map_or(&[][..], Vec::as_slice);
        let mut pod = match self.pods.get(name) {
            Some(pod) => pod.clone(),
            None => unlisted(interfaces.first().filter(|_| include_unlisted)?),
        };
        if interfaces.is_empty() {
            let free = |ip: &IpAddr| !attached.addresses.contains(ip);
            pod.status.pod_ip = pod.status.pod_ip.filter(free);
            pod.status.pod_ips.retain(|one| free(&one.ip));
            return Some(pod);
        }
        // The source may still have the addresses of an earlier pod with this name.
        pod.status.pod_ip = None;
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        pod.status.pod_ips = addresses.map(|ip| PodIp { ip: *ip }).collect();
        // The pod is starting; the phase in the source may be that of an earlier pod with this name.
        pod.status.phase.clear();
        pod.spec.node_name.clone_from(&node.name);
        Some(pod)
    }

    /// All objects, with the current pod addresses.
    pub fn snapshot(&self, node: &LocalNode, include_unlisted: bool) -> Snapshot {
        let attached = self.attached();
        let names: BTreeSet<&String> =
            self.pods.iter().map(|(name, _)| name).chain(attached.interfaces.keys()).collect();
        let mut snapshot = Snapshot::new();
        snapshot.pods =
            names.into_iter().filter_map(|name| self.pod(name, &attached, node, include_unlisted)).collect();
        snapshot.namespaces = all(&self.namespaces);
        snapshot.nodes = all(&self.nodes);
        if self.nodes.get(&node.name).is_none() {
            snapshot.nodes.push(node_object(node));
        }
        snapshot.network_policies = all(&self.network_policies);
        snapshot.cluster_network_policies = all(&self.cluster_network_policies);
        snapshot
    }
}

fn all<T: PartialEq + Clone>(objects: &Objects<T>) -> Vec<T> {
    objects.iter().map(|(_, one)| one.clone()).collect()
}

/// Objects with their names.
fn named<T: Named>(objects: Vec<T>) -> impl Iterator<Item = (String, T)> {
    objects.into_iter().map(|one| (one.name(), one))
}

/// An object whose name is `name`, or `namespace/name` if it has a namespace.
trait Named {
    fn metadata(&self) -> &ObjectMeta;

    fn name(&self) -> String {
        let ObjectMeta { name, namespace, .. } = self.metadata();
        if namespace.is_empty() {
            name.clone()
        } else {
            format!("{namespace}/{name}")
        }
    }
}

macro_rules! named {
    ($($kind:ty),*) => {
        $(impl Named for $kind {
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
        })*
    };
}

named!(Pod, Namespace, Node, NetworkPolicy, ClusterNetworkPolicy);

fn unlisted(interface: &Interface) -> Pod {
    let metadata = ObjectMeta {
        name: interface.pod.clone(),
        namespace: interface.namespace.clone(),
        ..ObjectMeta::default()
    };
    Pod { metadata, status: PodStatus::default(), ..Pod::default() }
}

fn node_object(node: &LocalNode) -> Node {
    let mut object = Node::default();
    object.metadata.name.clone_from(&node.name);
    let address = |ip: &IpAddr| NodeAddress { kind: "InternalIP".into(), address: ip.to_string() };
    object.status.addresses = node.addresses.iter().map(address).collect();
    object
}

#[cfg(test)]
mod tests;
