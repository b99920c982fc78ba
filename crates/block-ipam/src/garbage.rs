//! Who has an address although he is gone. Pure: what there is in the store and who there is in the cluster come in, and what to give back
//! comes out.
//!
//! An address is *leaked* if its pod is gone, is over, runs on another node, or has another address by now; or if it is a node's own (a
//! tunnel's end, its stock) and the node is gone. Whoever cannot be told from the record is left alone. One look is not enough: a
//! leak is confirmed when every look since the grace period began has found it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{AffinityOwner, Allocation, Attribute, Handle, Problem, Rules, StoreSnapshot};

/// Who there is in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Nodes, by name.
    pub nodes: BTreeSet<String>,
    /// Objects in the store of nodes that are gone: the name, and the node of Kubernetes that it was.
    pub orphans: BTreeSet<(String, String)>,
    /// Pods, by namespace and name.
    pub pods: BTreeMap<(String, String), Pod>,
    /// What Kubernetes calls the nodes that the store has objects of, where the object says it.
    names: BTreeMap<String, String>,
}

/// What is known of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Where it runs; empty if nobody has decided yet.
    pub node: String,
    /// Its addresses; none before its network is up.
    pub ips: Vec<IpAddr>,
    /// Whether it has ended for good.
    pub is_finished: bool,
}

impl Pod {
    /// Forgets its addresses that are of no pool: of a pod whose first network is another's, Kubernetes tells those, and nothing of ours.
    pub fn retain_pool_addresses(&mut self, rules: &Rules) {
        self.ips.retain(|ip| rules.pools.iter().any(|pool| pool.cidr().contains(ip)));
    }
}

/// An address whose owner is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leak {
    /// The address.
    pub ip: IpAddr,
    /// Its handle.
    pub handle: String,
    /// The block's number when it was given; 0 if it was not written down.
    pub sequence: u64,
    /// Who had it.
    pub holder: Holder,
}

impl Leak {
    /// All that a node and those on it have, pods or not, as if they were gone. A virtual machine keeps its address from node to node.
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

/// Who has an address, as the block tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The node that it ran on; empty if it was not written down.
        node: String,
    },
    /// A node itself: a tunnel's end, or what it has in stock.
    Node(String),
    /// A container that is no pod.
    Container {
        /// The node that it ran on.
        node: String,
    },
}

impl Holder {
    /// Reads it from what stands beside an address. None if it does not say, or belongs to something that is neither.
    fn of(attribute: &Attribute) -> Option<Holder> {
        let known = |key: &str| attribute.secondary.get(key).filter(|value| !value.is_empty()).cloned();
        if let Some(node) = Handle::node_of(attribute.handle()?) {
            return Some(Holder::Node(node.to_owned()));
        }
        // A virtual machine keeps its address from pod to pod.
        if attribute.secondary.keys().any(|key| key.starts_with("vm")) || known("type").is_some() {
            return None;
        }
        let node = known("node").unwrap_or_default();
        Some(Holder::Pod { namespace: known("namespace")?, name: known("pod")?, node })
    }

    /// The node.
    pub fn node(&self) -> &str {
        match self {
            Holder::Pod { node, .. } | Holder::Node(node) | Holder::Container { node } => node,
        }
    }

    /// Whether nobody uses the address, by what there is of the pod, if its node is called so in Kubernetes. (What there is of a node is not
    /// asked here.)
    pub fn has_released(&self, node: &str, ip: IpAddr, pod: Option<&Pod>) -> bool {
        let (Holder::Pod { .. }, Some(pod)) = (self, pod) else { return true };
        let is_elsewhere = !node.is_empty() && !pod.node.is_empty() && pod.node != node;
        pod.is_finished || is_elsewhere || (!pod.ips.is_empty() && !pod.ips.contains(&ip))
    }
}

impl Inventory {
    /// Takes in the nodes that the store has objects of, when those of Kubernetes are known. One that names a node of Kubernetes is there as
    /// long as that is; of others the object is all that can be known. A Kubernetes without nodes is one that nobody could tell about.
    pub fn add_node_objects(&mut self, objects: Vec<(String, Option<String>)>) {
        if self.nodes.is_empty() {
            return;
        }
        let named = |(name, node): &(String, Option<String>)| Some((name.clone(), node.clone()?));
        self.names = objects.iter().filter_map(named).collect();
        let (there, gone): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|(_, node)| node.as_ref().is_none_or(|node| self.nodes.contains(node)));
        self.nodes.extend(there.into_iter().map(|(name, _)| name));
        let orphans = gone.into_iter().filter_map(|(name, node)| Some((name, node?)));
        self.orphans = orphans.filter(|(name, _)| !self.nodes.contains(name)).collect();
    }

    /// What Kubernetes calls a node.
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
            // Nobody knows.
            Holder::Container { .. } => false,
        }
    }

    /// All leaks: a handle's addresses, if every one of them is leaked.
    pub fn leaks(&self, snapshot: &StoreSnapshot) -> Vec<Leak> {
        let all = || snapshot.blocks().flat_map(|block| block.allocations().filter(is_used));
        let mut leaked: BTreeMap<&str, Vec<Leak>> = BTreeMap::new();
        let (mut kept, mut living) = (BTreeSet::new(), BTreeSet::new());
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
                    living.insert(container(handle));
                }
            }
        }
        // A pod's second interface has an address that Kubernetes does not tell. It is the same container's as the first.
        let is_alive =
            |leak: &Leak| living.contains(container(&leak.handle)) && self.pod(&leak.holder).is_some();
        leaked.retain(|handle, leaks| !kept.contains(handle) && !leaks.iter().any(is_alive));
        leaked.into_values().flatten().collect()
    }
}

fn is_used(allocation: &Allocation<'_>) -> bool {
    !allocation.attribute.is_cooling() && !allocation.attribute.is_reserved()
}

/// The container of a handle `network.container`.
fn container(handle: &str) -> &str {
    handle.rsplit_once('.').map_or(handle, |(_, container)| container)
}

/// What was found, and since when by every look.
#[derive(Clone, Debug)]
struct Suspicions<T>(BTreeMap<T, Duration>);

impl<T: Ord + Clone> Suspicions<T> {
    /// Takes in what a look at `now` has found. Returns what was found before, and by every look since then, for as long as `grace` says.
    fn confirm(&mut self, now: Duration, found: Vec<T>, grace: impl Fn(&T) -> Duration) -> Vec<T> {
        let before = std::mem::take(&mut self.0);
        for one in found {
            let since = before.get(&one).copied().unwrap_or(now);
            self.0.insert(one, since);
        }
        let lasts = |one: &T, since: Duration| before.contains_key(one) && now >= since + grace(one);
        self.0.iter().filter(|(one, since)| lasts(one, **since)).map(|(one, _)| one.clone()).collect()
    }
}

/// Remembers what it has found, from look to look.
#[derive(Clone, Debug)]
pub struct Collector {
    grace: Duration,
    leaks: Suspicions<Leak>,
    nodes: Suspicions<String>,
    orphans: Suspicions<(String, String)>,
    problems: Suspicions<Problem>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Addresses to give back.
    pub leaks: Vec<Leak>,
    /// Nodes that are gone, whose blocks are to be given up.
    pub nodes: Vec<String>,
    /// Objects of nodes that are gone, to be deleted: the name, and the node of Kubernetes that it was.
    pub orphans: Vec<(String, String)>,
    /// Records to repair.
    pub problems: Vec<Problem>,
    /// How many addresses are suspected of being leaked, those included.
    pub suspects: usize,
}

impl Collector {
    /// With a grace period.
    pub fn new(grace: Duration) -> Collector {
        Collector {
            grace,
            leaks: Suspicions(BTreeMap::new()),
            nodes: Suspicions(BTreeMap::new()),
            orphans: Suspicions(BTreeMap::new()),
            problems: Suspicions(BTreeMap::new()),
        }
    }

    /// Looks at what there is. `now` is told by a clock that never goes back. The inventory must be taken after the snapshot: a pod is there
    /// before it has an address.
    pub fn find_garbage(
        &mut self,
        now: Duration,
        snapshot: &StoreSnapshot,
        rules: &Rules,
        inventory: &Inventory,
    ) -> Garbage {
        // A cluster without nodes is one that nobody could tell about.
        if inventory.nodes.is_empty() {
            return Garbage::default();
        }
        let leaks = inventory.leaks(snapshot);
        let suspects = leaks.len();
        let gone = |name: &str| !inventory.nodes.contains(name);
        // A pod and its node that are both gone will not come back. What a node has for itself, it may use for as long as it lives, whatever
        // became of its object.
        let grace = self.grace;
        let patience = |leak: &Leak| match &leak.holder {
            Holder::Pod { node, .. } if !node.is_empty() && gone(node) => Duration::ZERO,
            _ => grace,
        };
        let absent = snapshot.nodes().into_iter().filter(|node| gone(node)).map(String::from).collect();
        let is_of_absent =
            |problem: &Problem| matches!(problem.owner(), Some(AffinityOwner::Host(name)) if gone(name));
        let problems =
            snapshot.problems(rules).into_iter().filter(|problem| !is_of_absent(problem)).collect();
        Garbage {
            leaks: self.leaks.confirm(now, leaks, patience),
            nodes: self.nodes.confirm(now, absent, |_| grace),
            orphans: self.orphans.confirm(now, inventory.orphans.iter().cloned().collect(), |_| grace),
            problems: self.problems.confirm(now, problems, |_| grace),
            suspects,
        }
    }
}

#[cfg(test)]
mod tests;
