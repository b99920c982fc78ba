//! Registers this node in the store: its addresses on the network between nodes, and the addresses of its tunnel
//! devices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ipnet::IpNet;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{
    AffinityOwner, Allocator, Error as IpamError, Node, Release, Request, Rules, Tunnel, Use,
};
use podwire_reconcile::Backoff;
use tracing::info;

use crate::calico::allocator::BlockAllocator;
use crate::status::StatusHandle;
use crate::{Error, Result};

/// What the store should contain about this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredRegistration {
    /// Whether it is a Kubernetes node. If Kubernetes deletes it, garbage collection may delete its records.
    pub(crate) is_member: bool,
    /// Its addresses, with the prefix length of the network between nodes.
    pub(crate) addresses: Vec<IpNet>,
    /// The pools of its tunnel addresses. A tunnel that is not listed keeps its address.
    pub(crate) tunnels: BTreeMap<Tunnel, TunnelPools>,
}

/// The pools of a tunnel address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelPools {
    /// The names of the pools from which a new address is assigned.
    pub(crate) assign_from: Vec<String>,
    /// The pools in which an existing address may stay.
    pub(crate) keep_in: Vec<IpNet>,
}

impl TunnelPools {
    /// Whether a pool needs the tunnel.
    pub(crate) fn is_needed(&self) -> bool {
        !self.keep_in.is_empty()
    }

    /// Whether an existing address may stay.
    pub(crate) fn keeps(&self, address: IpAddr) -> bool {
        self.keep_in.iter().any(|net| net.contains(&address))
    }
}

/// What the registration thread needs.
pub(crate) struct Registration<O> {
    /// The node's name in the store.
    pub(crate) node: String,
    /// The owner of the node's blocks: another agent with the node's name must not change its addresses.
    pub(crate) allocator: BlockAllocator,
    /// Opens the store.
    pub(crate) opener: O,
}

/// A handle of the registration thread. The thread ends when it is dropped.
pub(crate) struct Registrations(Sender<DesiredRegistration>);

impl Registrations {
    pub(crate) fn start<O>(what: Registration<O>, status: StatusHandle) -> Result<Registrations>
    where
        O: Fn() -> Result<Box<dyn Store>, StoreError> + Send + 'static,
    {
        let (sender, requests) = mpsc::channel();
        let Registration { node, allocator, opener } = what;
        let thread = std::thread::Builder::new().name("registration".into());
        let run = move || {
            run(&requests, &status, |wanted| {
                allocator.wait_for_ownership();
                register(&*opener()?, &node, wanted)
            });
        };
        thread.spawn(run).map_err(Error::thread("registration"))?;
        Ok(Registrations(sender))
    }

    /// Requests a registration. It replaces an earlier one that is not done.
    pub(crate) fn request(&self, registration: DesiredRegistration) {
        let _ = self.0.send(registration);
    }
}

fn run(
    requests: &Receiver<DesiredRegistration>,
    status: &StatusHandle,
    register: impl Fn(&DesiredRegistration) -> Result<(), IpamError>,
) {
    let mut backoff = Backoff::new();
    let mut pending: Option<DesiredRegistration> = None;
    loop {
        let timeout = pending.as_ref().map(|_| backoff.next_pause());
        match next(requests, timeout) {
            Ok(Some(newer)) => pending = Some(newer),
            Ok(None) => {}
            Err(Disconnected) => return,
        }
        let Some(wanted) = &pending else { continue };
        let problem = match register(wanted) {
            Ok(()) => {
                pending = None;
                backoff.reset();
                None
            }
            Err(error) => Some(format!("{error} ({})", error.hint())),
        };
        status.set_problem("registration", problem);
    }
}

/// The handle was dropped.
#[derive(Debug, PartialEq, Eq)]
struct Disconnected;

/// The newest request, if one arrives within the timeout; without a timeout it waits for one.
fn next(
    requests: &Receiver<DesiredRegistration>,
    timeout: Option<Duration>,
) -> Result<Option<DesiredRegistration>, Disconnected> {
    let first = match timeout {
        None => Some(requests.recv().map_err(|_| Disconnected)?),
        Some(timeout) => match requests.recv_timeout(timeout) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(Disconnected),
        },
    };
    Ok(requests.try_iter().last().or(first))
}

/// Writes the registration to the store. The node's addresses are written even if no pool has a tunnel address left.
fn register(store: &dyn Store, node: &str, wanted: &DesiredRegistration) -> Result<(), IpamError> {
    let tunnels = TunnelAddresses { store, rules: Rules::load(store)?, node };
    let mut addresses: BTreeMap<Tunnel, Option<IpAddr>> = BTreeMap::new();
    let mut outdated = Vec::new();
    let mut failed = None;
    for (tunnel, pools) in &wanted.tunnels {
        match tunnels.ensure(*tunnel, pools) {
            Ok(TunnelAddress { address, former }) => {
                addresses.insert(*tunnel, address);
                outdated.extend(former);
            }
            Err(error @ IpamError::Store(_)) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    let has_changed = Node::update(store, node, |record| {
        if wanted.is_member {
            record.set_kubernetes_name();
        }
        wanted.addresses.iter().for_each(|address| record.set_address(*address));
        addresses.iter().for_each(|(tunnel, address)| record.set_tunnel(*tunnel, *address));
    })?;
    if has_changed {
        let own: Vec<String> = wanted.addresses.iter().map(ToString::to_string).collect();
        info!(addresses = own.join(" "), tunnels = ?addresses, "node registered");
    }
    // After the node's record: an address that the record names must not be assigned to another owner.
    if !outdated.is_empty() {
        Allocator::new(store, Timestamp::now).release(&tunnels.rules, &outdated)?;
    }
    failed.map_or(Ok(()), Err)
}

struct TunnelAddresses<'a> {
    store: &'a dyn Store,
    rules: Rules,
    node: &'a str,
}

struct TunnelAddress {
    address: Option<IpAddr>,
    /// Addresses of pools that are gone or have another encapsulation now.
    former: Vec<Release>,
}

impl TunnelAddresses<'_> {
    /// The address of a tunnel: the existing one, or a new one; none if no pool needs the tunnel.
    fn ensure(&self, tunnel: Tunnel, pools: &TunnelPools) -> Result<TunnelAddress, IpamError> {
        let handle = tunnel.handle(self.node);
        let existing = Allocator::new(self.store, Timestamp::now).addresses_of(&handle)?;
        let address = match existing.iter().find(|ip| pools.keeps(**ip)) {
            Some(kept) => Some(*kept),
            None if pools.assign_from.is_empty() => None,
            None => Some(self.assign(tunnel, &handle, &pools.assign_from)?),
        };
        let is_outdated = |ip: &IpAddr| Some(*ip) != address;
        let release = |ip| Release { handle: Some(handle.clone()), ..Release::of(ip) };
        let former = existing.into_iter().filter(is_outdated).map(release).collect();
        Ok(TunnelAddress { address, former })
    }

    fn assign(&self, tunnel: Tunnel, handle: &str, pools: &[String]) -> Result<IpAddr, IpamError> {
        let TunnelAddresses { store, rules, node } = self;
        let allocator = Allocator::new(*store, Timestamp::now);
        let mut request = Request::new(AffinityOwner::host(*node), handle);
        request.attributes.insert("type".into(), tunnel.attribute().into());
        let request = Request {
            family: tunnel.family(),
            intended_use: Use::Tunnel,
            pools: pools.to_vec(),
            node_labels: Rules::node_labels(*store, node)?,
            ..request
        };
        // In turn: the store sync of this node may claim the node's first block at the same time.
        let assigned = allocator.assign_serialized(rules, &request)?;
        match assigned.addresses.first() {
            Some(address) => Ok(address.addr()),
            None => Err(assigned.shortage.unwrap_or(IpamError::Full { pools: pools.join(", ") })),
        }
    }
}

#[cfg(test)]
mod tests {
    use podwire_block_ipam::store::Memory;
    use podwire_block_ipam::{Encapsulation, IpFamily, Pool};

    use super::*;

    fn tunnel_pools(store: &Memory, pools: &[&str]) -> TunnelPools {
        let all = Rules::load(store).unwrap().pools;
        let named = all.iter().filter(|pool| pools.contains(&pool.name()));
        TunnelPools {
            assign_from: pools.iter().map(ToString::to_string).collect(),
            keep_in: named.map(Pool::cidr).collect(),
        }
    }

    #[test]
    fn a_tunnel_address_that_cannot_move_stays() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, Timestamp::now);
        for (name, cidr) in [("one", "10.1.0.0/26"), ("full", "10.2.0.0/32")] {
            allocator.add_pool(&Pool::new(name, cidr.parse().unwrap()).with_block_size(32)).unwrap();
        }
        let rules = Rules::load(&store).unwrap();
        let other = Request { pools: vec!["full".into()], ..Request::new(AffinityOwner::host("node2"), "x") };
        allocator.assign(&rules, &other).unwrap();
        let vxlan = Tunnel::Vxlan(IpFamily::V4);
        let wanted = |pools: &[&str]| DesiredRegistration {
            tunnels: [(vxlan, tunnel_pools(&store, pools))].into(),
            ..DesiredRegistration::default()
        };
        register(&store, "node1", &wanted(&["one"])).unwrap();
        let held = allocator.addresses_of(&vxlan.handle("node1")).unwrap();
        register(&store, "node1", &wanted(&["full"])).unwrap_err();
        assert_eq!(allocator.addresses_of(&vxlan.handle("node1")).unwrap(), held);
        let entry = store.get(&Node::key("node1")).unwrap().unwrap();
        assert_eq!(Node::parse(&entry.key, &entry.value).unwrap().tunnel(vxlan), Some(held[0]));
    }

    #[test]
    fn a_tunnel_address_is_kept_moved_with_its_pool_and_released() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, Timestamp::now);
        let pool = |name: &str, cidr: &str| {
            let pool = Pool::new(name, cidr.parse().unwrap());
            allocator.add_pool(&pool.with_encapsulation(Encapsulation::Vxlan, false)).unwrap();
        };
        pool("one", "10.1.0.0/26");
        pool("two", "10.2.0.0/26");
        let vxlan = Tunnel::Vxlan(IpFamily::V4);
        let wanted = |pools: &[&str]| DesiredRegistration {
            is_member: true,
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(vxlan, tunnel_pools(&store, pools))].into(),
        };
        let address_after = |wanted: DesiredRegistration| {
            register(&store, "node1", &wanted).unwrap();
            let entry = store.get(&Node::key("node1")).unwrap().unwrap();
            let node = Node::parse(&entry.key, &entry.value).unwrap();
            assert_eq!(node.address(IpFamily::V4), "192.168.0.1/24".parse().ok());
            assert_eq!(node.kubernetes_name(), Some("node1"));
            node.tunnel(vxlan).map(|ip| ip.to_string())
        };
        assert_eq!(address_after(wanted(&["one"])), Some("10.1.0.0".into()));
        assert_eq!(address_after(wanted(&["one"])), Some("10.1.0.0".into()));
        // Another client released it, and a pod has it now.
        let rules = Rules::load(&store).unwrap();
        allocator.release_handle(&rules, &vxlan.handle("node1")).unwrap();
        let pod = Request::new(AffinityOwner::host("node1"), "a pod");
        allocator.assign_address(&rules, &pod, "10.1.0.0".parse().unwrap()).unwrap();
        assert_eq!(address_after(wanted(&["one"])), Some("10.1.0.1".into()));
        assert_eq!(address_after(wanted(&["two"])), Some("10.2.0.0".into()));
        assert_eq!(allocator.addresses_of("vxlan-tunnel-addr-node1").unwrap().len(), 1);
        assert_eq!(address_after(wanted(&[])), None);
        assert_eq!(allocator.addresses_of("vxlan-tunnel-addr-node1").unwrap().len(), 0);
    }

    #[test]
    fn addresses_are_registered_even_if_the_pool_is_full() {
        let store = Memory::new();
        let pool = Pool::new("one", "10.1.0.0/32".parse().unwrap()).with_block_size(32);
        let allocator = Allocator::new(&store, Timestamp::now);
        allocator.add_pool(&pool).unwrap();
        let rules = Rules::load(&store).unwrap();
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node2"), "x")).unwrap();
        let wanted = DesiredRegistration {
            is_member: false,
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(Tunnel::Vxlan(IpFamily::V4), tunnel_pools(&store, &["one"]))].into(),
        };
        let error = register(&store, "node1", &wanted).unwrap_err();
        assert!(error.to_string().contains("No Free Blocks"), "{error}");
        let entry = store.get(&Node::key("node1")).unwrap().unwrap();
        let node = Node::parse(&entry.key, &entry.value).unwrap();
        assert_eq!(node.address(IpFamily::V4), "192.168.0.1/24".parse().ok());
    }

    #[test]
    fn the_newest_request_counts() {
        let (sender, requests) = std::sync::mpsc::channel();
        for number in 0..3u8 {
            let addresses = vec![IpNet::from(IpAddr::from([10, 0, 0, number]))];
            sender.send(DesiredRegistration { addresses, ..DesiredRegistration::default() }).unwrap();
        }
        assert_eq!(next(&requests, None).unwrap().unwrap().addresses[0].to_string(), "10.0.0.2/32");
        assert_eq!(next(&requests, Some(Duration::ZERO)), Ok(None));
        drop(sender);
        assert_eq!(next(&requests, None), Err(Disconnected));
    }
}
