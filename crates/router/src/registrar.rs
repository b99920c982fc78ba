//! The registrar: tells the store where this node is met, and gets the addresses of its tunnels' ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{
    AffinityOwner, Allocator, Error as Blocks, Node, Release, Request, Rules, Tunnel, Use,
};
use tracing::info;

use crate::{thread, Board, Opener, Patience, Result};

/// What the store should know of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Whether it is a node of Kubernetes.
    pub(crate) is_member: bool,
    /// Where it is met, with the prefix of its wire.
    pub(crate) addresses: Vec<IpNet>,
    /// The tunnels that end here, or should no longer. Of others nothing is said: they stay as they are.
    pub(crate) tunnels: BTreeMap<Tunnel, Ground>,
}

/// Where the end of a tunnel may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ground {
    /// The names of the pools that give a new one.
    pub(crate) gives: Vec<String>,
    /// The addresses among which one that is there may stay.
    pub(crate) keeps: Vec<IpNet>,
}

impl Ground {
    /// Whether there may be an end at all.
    pub(crate) fn is_there(&self) -> bool {
        !self.keeps.is_empty()
    }

    pub(crate) fn keeps(&self, end: IpAddr) -> bool {
        self.keeps.iter().any(|net| net.contains(&end))
    }
}

pub(crate) fn start(node: String, opener: Arc<Opener>, wishes: Receiver<Wish>, board: Board) -> Result<()> {
    let work = move || {
        let mut patience = Patience::new();
        let mut wish: Option<Wish> = None;
        loop {
            // Without a wish there is nothing to wait for but the next; with one that failed, it is tried again.
            let pause = wish.as_ref().map(|_| patience.next());
            match next(&wishes, pause) {
                Ok(Some(newer)) => wish = Some(newer),
                Ok(None) => {}
                Err(()) => return,
            }
            let Some(wanted) = &wish else { continue };
            match (opener)().map_err(Blocks::from).and_then(|store| fulfil(&*store, &node, wanted)) {
                Ok(()) => {
                    (wish, patience) = (None, Patience::new());
                    board.problem("this node's record", None);
                }
                Err(error) => {
                    board.problem("this node's record", Some(format!("{error} ({})", error.hint())))
                }
            }
        }
    };
    thread("registrar", work)
}

/// The newest wish, if one came within the time.
fn next(wishes: &Receiver<Wish>, pause: Option<Duration>) -> Result<Option<Wish>, ()> {
    let first = match pause {
        None => Some(wishes.recv().map_err(drop)?),
        Some(pause) => match wishes.recv_timeout(pause) {
            Ok(wish) => Some(wish),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(()),
        },
    };
    Ok(wishes.try_iter().last().or(first))
}

/// Makes the store know it. Where the node is met is told even if no pool has an address for a tunnel's end.
fn fulfil(store: &dyn Store, node: &str, wish: &Wish) -> Result<(), Blocks> {
    let office = Office { store, rules: Rules::load(store)?, node };
    let mut ends: BTreeMap<Tunnel, Option<IpAddr>> = BTreeMap::new();
    let mut over = Vec::new();
    let mut failed = None;
    for (tunnel, ground) in &wish.tunnels {
        match office.end(*tunnel, ground) {
            Ok(End { address, former }) => {
                ends.insert(*tunnel, address);
                over.extend(former);
            }
            Err(error @ Blocks::Store(_)) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    let changed = Node::update(store, node, |record| {
        if wish.is_member {
            record.set_kubernetes_name();
        }
        wish.addresses.iter().for_each(|address| record.set_address(*address));
        ends.iter().for_each(|(tunnel, end)| record.set_tunnel(*tunnel, *end));
    })?;
    if changed {
        let addresses: Vec<String> = wish.addresses.iter().map(ToString::to_string).collect();
        info!(addresses = addresses.join(" "), ?ends, "the store knows where this node is met");
    }
    // Not before the node's object names another: an address that it names is to be nobody else's.
    if !over.is_empty() {
        Allocator::new(store, Timestamp::now).release(&office.rules, &over)?;
    }
    failed.map_or(Ok(()), Err)
}

struct Office<'a> {
    store: &'a dyn Store,
    rules: Rules,
    node: &'a str,
}

/// The end of a tunnel.
struct End {
    address: Option<IpAddr>,
    /// Addresses that it had, of pools that are gone or have another kind of road now.
    former: Vec<Release>,
}

impl Office<'_> {
    /// The end of a tunnel: where it is, or a new one; nowhere, if no pool needs the tunnel any more.
    fn end(&self, tunnel: Tunnel, ground: &Ground) -> Result<End, Blocks> {
        let handle = tunnel.handle(self.node);
        let there = Allocator::new(self.store, Timestamp::now).addresses_of(&handle)?;
        let address = match there.iter().find(|ip| ground.keeps(**ip)) {
            Some(kept) => Some(*kept),
            None if ground.gives.is_empty() => None,
            None => Some(self.new_end(tunnel, &handle, &ground.gives)?),
        };
        let is_over = |ip: &IpAddr| Some(*ip) != address;
        let release = |ip| Release { handle: Some(handle.clone()), ..Release::of(ip) };
        Ok(End { address, former: there.into_iter().filter(is_over).map(release).collect() })
    }

    fn new_end(&self, tunnel: Tunnel, handle: &str, pools: &[String]) -> Result<IpAddr, Blocks> {
        let Office { store, rules, node } = self;
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
        // The clerk of this node's stock may be about to claim its first block, too.
        let assigned = allocator.assign_serialized(rules, &request)?;
        match assigned.addresses.first() {
            Some(address) => Ok(address.addr()),
            None => Err(assigned.shortage.unwrap_or(Blocks::Full { pools: pools.join(", ") })),
        }
    }
}

#[cfg(test)]
mod tests {
    use podwire_block_ipam::store::Memory;
    use podwire_block_ipam::{Encapsulation, IpFamily, Pool};

    use super::*;

    fn ground(store: &Memory, pools: &[&str]) -> Ground {
        let all = Rules::load(store).unwrap().pools;
        let named = all.iter().filter(|pool| pools.contains(&pool.name()));
        Ground {
            gives: pools.iter().map(ToString::to_string).collect(),
            keeps: named.map(Pool::cidr).collect(),
        }
    }

    #[test]
    fn an_end_that_has_to_move_and_cannot_stays_the_nodes() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, Timestamp::now);
        for (name, cidr) in [("one", "10.1.0.0/26"), ("full", "10.2.0.0/32")] {
            allocator.add_pool(&Pool::new(name, cidr.parse().unwrap()).with_block_size(32)).unwrap();
        }
        let rules = Rules::load(&store).unwrap();
        let other = Request { pools: vec!["full".into()], ..Request::new(AffinityOwner::host("node2"), "x") };
        allocator.assign(&rules, &other).unwrap();
        let vxlan = Tunnel::Vxlan(IpFamily::V4);
        let wish =
            |pools: &[&str]| Wish { tunnels: [(vxlan, ground(&store, pools))].into(), ..Wish::default() };
        fulfil(&store, "node1", &wish(&["one"])).unwrap();
        let held = allocator.addresses_of(&vxlan.handle("node1")).unwrap();
        fulfil(&store, "node1", &wish(&["full"])).unwrap_err();
        assert_eq!(allocator.addresses_of(&vxlan.handle("node1")).unwrap(), held);
        let entry = store.get(&Node::key("node1")).unwrap().unwrap();
        assert_eq!(Node::parse(&entry.key, &entry.value).unwrap().tunnel(vxlan), Some(held[0]));
    }

    #[test]
    fn a_tunnels_end_is_kept_moved_with_its_pool_and_given_back() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, Timestamp::now);
        let pool = |name: &str, cidr: &str| {
            let pool = Pool::new(name, cidr.parse().unwrap());
            allocator.add_pool(&pool.with_encapsulation(Encapsulation::Vxlan, false)).unwrap();
        };
        pool("one", "10.1.0.0/26");
        pool("two", "10.2.0.0/26");
        let vxlan = Tunnel::Vxlan(IpFamily::V4);
        let wish = |pools: &[&str]| Wish {
            is_member: true,
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(vxlan, ground(&store, pools))].into(),
        };
        let end_after = |wish: Wish| {
            fulfil(&store, "node1", &wish).unwrap();
            let entry = store.get(&Node::key("node1")).unwrap().unwrap();
            let node = Node::parse(&entry.key, &entry.value).unwrap();
            assert_eq!(node.address(IpFamily::V4), "192.168.0.1/24".parse().ok());
            assert_eq!(node.kubernetes_name(), Some("node1"));
            node.tunnel(vxlan).map(|ip| ip.to_string())
        };
        assert_eq!(end_after(wish(&["one"])), Some("10.1.0.0".into()));
        assert_eq!(end_after(wish(&["one"])), Some("10.1.0.0".into()));
        // Released behind the back of the node, and somebody else's by now.
        let rules = Rules::load(&store).unwrap();
        allocator.release_handle(&rules, &vxlan.handle("node1")).unwrap();
        let pod = Request::new(AffinityOwner::host("node1"), "a pod");
        allocator.assign_address(&rules, &pod, "10.1.0.0".parse().unwrap()).unwrap();
        assert_eq!(end_after(wish(&["one"])), Some("10.1.0.1".into()));
        assert_eq!(end_after(wish(&["two"])), Some("10.2.0.0".into()));
        assert_eq!(allocator.addresses_of("vxlan-tunnel-addr-node1").unwrap().len(), 1);
        assert_eq!(end_after(wish(&[])), None);
        assert_eq!(allocator.addresses_of("vxlan-tunnel-addr-node1").unwrap().len(), 0);
    }

    #[test]
    fn where_a_node_is_met_is_told_even_if_its_pool_is_full() {
        let store = Memory::new();
        let pool = Pool::new("one", "10.1.0.0/32".parse().unwrap()).with_block_size(32);
        let allocator = Allocator::new(&store, Timestamp::now);
        allocator.add_pool(&pool).unwrap();
        let rules = Rules::load(&store).unwrap();
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node2"), "x")).unwrap();
        let wish = Wish {
            is_member: false,
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(Tunnel::Vxlan(IpFamily::V4), ground(&store, &["one"]))].into(),
        };
        let error = fulfil(&store, "node1", &wish).unwrap_err();
        assert!(error.to_string().contains("No Free Blocks"), "{error}");
        let entry = store.get(&Node::key("node1")).unwrap().unwrap();
        let node = Node::parse(&entry.key, &entry.value).unwrap();
        assert_eq!(node.address(IpFamily::V4), "192.168.0.1/24".parse().ok());
    }

    #[test]
    fn the_newest_wish_is_the_one_that_counts() {
        let (sender, wishes) = std::sync::mpsc::channel();
        for number in 0..3u8 {
            let addresses = vec![IpNet::from(IpAddr::from([10, 0, 0, number]))];
            sender.send(Wish { addresses, ..Wish::default() }).unwrap();
        }
        assert_eq!(next(&wishes, None).unwrap().unwrap().addresses[0].to_string(), "10.0.0.2/32");
        assert_eq!(next(&wishes, Some(Duration::ZERO)), Ok(None));
        drop(sender);
        assert_eq!(next(&wishes, None), Err(()));
    }
}
