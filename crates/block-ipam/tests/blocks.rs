//! Operations on pools and blocks, with a store in memory.

use std::cell::Cell;
use std::collections::BTreeMap;

use ipnet::IpNet;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::{Memory, Store};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{
    AdoptOutcome, AffinityOwner, Allocator, Config, Error, Handle, IpFamily, Pool, Problem, Refill, Release,
    Request, Rules, Transfer, Use,
};

/// A cluster with a clock that the test sets.
struct Cluster {
    store: Memory,
    seconds: Cell<u64>,
}

impl Cluster {
    fn new(pools: &[Pool]) -> Cluster {
        let cluster = Cluster { store: Memory::new(), seconds: Cell::new(1_787_405_600) };
        pools.iter().for_each(|pool| cluster.allocator().add_pool(pool).unwrap());
        cluster
    }

    fn allocator(&self) -> Allocator<'_> {
        Allocator::new(&self.store, || Timestamp::from_unix_nanos(self.seconds.get() * 1_000_000_000))
    }

    fn rules(&self) -> Rules {
        Rules::load(&self.store).unwrap()
    }

    fn configure(&self, change: impl Fn(&mut Config)) {
        self.allocator().configure(change).unwrap();
    }

    fn wait(&self, seconds: u64) {
        self.seconds.set(self.seconds.get() + seconds);
    }

    fn assign(&self, request: &Request) -> Result<Vec<String>, String> {
        let given = self.allocator().assign(&self.rules(), request).map_err(|error| error.to_string())?;
        match given.shortage {
            Some(shortage) if given.addresses.is_empty() => Err(shortage.to_string()),
            _ => Ok(given.addresses.iter().map(ToString::to_string).collect()),
        }
    }

    fn one(&self, node: &str, handle: &str) -> String {
        self.assign(&request(node, handle)).unwrap().remove(0)
    }

    fn put(&self, key: &str, value: &str) {
        self.store.create(key, value.as_bytes()).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        self.allocator().check(&self.rules()).unwrap().problems.iter().map(ToString::to_string).collect()
    }
}

fn request(node: &str, handle: &str) -> Request {
    Request::new(AffinityOwner::host(node), handle)
}

fn pool(name: &str, cidr: &str, block: u8) -> Pool {
    Pool::new(name, cidr.parse().unwrap()).with_block_size(block)
}

fn labels(label: &str, value: &str) -> Labels {
    [(label.to_owned(), value.to_owned())].into()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn a_node_fills_its_block_before_it_claims_another() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 30)]);
    let mut wanted = request("node1", "net.a");
    wanted.count = 6;
    let given = cluster.assign(&wanted).unwrap();
    let blocks: Vec<IpNet> = given.iter().map(|address| net(address).trunc()).collect();
    assert!(
        given.len() == 6 && blocks[..4].iter().all(|block| *block == blocks[0]) && blocks[4] != blocks[0]
    );
    assert_eq!(cluster.allocator().addresses_of("net.a").unwrap().len(), 6);
    assert_eq!(cluster.problems(), Vec::<String>::new());
}

#[test]
fn when_all_blocks_are_taken_nodes_borrow_if_allowed() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/30", 30)]);
    let own = cluster.one("node1", "net.a");
    let borrowed = cluster.one("node2", "net.b");
    assert_eq!(net(&own).trunc(), net(&borrowed).trunc());
    let use_of = &cluster.allocator().utilization(&cluster.rules()).unwrap().pools[0];
    assert_eq!((use_of.total, use_of.in_use, use_of.free()), (4, 2, 2));
    assert_eq!(use_of.blocks[0].borrowed, [(net(&borrowed).addr(), "node2".to_owned())]);
    let mut tunnel = request("node2", "vxlan-tunnel-addr-node2");
    tunnel.intended_use = Use::Tunnel;
    assert!(
        cluster.assign(&tunnel).unwrap_err().starts_with("No Free Blocks"),
        "a tunnel address is never borrowed"
    );
    cluster.configure(|config| config.strict_affinity = true);
    let refused = cluster.assign(&request("node2", "net.c")).unwrap_err();
    assert_eq!(refused, "No more free affine blocks and strict affinity enabled");
    assert!(cluster.assign(&request("node1", "net.c")).is_ok(), "its own block has free addresses");
}

#[test]
fn a_block_limit_limits_blocks_and_not_pods() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 31)]);
    cluster.configure(|config| (config.strict_affinity, config.max_blocks_per_host) = (true, 2));
    let mut wanted = request("node1", "net.a");
    wanted.count = 5;
    let given = cluster.allocator().assign(&cluster.rules(), &wanted).unwrap();
    assert_eq!((given.addresses.len(), given.shortage), (4, Some(Error::BlockLimit { limit: 2 })));
    cluster.configure(|config| (config.auto_allocate_blocks, config.max_blocks_per_host) = (false, 0));
    assert!(cluster.assign(&request("node1", "net.b")).is_err(), "no new blocks at all");
}

#[test]
fn an_empty_block_is_reclaimed_when_its_affinity_is_old_enough() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/31", 31)]);
    cluster.configure(|config| config.strict_affinity = true);
    cluster.one("node1", "net.a");
    cluster.allocator().release_handle(&cluster.rules(), "net.a").unwrap();
    assert!(cluster.assign(&request("node2", "net.b")).is_err(), "the affinity is new");
    cluster.wait(60);
    cluster.one("node2", "net.b");
    let owners: Vec<_> =
        cluster.allocator().affinities(None).unwrap().into_iter().map(|(owner, ..)| owner).collect();
    assert_eq!(owners, [AffinityOwner::host("node2")]);
    cluster.wait(600);
    assert!(cluster.assign(&request("node1", "net.c")).is_err(), "a block with a pod stays");
}

#[test]
fn selectors_uses_and_modes_choose_the_pool() {
    let cluster = Cluster::new(&[
        pool("balancers", "10.3.0.0/24", 26).for_uses(&[Use::LoadBalancer]),
        pool("east", "10.1.0.0/24", 26).for_nodes("zone == 'east'"),
        pool("manual", "10.4.0.0/24", 26).manual(),
        pool("off", "10.5.0.0/24", 26).disabled(),
        pool("team", "10.2.0.0/24", 26).for_nodes("zone == 'west'").for_namespaces("team in {'red'}"),
        pool("v6", "fd00::/112", 122),
    ]);
    let from = |request: &Request| {
        cluster.assign(request).map(|given| given[0].split('.').nth(1).unwrap_or("v6").to_owned())
    };
    let mut wanted = request("node1", "net.a");
    let refused = from(&wanted).unwrap_err();
    assert!(refused.starts_with("no configured Calico pools for node node1"), "{refused}");
    wanted.node_labels = labels("zone", "east");
    assert_eq!(from(&wanted).unwrap(), "1");
    wanted.node_labels = labels("zone", "west");
    assert!(from(&wanted).is_err(), "the namespace has no label team");
    wanted.namespace_labels = labels("team", "red");
    assert_eq!(from(&wanted).unwrap(), "2");
    wanted.intended_use = Use::LoadBalancer;
    assert_eq!(from(&wanted).unwrap(), "3");
    wanted.intended_use = Use::Workload;
    wanted.pools = vec!["manual".into()];
    assert_eq!(from(&wanted).unwrap(), "4");
    wanted.pools = vec!["10.1.0.0/24".into()];
    assert_eq!(from(&wanted).unwrap(), "1", "an explicit pool ignores selectors");
    wanted.pools = vec!["off".into()];
    assert_eq!(
        from(&wanted).unwrap_err(),
        "the given pool (off) does not exist, is disabled, or is not IPv4"
    );
    wanted.pools = Vec::new();
    wanted.family = IpFamily::V6;
    assert!(from(&wanted).unwrap().contains("v6"));
}

#[test]
fn an_invalid_selector_is_reported_with_its_pool() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/24", 26).for_nodes("zone = 'x'")]);
    let refused = cluster.assign(&request("node1", "net.a")).unwrap_err();
    assert!(refused.starts_with("IP pool pods: the selector \"zone = 'x'\" is invalid"), "{refused}");
}

#[test]
fn an_empty_block_of_a_pool_that_no_longer_selects_the_node_is_released() {
    let cluster = Cluster::new(&[
        pool("east", "10.1.0.0/24", 26).for_nodes("zone == 'east'"),
        pool("rest", "10.2.0.0/24", 26),
    ]);
    let mut wanted = request("node1", "net.a");
    wanted.pools = vec!["east".into()];
    cluster.assign(&wanted).unwrap();
    assert!(cluster.one("node1", "net.b").starts_with("10.2."));
    assert_eq!(cluster.allocator().affinities(None).unwrap().len(), 2, "it still has a pod");
    cluster.allocator().release_handle(&cluster.rules(), "net.a").unwrap();
    cluster.one("node1", "net.c");
    let left: Vec<_> =
        cluster.allocator().blocks().unwrap().into_iter().map(|block| block.unwrap().cidr()).collect();
    assert!(left.len() == 1 && net("10.2.0.0/24").contains(&left[0]), "{left:?}");
}

#[test]
fn a_specific_address_may_be_requested() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/24", 26), pool("off", "10.9.0.0/24", 26).disabled()]);
    cluster.put(
        "/calico/resources/v3/projectcalico.org/ipreservations/r",
        r#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["10.0.0.64/26","10.0.0.7"]}}"#,
    );
    let ask = |node: &str, handle: &str, ip: &str| {
        let given =
            cluster.allocator().assign_address(&cluster.rules(), &request(node, handle), ip.parse().unwrap());
        given.map(|address| address.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(ask("node1", "net.a", "10.0.0.7").unwrap(), "10.0.0.7/26", "reserved, but requested");
    assert_eq!(
        ask("node2", "net.b", "10.0.0.7").unwrap_err(),
        "Address already assigned in block: 10.0.0.7 belongs to net.a"
    );
    assert!(ask("node2", "net.b", "10.0.0.8").is_ok(), "borrowed");
    assert!(ask("node2", "net.b", "10.9.0.1").unwrap_err().contains("not in an enabled IP pool"));
    cluster.configure(|config| config.strict_affinity = true);
    assert_eq!(ask("node2", "net.b", "10.0.0.9").unwrap_err(), "block 10.0.0.0/26 belongs to host:node1");
    let all = &cluster.allocator().utilization(&cluster.rules()).unwrap().pools;
    let pods = all.iter().find(|pool| pool.name == "pods").unwrap();
    assert_eq!((pods.in_use, pods.reserved, pods.free()), (2, 64, 256 - 2 - 64));
}

#[test]
fn an_address_is_not_assigned_again_before_it_has_cooled_down() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/32", 32)]);
    cluster.configure(|config| config.ip_cooldown_seconds = 30);
    cluster.one("node1", "net.a");
    cluster.allocator().release_handle(&cluster.rules(), "net.a").unwrap();
    assert_eq!(cluster.allocator().handles().unwrap(), []);
    cluster.wait(29);
    assert!(cluster.assign(&request("node1", "net.b")).is_err());
    assert_eq!(cluster.allocator().free_cooled_down(&cluster.rules()), Ok(0));
    cluster.wait(1);
    assert_eq!(cluster.one("node1", "net.b"), "10.0.0.0/32");
    assert_eq!(
        cluster.allocator().release(&cluster.rules(), &[Release::of("10.0.0.0".parse().unwrap())]),
        Ok(vec![])
    );
    let unknown = cluster.allocator().release(&cluster.rules(), &[Release::of("10.0.0.0".parse().unwrap())]);
    assert_eq!(unknown, Ok(vec!["10.0.0.0".parse().unwrap()]), "a released address is not in use");
    cluster.wait(30);
    assert_eq!(cluster.allocator().free_cooled_down(&cluster.rules()), Ok(1));
}

#[test]
fn a_late_release_does_not_affect_the_next_holder() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/32", 32)]);
    cluster.one("node1", "net.a");
    let ip = "10.0.0.0".parse().unwrap();
    let seen = cluster.allocator().blocks().unwrap().remove(0).unwrap().allocation(ip).unwrap().sequence;
    cluster.allocator().release_handle(&cluster.rules(), "net.a").unwrap();
    cluster.one("node1", "net.a");
    let late = Release { ip, handle: Some("net.a".into()), sequence: Some(seen) };
    let refused = cluster.allocator().release(&cluster.rules(), &[late]).unwrap_err();
    assert!(refused.to_string().starts_with("10.0.0.0 is not released: it was assigned again"), "{refused}");
}

#[test]
fn a_pool_is_split_while_pods_keep_their_addresses() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 30)]);
    let address = cluster.one("node1", "net.a");
    let rules = cluster.rules();
    for (parts, why) in [(3, "3 is not 2, 4, 8"), (8, "smaller than its blocks"), (1, "1 is not 2")] {
        let refused = cluster.allocator().split(&rules.pools[0], parts).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // An interrupted attempt is continued.
    let first = pool("split-pods-0", "10.0.0.0/30", 30).disabled();
    cluster.allocator().add_pool(&first).unwrap();
    let parts = cluster.allocator().split(&rules.pools[0], 4).unwrap();
    assert_eq!(
        parts.iter().map(|part| part.cidr().to_string()).collect::<Vec<_>>(),
        ["10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"]
    );
    assert!(cluster.rules().pools.len() == 4 && cluster.rules().pools.iter().all(Pool::is_enabled));
    assert_eq!(cluster.problems(), Vec::<String>::new());
    assert_eq!(cluster.allocator().addresses_of("net.a").unwrap(), [net(&address).addr()]);
}

#[test]
fn a_split_that_was_interrupted_after_the_deletion_is_finished() {
    let part = |number: u8| pool(&format!("split-pods-{number}"), &format!("10.0.0.{}/29", number * 8), 30);
    let cluster = Cluster::new(&[part(0).disabled(), part(1).disabled()]);
    let resume = |name: &str, parts| {
        cluster.allocator().resume_split(&cluster.rules().pools, name, parts).unwrap().map(|made| made.len())
    };
    assert_eq!((resume("other", 2), resume("pods", 4)), (None, None), "another split");
    assert_eq!(resume("pods", 2), Some(2));
    assert!(cluster.rules().pools.len() == 2 && cluster.rules().pools.iter().all(Pool::is_enabled));
    assert_eq!(resume("pods", 2), None, "it is finished");
}

#[test]
fn blocks_of_another_size_are_not_overlapped() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 29)]);
    cluster.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.4-30",
        r#"{"cidr":"10.0.0.4/30","affinity":"host:old","allocations":[null,null,null,0],"unallocated":[0,1,2],"attributes":[{"handle_id":"h"}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}"#,
    );
    let address = cluster.one("node1", "net.a");
    assert_eq!(net(&address).trunc(), net("10.0.0.8/29"));
    let refused = cluster.allocator().assign_address(
        &cluster.rules(),
        &request("node1", "net.b"),
        "10.0.0.1".parse().unwrap(),
    );
    assert_eq!(refused, Err(Error::Overlap { block: net("10.0.0.0/29"), other: net("10.0.0.4/30") }));
}

#[test]
fn inconsistencies_are_found_and_repaired() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 30)]);
    let address = net(&cluster.one("node1", "net.a"));
    cluster.put(
        "/calico/ipam/v2/handle/net.orphan",
        &format!(r#"{{"block":{{"{}":2,"10.7.0.0/30":1}},"deleted":false}}"#, address.trunc()),
    );
    cluster
        .put("/calico/ipam/v2/host/node2/ipv4/block/10.0.0.0-30", r#"{"state":"pending","deleted":false}"#);
    cluster.put("/calico/ipam/v2/host/node9", "another record of Calico");
    cluster.put("/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-30", "nonsense");
    let handle = cluster.store.get("/calico/ipam/v2/handle/net.a").unwrap().unwrap();
    cluster.store.delete(&handle.key, handle.revision).unwrap();
    let report = cluster.allocator().check(&cluster.rules()).unwrap();
    assert_eq!(report.problems.len(), 5, "{:?}", cluster.problems());
    let repaired =
        report.problems.iter().filter(|problem| cluster.allocator().repair(problem).unwrap()).count();
    assert_eq!(repaired, 4);
    let left = cluster.allocator().check(&cluster.rules()).unwrap().problems;
    assert!(matches!(&left[..], [Problem::Malformed { .. }]), "{left:?}");
    assert_eq!(
        cluster.allocator().addresses_of("net.a").unwrap(),
        [address.addr()],
        "the handle is repaired"
    );
}

#[test]
fn records_marked_as_deleted_are_ignored() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/32", 32)]);
    cluster.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-32",
        r#"{"cidr":"10.0.0.0/32","affinity":"host:old","allocations":[0],"unallocated":[],"attributes":[{}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":true}"#,
    );
    let ip = "10.0.0.0".parse().unwrap();
    let given = cluster.allocator().assign_address(&cluster.rules(), &request("node1", "net.a"), ip);
    assert_eq!(given, Ok(net("10.0.0.0/32")));
}

#[test]
fn invalid_settings_are_not_written() {
    let cluster = Cluster::new(&[]);
    let refused = cluster.allocator().configure(|config| config.auto_allocate_blocks = false).unwrap_err();
    assert!(matches!(refused, Error::Settings { .. }));
    assert_eq!(cluster.store.get("/calico/ipam/v2/config").unwrap(), None);
    cluster.configure(|config| config.ip_cooldown_seconds = 5);
    let written = cluster.store.get("/calico/ipam/v2/config").unwrap().unwrap().value;
    assert_eq!(written, br#"{"auto_allocate_blocks":true,"ipCooldownSeconds":5}"#);
}

#[test]
fn an_adopted_address_is_recorded_once_and_not_assigned_again() {
    let cluster = Cluster::new(&[pool("pods", "10.0.0.0/28", 30)]);
    let (allocator, rules) = (cluster.allocator(), cluster.rules());
    let (a, ip) = (request("node1", "net.a"), "10.0.0.1".parse().unwrap());
    assert_eq!(allocator.check_adopt(&rules, &a, ip), Ok(AdoptOutcome::Recorded));
    assert_eq!(cluster.store.list("/calico/ipam/").unwrap(), [], "the check changes nothing");
    assert_eq!(allocator.adopt(&rules, &a, ip), Ok(AdoptOutcome::Recorded));
    assert_eq!(allocator.adopt(&rules, &a, ip), Ok(AdoptOutcome::AlreadyRecorded), "adoption is idempotent");
    assert_eq!(allocator.addresses_of("net.a").unwrap(), [ip]);
    let taken = allocator.adopt(&rules, &request("node1", "net.b"), ip).unwrap_err().to_string();
    assert!(taken.ends_with("10.0.0.1 belongs to net.a"), "{taken}");
    let outside = allocator.check_adopt(&rules, &a, "192.0.2.1".parse().unwrap());
    assert!(matches!(outside, Err(Error::OutsideOfPools { .. })), "{outside:?}");
    cluster.configure(|config| config.strict_affinity = true);
    let foreign =
        allocator.check_adopt(&cluster.rules(), &request("node2", "net.c"), "10.0.0.2".parse().unwrap());
    assert!(matches!(foreign, Err(Error::NotOwner { .. })), "{foreign:?}");
    assert_eq!(cluster.problems(), Vec::<String>::new());
}

#[test]
fn a_transfer_refills_the_warm_pool_from_the_nodes_own_block_only() {
    let cluster = Cluster::new(&[pool("pods", "10.244.0.0/29", 30)]);
    let warm_pool = Handle::for_warm_pool("node1");
    let requests = [request("node1", &warm_pool)];
    let transfer = |address: &str, handle: &str| {
        let transfer =
            Transfer { address: net(address), handle: handle.into(), attributes: BTreeMap::default() };
        let rules = cluster.rules();
        let refill = Some(Refill { rules: &rules, requests: &requests });
        let outcome = cluster.allocator().transfer(&warm_pool, &[transfer], refill).unwrap();
        (outcome.refilled, outcome.lost.len())
    };
    let count = || {
        let handles = cluster.allocator().handles().unwrap();
        let find = |id: &str| handles.iter().find(|(one, _)| one == id).map(|(_, handle)| handle.clone());
        find(&warm_pool).map_or(0, |handle| handle.blocks().map(|(_, count)| count).sum())
    };
    let own = cluster.one("node1", &warm_pool);
    assert_eq!(own, "10.244.0.0/30");
    assert_eq!(transfer(&own, "net.a"), (vec![net("10.244.0.1/30")], 0));
    assert_eq!(transfer("10.244.0.1/30", "net.b"), (vec![net("10.244.0.2/30")], 0));
    // The same again: the pod has it, and nothing is taken.
    assert_eq!(transfer("10.244.0.1/30", "net.b"), (Vec::new(), 0));
    // The block is full, so the warm pool's count shrinks.
    assert_eq!(transfer("10.244.0.2/30", "net.c"), (vec![net("10.244.0.3/30")], 0));
    assert_eq!(count(), 1);
    assert_eq!(transfer("10.244.0.3/30", "net.d"), (Vec::new(), 0));
    assert_eq!(count(), 0);
    // A borrowed address comes from another node's block.
    cluster.one("node2", "net.e");
    let borrowed = request("node1", &warm_pool);
    let borrowed = cluster.assign(&borrowed).unwrap().remove(0);
    assert_eq!(borrowed, "10.244.0.5/30");
    assert_eq!(transfer(&borrowed, "net.f"), (Vec::new(), 0));
    assert_eq!(cluster.problems(), Vec::<String>::new());
}

#[test]
fn a_lost_transfer_leaves_no_handle() {
    let cluster = Cluster::new(&[pool("pods", "10.244.0.0/29", 30)]);
    let warm_pool = Handle::for_warm_pool("node1");
    let (warm, other) = (cluster.one("node1", &warm_pool), cluster.one("node1", "net.other"));
    let transfers = [(&warm, "net.a"), (&other, "net.lost")].map(|(address, handle)| Transfer {
        address: net(address),
        handle: handle.into(),
        attributes: BTreeMap::default(),
    });
    let outcome = cluster.allocator().transfer(&warm_pool, &transfers, None).unwrap();
    assert_eq!(outcome.lost, transfers[1..]);
    let handles: Vec<String> =
        cluster.allocator().handles().unwrap().into_iter().map(|(handle, _)| handle).collect();
    assert_eq!(handles, ["net.a", "net.other"]);
    assert_eq!(cluster.problems(), Vec::<String>::new());
}
