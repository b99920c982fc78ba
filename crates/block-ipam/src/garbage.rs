//! Finds leaked addresses. Pure: the input is a snapshot of the store and an inventory of the cluster; the output is
//! what to release.
//!
//! An address is *leaked* if its pod does not exist, has finished, runs on another node, or has another address; or if
//! it belongs to a node itself (a tunnel address, its warm pool) and the node does not exist. If a record does not
//! identify the holder, the address is kept. One observation is not enough: a leak is confirmed when every observation
//! of a grace period has found it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{AffinityOwner, Allocation, Attribute, Handle, Problem, Rules, StoreSnapshot};

/// The nodes and pods of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Nodes, by name.
    pub nodes: BTreeSet<String>,
    /// Node objects in the store whose Kubernetes node does not exist: the object's name and the Kubernetes name.
    pub orphans: BTreeSet<(String, String)>,
    /// Pods, by namespace and name.
    pub pods: BTreeMap<(String, String), Pod>,
    /// The Kubernetes names of the store's Node objects.
    names: BTreeMap<String, String>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its node; empty if it is not scheduled yet.
    pub node: String,
    /// Its addresses; empty before its network is set up.
    pub ips: Vec<IpAddr>,
    /// Whether it has succeeded or failed.
    pub is_finished: bool,
}

impl Pod {
    /// Removes addresses that are in no pool. If another plugin provides the pod's primary network, Kubernetes reports
    /// its addresses and not ours.
    pub fn retain_pool_addresses(&mut self, rules: &Rules) {
        self.ips.retain(|ip| rules.pools.iter().any(|pool| pool.cidr().contains(ip)));
    }
}

/// A leaked address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leak {
    /// The address.
    pub ip: IpAddr,
    /// Its handle.
    pub handle: String,
    /// The block's sequence number at the assignment; 0 if unknown.
    pub sequence: u64,
    /// Its holder.
    pub holder: Holder,
}

impl Leak {
    /// All addresses of a node and its pods and containers. A virtual machine keeps its address when it moves to
    /// another node.
    pub(super) fn of_node(snapshot: &StoreSnapshot, node: &str) -> Vec<Leak> {
        let leak = |Allocation { ip, sequence, attribute, .. }: Allocation<'_>| {
            let handle = attribute.handle()?.to_owned();
            let holder = Holder::of(attribute).or_else(|| {
                let is_movable = attribute.secondary.keys().any(|key| key.starts_with("vm"));
                let node = attribute.secondary.get("node").filter(|_| !is_movable)?;
                Some(Holder::Container { node: node.clone() })
            })?;
            (holder.node() == node).then_some(Leak { ip, handle, sequence, holder })
        };
        snapshot.blocks().flat_map(|block| block.allocations().filter(is_used)).filter_map(leak).collect()
    }
}

/// The holder of an address, from the block's attributes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its node; empty if unknown.
        node: String,
    },
    /// A node itself: a tunnel address, or its warm pool.
    Node(String),
    /// A container that is not a pod.
    Container {
        /// Its node.
        node: String,
    },
}

impl Holder {
    /// The holder from an address's attribute. `None` if it is unknown or neither a pod nor a node.
    fn of(attribute: &Attribute) -> Option<Holder> {
        let value = |key: &str| attribute.secondary.get(key).filter(|text| !text.is_empty()).cloned();
        if let Some(node) = Handle::node_of(attribute.handle()?) {
            return Some(Holder::Node(node.to_owned()));
        }
        // A virtual machine keeps its address when its pod changes.
        if attribute.secondary.keys().any(|key| key.starts_with("vm")) || value("type").is_some() {
            return None;
        }
        let node = value("node").unwrap_or_default();
        Some(Holder::Pod { namespace: value("namespace")?, name: value("pod")?, node })
    }

    /// The node.
    pub fn node(&self) -> &str {
        match self {
            Holder::Pod { node, .. } | Holder::Node(node) | Holder::Container { node } => node,
        }
    }

    /// Whether the pod does not use the address any more. `node` is the holder's node by its Kubernetes name. (Nodes
    /// are checked elsewhere.)
    pub fn has_released(&self, node: &str, ip: IpAddr, pod: Option<&Pod>) -> bool {
        let (Holder::Pod { .. }, Some(pod)) = (self, pod) else { return true };
        let is_elsewhere = !node.is_empty() && !pod.node.is_empty() && pod.node != node;
        pod.is_finished || is_elsewhere || (!pod.ips.is_empty() && !pod.ips.contains(&ip))
    }
}

impl Inventory {
    /// Adds the store's Node objects, after the Kubernetes nodes. An object with a Kubernetes name exists as long as
    /// that node; without one, the object itself counts. An inventory without Kubernetes nodes is not trusted.
    pub fn add_node_objects(&mut self, objects: Vec<(String, Option<String>)>) {
        if self.nodes.is_empty() {
            return;
        }
        let named = |(name, node): &(String, Option<String>)| Some((name.clone(), node.clone()?));
        self.names = objects.iter().filter_map(named).collect();
        let (existing, gone): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|(_, node)| node.as_ref().is_none_or(|node| self.nodes.contains(node)));
        self.nodes.extend(existing.into_iter().map(|(name, _)| name));
        let orphans = gone.into_iter().filter_map(|(name, node)| Some((name, node?)));
        self.orphans = orphans.filter(|(name, _)| !self.nodes.contains(name)).collect();
    }

    /// The Kubernetes name of a node.
    pub fn kubernetes_name<'a>(&'a self, node: &'a str) -> &'a str {
        self.names.get(node).map_or(node, String::as_str)
    }

    fn pod(&self, holder: &Holder) -> Option<&Pod> {
        match holder {
            Holder::Pod { namespace, name, .. } => self.pods.get(&(namespace.clone(), name.clone())),
            Holder::Node(_) | Holder::Container { .. } => None,
        }
    }

    fn is_leaked(&self, allocation: &Allocation<'_>, holder: &Holder) -> bool {
        match holder {
            Holder::Pod { node, .. } => {
                holder.has_released(self.kubernetes_name(node), allocation.ip, self.pod(holder))
            }
            Holder::Node(node) => !self.nodes.contains(node),
            // Kubernetes does not know it.
            Holder::Container { .. } => false,
        }
    }

    /// All leaks. A handle's addresses are leaked only if all of them are.
    pub fn leaks(&self, snapshot: &StoreSnapshot) -> Vec<Leak> {
        let all = || snapshot.blocks().flat_map(|block| block.allocations().filter(is_used));
        let mut leaked: BTreeMap<&str, Vec<Leak>> = BTreeMap::new();
        let (mut kept, mut used_containers) = (BTreeSet::new(), BTreeSet::new());
        for allocation in all() {
            let Some(handle) = allocation.attribute.handle() else { continue };
            match Holder::of(allocation.attribute) {
                Some(holder) if self.is_leaked(&allocation, &holder) => {
                    let Allocation { ip, sequence, .. } = allocation;
                    let leak = Leak { ip, handle: handle.to_owned(), sequence, holder };
                    leaked.entry(handle).or_default().push(leak);
                }
                _ => {
                    kept.insert(handle);
                    used_containers.insert(container(handle));
                }
            }
        }
        // Kubernetes does not report the address of a pod's second interface. It has the same container as the first.
        let is_in_use = |leak: &Leak| {
            used_containers.contains(container(&leak.handle)) && self.pod(&leak.holder).is_some()
        };
        leaked.retain(|handle, leaks| !kept.contains(handle) && !leaks.iter().any(is_in_use));
        leaked.into_values().flatten().collect()
    }
}

fn is_used(allocation: &Allocation<'_>) -> bool {
    !allocation.attribute.is_in_cooldown() && !allocation.attribute.is_reserved()
}

/// The container of a handle `network.container`.
fn container(handle: &str) -> &str {
    handle.rsplit_once('.').map_or(handle, |(_, container)| container)
}

/// Findings, with the time of the first observation that has found them without interruption.
#[derive(Clone, Debug)]
struct Findings<T>(BTreeMap<T, Duration>);

impl<T: Ord + Clone> Findings<T> {
    /// Takes in the findings at `now`. Returns those that every observation of their grace period has found.
    fn confirm(&mut self, now: Duration, found: Vec<T>, grace: impl Fn(&T) -> Duration) -> Vec<T> {
        let before = std::mem::take(&mut self.0);
        for one in found {
            let since = before.get(&one).copied().unwrap_or(now);
            self.0.insert(one, since);
        }
        let is_confirmed = |one: &T, since: Duration| before.contains_key(one) && now >= since + grace(one);
        self.0.iter().filter(|(one, since)| is_confirmed(one, **since)).map(|(one, _)| one.clone()).collect()
    }
}

/// Confirms findings over several observations.
#[derive(Clone, Debug)]
pub struct Collector {
    grace: Duration,
    leaks: Findings<Leak>,
    nodes: Findings<String>,
    orphans: Findings<(String, String)>,
    problems: Findings<Problem>,
}

/// Confirmed garbage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Addresses to release.
    pub leaks: Vec<Leak>,
    /// Deleted nodes whose blocks are to be released.
    pub nodes: Vec<String>,
    /// Node objects to delete: the object's name and the Kubernetes name.
    pub orphans: Vec<(String, String)>,
    /// Records to repair.
    pub problems: Vec<Problem>,
    /// The number of leaked addresses, confirmed or not.
    pub suspects: usize,
}

impl Collector {
    /// With a grace period.
    pub fn new(grace: Duration) -> Collector {
        Collector {
            grace,
            leaks: Findings(BTreeMap::new()),
            nodes: Findings(BTreeMap::new()),
            orphans: Findings(BTreeMap::new()),
            problems: Findings(BTreeMap::new()),
        }
    }

    /// Takes in an observation. `now` is monotonic. The inventory must be read after the snapshot, because a pod object
    /// exists before the pod has an address.
    pub fn find_garbage(
        &mut self,
        now: Duration,
        snapshot: &StoreSnapshot,
        rules: &Rules,
        inventory: &Inventory,
    ) -> Garbage {
        // An inventory without nodes is not trusted.
        if inventory.nodes.is_empty() {
            return Garbage::default();
        }
        let leaks = inventory.leaks(snapshot);
        let suspects = leaks.len();
        let is_gone = |name: &str| !inventory.nodes.contains(name);
        // A pod whose node is gone too does not come back. A node may use its own addresses as long as it runs, even if
        // its object was deleted.
        let grace = self.grace;
        let grace_of = |leak: &Leak| match &leak.holder {
            Holder::Pod { node, .. } if !node.is_empty() && is_gone(node) => Duration::ZERO,
            _ => grace,
        };
        let absent_nodes =
            snapshot.nodes().into_iter().filter(|node| is_gone(node)).map(String::from).collect();
        let is_of_absent =
            |problem: &Problem| matches!(problem.owner(), Some(AffinityOwner::Host(name)) if is_gone(name));
        let problems =
            snapshot.problems(rules).into_iter().filter(|problem| !is_of_absent(problem)).collect();
        Garbage {
            leaks: self.leaks.confirm(now, leaks, grace_of),
            nodes: self.nodes.confirm(now, absent_nodes, |_| grace),
            orphans: self.orphans.confirm(now, inventory.orphans.iter().cloned().collect(), |_| grace),
            problems: self.problems.confirm(now, problems, |_| grace),
            suspects,
        }
    }
}

#[cfg(test)]
mod tests;
