//! The registrar: tells the store where this node is met, and gets the addresses of its tunnels' ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use ipam::blocks::{Allocator, Error as Blocks, Node, Owner, Request, Rules, Tunnel, Use};
use ipam::moment::Moment;
use ipam::store::Store;
use ipnet::IpNet;
use tracing::info;

use crate::{thread, Board, Opener, Patience, Result};

/// What the store should know of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Where it is met, with the prefix of its wire.
    pub(crate) addresses: Vec<IpNet>,
    /// The tunnels that end here, each with the names of the pools that may give its address. None: it has no end here.
    pub(crate) tunnels: BTreeMap<Tunnel, Vec<String>>,
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
    let mut failed = None;
    for (tunnel, pools) in &wish.tunnels {
        match office.end(*tunnel, pools) {
            Ok(end) => drop(ends.insert(*tunnel, end)),
            Err(error @ Blocks::Store(_)) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    let changed = Node::change(store, node, |record| {
        wish.addresses.iter().for_each(|address| record.set_address(*address));
        ends.iter().for_each(|(tunnel, end)| record.set_tunnel(*tunnel, *end));
    })?;
    if changed {
        let addresses: Vec<String> = wish.addresses.iter().map(ToString::to_string).collect();
        info!(addresses = addresses.join(" "), ?ends, "the store knows where this node is met");
    }
    failed.map_or(Ok(()), Err)
}

struct Office<'a> {
    store: &'a dyn Store,
    rules: Rules,
    node: &'a str,
}

impl Office<'_> {
    /// The address of a tunnel's end: the one that it has, or a new one; none, if no pool needs the tunnel any more.
    fn end(&self, tunnel: Tunnel, pools: &[String]) -> Result<Option<IpAddr>, Blocks> {
        let Office { store, rules, node } = self;
        let allocator = Allocator::new(*store, Moment::now);
        let handle = tunnel.handle(node);
        let fits = |ip: &IpAddr| {
            let mut named = rules.pools.iter().filter(|pool| pools.iter().any(|name| name == pool.name()));
            named.any(|pool| pool.cidr().contains(ip))
        };
        let there = allocator.addresses_of(&handle)?;
        if let Some(good) = there.iter().find(|ip| fits(ip)) {
            return Ok(Some(*good));
        }
        if !there.is_empty() {
            // Of a pool that is gone, or that has another kind of road now.
            allocator.release_handle(rules, &handle)?;
        }
        if pools.is_empty() {
            return Ok(None);
        }
        let mut request = Request::new(Owner::host(*node), handle);
        request.attributes.insert("type".into(), tunnel.attribute().into());
        let request = Request {
            family: tunnel.family(),
            wanted_for: Use::Tunnel,
            pools: pools.to_vec(),
            node_labels: Rules::node_labels(*store, node)?,
            ..request
        };
        // The clerk of this node's stock may be about to claim its first block, too.
        let assigned = allocator.assign_in_turn(rules, &request)?;
        match assigned.addresses.first() {
            Some(address) => Ok(Some(address.addr())),
            None => Err(assigned.shortage.unwrap_or(Blocks::Full { pools: pools.join(", ") })),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam::blocks::{Encapsulation, Family, Pool};
    use ipam::store::Memory;

    use super::*;

    #[test]
    fn a_tunnels_end_is_kept_moved_with_its_pool_and_given_back() {
        let store = Memory::new();
        let allocator = Allocator::new(&store, Moment::now);
        let pool = |name: &str, cidr: &str| {
            let pool = Pool::new(name, cidr.parse().unwrap());
            allocator.add_pool(&pool.with_encapsulation(Encapsulation::Vxlan, false)).unwrap();
        };
        pool("one", "10.1.0.0/26");
        pool("two", "10.2.0.0/26");
        let vxlan = Tunnel::Vxlan(Family::V4);
        let wish = |pools: &[&str]| Wish {
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(vxlan, pools.iter().map(ToString::to_string).collect())].into(),
        };
        let end_after = |wish: Wish| {
            fulfil(&store, "node1", &wish).unwrap();
            let entry = store.get(&Node::key("node1")).unwrap().unwrap();
            let node = Node::parse(&entry.key, &entry.value).unwrap();
            assert_eq!(node.address(Family::V4), "192.168.0.1/24".parse().ok());
            node.tunnel(vxlan).map(|ip| ip.to_string())
        };
        assert_eq!(end_after(wish(&["one"])), Some("10.1.0.0".into()));
        assert_eq!(end_after(wish(&["one"])), Some("10.1.0.0".into()));
        // Released behind the back of the node, and somebody else's by now.
        let rules = Rules::load(&store).unwrap();
        allocator.release_handle(&rules, &vxlan.handle("node1")).unwrap();
        let pod = Request::new(Owner::host("node1"), "a pod");
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
        let allocator = Allocator::new(&store, Moment::now);
        allocator.add_pool(&pool).unwrap();
        let rules = Rules::load(&store).unwrap();
        allocator.assign(&rules, &Request::new(Owner::host("node2"), "x")).unwrap();
        let wish = Wish {
            addresses: vec!["192.168.0.1/24".parse().unwrap()],
            tunnels: [(Tunnel::Vxlan(Family::V4), vec!["one".to_owned()])].into(),
        };
        let error = fulfil(&store, "node1", &wish).unwrap_err();
        assert!(error.to_string().contains("No Free Blocks"), "{error}");
        let entry = store.get(&Node::key("node1")).unwrap().unwrap();
        let node = Node::parse(&entry.key, &entry.value).unwrap();
        assert_eq!(node.address(Family::V4), "192.168.0.1/24".parse().ok());
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
