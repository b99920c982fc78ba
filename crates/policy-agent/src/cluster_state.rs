//! All that policies depend on, as it is known now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::Interface;
use podwire_agent_ipc::Owner;
use podwire_policy::api::{
    ClusterNetworkPolicy, Namespace, NetworkPolicy, Node, NodeAddress, ObjectMeta, Pod, PodIp, PodStatus,
};
use podwire_policy::{Compiler, Snapshot, Warning};

use crate::objects::Objects;
use crate::source_claims::Claims;
use crate::{Kind, Update};

/// This node, among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// Its name in the cluster.
    pub name: String,
    /// Its addresses, for a source that does not know them.
    pub addresses: Vec<IpAddr>,
}

/// When more pods than this changed at once, all is compiled anew: that finds a policy's pods, and not each pod's policies.
const MANY: usize = 64;

/// What the source told, and what the plugins did.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pods: Objects<Pod>,
    namespaces: Objects<Namespace>,
    nodes: Objects<Node>,
    network_policies: Objects<NetworkPolicy>,
    cluster_network_policies: Objects<ClusterNetworkPolicy>,
    /// Kinds of which everything was told at least once.
    listed: BTreeSet<Kind>,
    interfaces: BTreeMap<Owner, Interface>,
}

/// Where this node's pods are, as the plugins know it.
struct Wiring<'a> {
    /// By `namespace/name` of the pod.
    interfaces: BTreeMap<String, Vec<&'a Interface>>,
    addresses: BTreeSet<IpAddr>,
}

impl ClusterState {
    pub fn learn(&mut self, told: Update) {
        match told {
            Update::Listed(kind, all) => {
                match kind {
                    Kind::Pod => self.pods.list(named(all.pods)),
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
                named(some.pods).for_each(|(name, one)| self.pods.put(name, one));
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

    /// Whether everything was told at least once.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Kind::ALL.len()
    }

    /// An address has one owner: who has it now, and not who had it before and whose farewell was lost.
    pub fn attach(&mut self, interface: Interface) {
        let taken = |other: &Interface| other.addresses.iter().any(|one| interface.addresses.contains(one));
        let robbed: Vec<_> =
            self.interfaces.iter().filter(|(_, other)| taken(other)).map(|(key, _)| key.clone()).collect();
        robbed.iter().for_each(|key| self.detach(key));
        self.detach(&interface.owner);
        self.rewired(&interface);
        self.interfaces.insert(interface.owner.clone(), interface);
    }

    pub fn detach(&mut self, key: &Owner) {
        if let Some(interface) = self.interfaces.remove(key) {
            self.rewired(&interface);
        }
    }

    /// Its pod is elsewhere now, and so is whoever is said to have its addresses.
    fn rewired(&mut self, interface: &Interface) {
        let has_one = |pod: &Pod| pod.has_address(|address| interface.addresses.contains(address));
        let others: Vec<String> =
            self.pods.iter().filter(|(_, pod)| has_one(pod)).map(|(name, _)| name.clone()).collect();
        others.iter().for_each(|name| self.pods.touch(name));
        self.pods.touch(&interface.pod_name());
    }

    /// Where this node's pods come in, and what should be heard of their claims.
    pub fn ports(&self) -> (Vec<crate::dataplane::Port>, Vec<Warning>) {
        let mut claims = Claims::default();
        let port = |interface: &Interface| {
            let port = interface.host_interface.as_ref()?;
            let mac = port.pod_mac.parse::<podwire_kernel::Mac>().ok().map(|mac| mac.0);
            let (name, pod, addresses) =
                (port.name.clone(), interface.pod_name(), interface.addresses.clone());
            let prefixes = self.pods.get(&pod).map_or_else(Vec::new, |known| {
                claims.grant(known, interface, |network| self.is_of_another(network, &pod))
            });
            Some(crate::dataplane::Port { name, pod, bridged: port.is_bridge_port, addresses, prefixes, mac })
        };
        let ports = self.interfaces.values().filter_map(port).collect();
        (ports, claims.warnings)
    }

    /// Whether a pod that is not this one has an address of the network.
    fn is_of_another(&self, network: &IpNet, pod: &str) -> bool {
        let inside = |ip: &IpAddr| network.contains(ip);
        self.pods.iter().any(|(name, other)| name != pod && other.is_wired() && other.has_address(inside))
            || self.interfaces.values().any(|one| one.pod_name() != pod && one.addresses.iter().any(inside))
    }

    /// Whose cable this is.
    pub fn pod_behind(&self, device: &str) -> Option<String> {
        let is_its = |one: &&Interface| one.host_interface.as_ref().is_some_and(|port| port.name == device);
        self.interfaces.values().find(is_its).map(Interface::pod_name)
    }

    /// Who has this address: a pod of this node, or one that the source tells of.
    pub fn pod_at(&self, ip: IpAddr) -> Option<String> {
        let here = self.interfaces.values().find(|interface| interface.addresses.contains(&ip));
        let has = |pod: &&Pod| pod.is_wired() && pod.has_address(|one| *one == ip);
        let elsewhere = || self.pods.iter().map(|(_, pod)| pod).find(has);
        here.map(Interface::pod_name).or_else(|| elsewhere().map(Pod::full_name))
    }

    /// Whether the source knows the pod.
    pub fn knows(&self, pod: &str) -> bool {
        self.pods.get(pod).is_some()
    }

    /// How many objects and interfaces are known.
    pub fn sizes(&self) -> (usize, usize) {
        (self.network_policies.len() + self.cluster_network_policies.len(), self.interfaces.len())
    }

    /// Brings a compiler up to date, or makes one. `unknown_too`: a pod that the source does not know counts, without labels; a
    /// source that would have to know it says by its silence that there is none.
    pub fn compiler(&mut self, known: Option<Compiler>, home: &Home, unknown_too: bool) -> Compiler {
        let pods = self.pods.take_touched();
        let network_policies = self.network_policies.take_touched();
        let cluster_network_policies = self.cluster_network_policies.take_touched();
        // Namespaces and nodes are about everybody, and change rarely.
        let around = self.namespaces.take_touched().len() + self.nodes.take_touched().len();
        let Some(mut compiler) = known.filter(|_| around == 0 && pods.len() <= MANY) else {
            return Compiler::of(&self.snapshot(home, unknown_too), Some(&home.name));
        };
        let wiring = self.wiring();
        for name in pods {
            compiler.change_pod(&name, self.pod(&name, &wiring, home, unknown_too));
        }
        for name in network_policies {
            compiler.change_network_policy(&name, self.network_policies.get(&name));
        }
        for name in cluster_network_policies {
            compiler.change_cluster_network_policy(&name, self.cluster_network_policies.get(&name));
        }
        compiler
    }

    fn wiring(&self) -> Wiring<'_> {
        let mut wiring = Wiring { interfaces: BTreeMap::new(), addresses: BTreeSet::new() };
        for interface in self.interfaces.values() {
            wiring.addresses.extend(&interface.addresses);
            wiring.interfaces.entry(interface.pod_name()).or_default().push(interface);
        }
        wiring
    }

    /// A pod at this moment. Where one of this node is, the plugins know better than the source, which is told later.
    fn pod(&self, name: &str, wiring: &Wiring<'_>, home: &Home, unknown_too: bool) -> Option<Pod> {
        let interfaces = wiring.interfaces.get(name).map_or(&[][..], Vec::as_slice);
        let mut pod = match self.pods.get(name) {
            Some(pod) => pod.clone(),
            None => stranger(interfaces.first().filter(|_| unknown_too)?),
        };
        if interfaces.is_empty() {
            let free = |ip: &IpAddr| !wiring.addresses.contains(ip);
            pod.status.pod_ip = pod.status.pod_ip.filter(free);
            pod.status.pod_ips.retain(|one| free(&one.ip));
            return Some(pod);
        }
        // Of a pod that moved here from this node's earlier one, only the newest address is its own.
        pod.status.pod_ip = None;
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        pod.status.pod_ips = addresses.map(|ip| PodIp { ip: *ip }).collect();
        // It is being started: what became of one of that name before does not matter.
        pod.status.phase.clear();
        pod.spec.node_name.clone_from(&home.name);
        Some(pod)
    }

    /// Everything at this moment.
    fn snapshot(&self, home: &Home, unknown_too: bool) -> Snapshot {
        let wiring = self.wiring();
        let names: BTreeSet<&String> =
            self.pods.iter().map(|(name, _)| name).chain(wiring.interfaces.keys()).collect();
        let mut snapshot = Snapshot::new();
        snapshot.pods =
            names.into_iter().filter_map(|name| self.pod(name, &wiring, home, unknown_too)).collect();
        snapshot.namespaces = all(&self.namespaces);
        snapshot.nodes = all(&self.nodes);
        if self.nodes.get(&home.name).is_none() {
            snapshot.nodes.push(own_node(home));
        }
        snapshot.network_policies = all(&self.network_policies);
        snapshot.cluster_network_policies = all(&self.cluster_network_policies);
        snapshot
    }
}

fn all<T: PartialEq + Clone>(objects: &Objects<T>) -> Vec<T> {
    objects.iter().map(|(_, one)| one.clone()).collect()
}

/// Objects by their names.
fn named<T: Named>(objects: Vec<T>) -> impl Iterator<Item = (String, T)> {
    objects.into_iter().map(|one| (one.name(), one))
}

/// Something with a name: `name`, or `namespace/name` for what lives in a namespace.
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

fn stranger(interface: &Interface) -> Pod {
    let metadata = ObjectMeta {
        name: interface.pod.clone(),
        namespace: interface.namespace.clone(),
        ..ObjectMeta::default()
    };
    Pod { metadata, status: PodStatus::default(), ..Pod::default() }
}

fn own_node(home: &Home) -> Node {
    let mut node = Node::default();
    node.metadata.name.clone_from(&home.name);
    let address = |ip: &IpAddr| NodeAddress { kind: "InternalIP".into(), address: ip.to_string() };
    node.status.addresses = home.addresses.iter().map(address).collect();
    node
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ip: &str) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
            "status": { "podIPs": [{ "ip": ip }] } });
        snapshot.add(object).unwrap();
        snapshot
    }

    fn interface(pod: &str, container: &str, ip: &str) -> Interface {
        Interface {
            pod: pod.into(),
            namespace: "default".into(),
            owner: Owner::new("", container, ""),
            addresses: vec![ip.parse().unwrap()],
            ..Interface::default()
        }
    }

    fn addresses(world: &ClusterState, pod: &str, unknown_too: bool) -> Option<Vec<String>> {
        let home = Home { name: "here".into(), addresses: Vec::new() };
        let snapshot = world.snapshot(&home, unknown_too);
        let pod = snapshot.pod(pod)?;
        Some(pod.addresses().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn where_a_pod_of_this_node_is_the_plugins_know_best() {
        let mut world = ClusterState::default();
        world.learn(Update::Listed(Kind::Pod, pod("web", "10.0.0.9")));
        world.attach(interface("web", "c1", "10.0.0.2"));
        assert_eq!(addresses(&world, "web", false).unwrap(), ["10.0.0.2"]);
        world.detach(&interface("web", "c1", "10.0.0.2").owner);
        assert_eq!(addresses(&world, "web", false).unwrap(), ["10.0.0.9"]);
    }

    #[test]
    fn an_address_has_one_owner() {
        let mut world = ClusterState::default();
        world.learn(Update::Listed(Kind::Pod, pod("old", "10.0.0.2")));
        world.learn(Update::Changed(pod("new", "10.0.0.9")));
        world.attach(interface("old", "c1", "10.0.0.2"));
        world.attach(interface("new", "c2", "10.0.0.2"));
        assert_eq!(addresses(&world, "new", false).unwrap(), ["10.0.0.2"]);
        assert_eq!(addresses(&world, "old", false).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_address_has_a_name() {
        let mut world = ClusterState::default();
        world.learn(Update::Listed(Kind::Pod, pod("far", "10.0.0.9")));
        world.learn(Update::Changed(pod("old", "10.0.0.2")));
        world.attach(interface("new", "c1", "10.0.0.2"));
        let name = |ip: &str| world.pod_at(ip.parse().unwrap());
        assert_eq!(name("10.0.0.9").as_deref(), Some("default/far"));
        assert_eq!(name("10.0.0.2").as_deref(), Some("default/new"), "the plugins know best");
        assert_eq!(name("10.0.0.3"), None);
    }

    #[test]
    fn a_pod_that_only_the_plugins_know_counts_if_nobody_else_would_know_it() {
        let mut world = ClusterState::default();
        world.attach(interface("c1", "c1", "10.0.0.2"));
        assert_eq!(addresses(&world, "c1", false), None);
        assert_eq!(addresses(&world, "c1", true).unwrap(), ["10.0.0.2"]);
    }

    fn object(kind: &str, name: &str, label: &str, rest: serde_json::Value) -> serde_json::Value {
        let mut object = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "labels": { "app": label } } });
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    }

    fn only(object: serde_json::Value) -> Snapshot {
        let mut snapshot = Snapshot::new();
        snapshot.add(object).unwrap();
        snapshot
    }

    #[derive(Clone, Debug)]
    enum Event {
        Update(Update),
        Attach(Interface),
        Detach(Interface),
    }

    /// Something that happens, to few names, labels and addresses, so that things meet.
    fn event() -> impl Strategy<Value = Event> {
        (0..6u8, 0..4u8, 0..3u8, 0..4u8).prop_map(|(what, name, label, other)| {
            let (pod, label, ip) = (format!("p{name}"), format!("a{label}"), format!("10.0.0.{other}"));
            let selector = |label: &str| json!({ "matchLabels": { "app": label } });
            match what {
                0 => {
                    let rest =
                        json!({ "spec": { "nodeName": "here" }, "status": { "podIPs": [{ "ip": ip }] } });
                    Event::Update(Update::Changed(only(object("Pod", &pod, &label, rest))))
                }
                1 => Event::Update(Update::Deleted(Kind::Pod, format!("default/{pod}"))),
                2 => Event::Attach(interface(&pod, &pod, &ip)),
                3 => Event::Detach(interface(&pod, &pod, &ip)),
                4 => {
                    let from = json!([{ "podSelector": selector(&format!("a{other}")) }]);
                    let spec = json!({ "podSelector": selector(&label), "ingress": [{ "from": from }] });
                    let mut policy = object("NetworkPolicy", &pod, "", json!({ "spec": spec }));
                    policy["apiVersion"] = json!("networking.k8s.io/v1");
                    Event::Update(Update::Changed(only(policy)))
                }
                _ => {
                    let namespace = object("Namespace", "default", &label, json!({}));
                    Event::Update(Update::Listed(Kind::Namespace, only(namespace)))
                }
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_compiler_brought_up_to_date_is_like_one_made_anew(
            events in prop::collection::vec((event(), any::<bool>()), 1..30), unknown_too in any::<bool>()
        ) {
            let home = Home { name: "here".into(), addresses: Vec::new() };
            let (mut world, mut known) = (ClusterState::default(), None);
            for (number, (event, look)) in events.into_iter().enumerate() {
                match event {
                    Event::Update(told) => world.learn(told),
                    Event::Attach(interface) => world.attach(interface),
                    Event::Detach(interface) => world.detach(&interface.owner),
                }
                if look {
                    let compiler = world.compiler(known.take(), &home, unknown_too);
                    let compiler = known.insert(compiler);
                    let anew = podwire_policy::compile(&world.snapshot(&home, unknown_too), Some("here")).program;
                    prop_assert_eq!(compiler.program(), &anew, "after event {}", number);
                }
            }
        }
    }
}
