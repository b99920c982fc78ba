use ipnet::IpNet;

use super::*;
use crate::store::{Memory, Store};
use crate::timestamp::Timestamp;
use crate::{AffinityOwner, Allocator, Error, IpFamily, Node, Pool, Request, Tunnel, Use};

const GRACE: Duration = Duration::from_secs(900);

/// A cluster with a clock.
struct Cluster {
    store: Memory,
    inventory: Inventory,
    collector: Collector,
    now: Duration,
}

impl Cluster {
    fn new(nodes: &[&str]) -> Cluster {
        let store = Memory::new();
        let pool = Pool::new("pods", "10.0.0.0/24".parse().unwrap()).with_block_size(28);
        allocator(&store).add_pool(&pool).unwrap();
        let nodes = nodes.iter().map(ToString::to_string).collect();
        let inventory = Inventory { nodes, ..Inventory::default() };
        Cluster { store, inventory, collector: Collector::new(GRACE), now: Duration::ZERO }
    }

    /// Assigns an address to a pod, or to a handle without a pod.
    fn assign(&self, node: &str, handle: &str, pod: &str) -> IpAddr {
        let mut request = Request::new(AffinityOwner::host(node), handle);
        if !pod.is_empty() {
            request.attributes.insert("namespace".into(), "shop".into());
            request.attributes.insert("pod".into(), pod.into());
        }
        allocator(&self.store).assign(&self.rules(), &request).unwrap().addresses[0].addr()
    }

    fn run(&mut self, node: &str, pod: &str, ips: &[IpAddr]) {
        let is = Pod { node: node.into(), ips: ips.to_vec(), is_finished: false };
        self.inventory.pods.insert(("shop".into(), pod.into()), is);
    }

    fn rules(&self) -> Rules {
        Rules::load(&self.store).unwrap()
    }

    fn find_garbage(&mut self) -> Garbage {
        let snapshot = allocator(&self.store).snapshot().unwrap();
        self.collector.find_garbage(self.now, &snapshot, &Rules::load(&self.store).unwrap(), &self.inventory)
    }

    /// Observes twice with a grace period in between, and collects. Returns the released handles.
    fn collect(&mut self) -> Vec<String> {
        assert_eq!(self.find_garbage().leaks, [], "one observation is not enough");
        self.now += GRACE;
        let garbage = self.find_garbage();
        let allocator = allocator(&self.store);
        let collected = allocator.collect(&self.rules(), &garbage, |_| true, || true).unwrap();
        assert_eq!(collected.errors, []);
        collected.leaks.into_iter().map(|leak| leak.handle).collect()
    }
}

fn allocator(store: &Memory) -> Allocator<'_> {
    Allocator::new(store, || Timestamp::from_unix_nanos(1_787_405_600_000_000_000))
}

#[test]
fn a_leak_is_confirmed_by_every_observation_of_the_grace_period() {
    let mut cluster = Cluster::new(&["n1"]);
    let ip = cluster.assign("n1", "net.a", "web");
    assert_eq!(cluster.find_garbage().leaks, []);
    cluster.now += GRACE / 2;
    let garbage = cluster.find_garbage();
    assert_eq!((garbage.leaks.len(), garbage.suspects), (0, 1));
    cluster.run("n1", "web", &[ip]);
    cluster.now += GRACE / 2;
    assert_eq!(cluster.find_garbage().suspects, 0, "the pod exists again");
    cluster.inventory.pods.clear();
    cluster.now += GRACE;
    assert_eq!(cluster.find_garbage().leaks, [], "the grace period starts again");
    cluster.now += GRACE;
    assert_eq!(cluster.find_garbage().leaks.len(), 1);
}

#[test]
fn addresses_of_deleted_finished_moved_and_readdressed_pods_are_leaked() {
    let mut cluster = Cluster::new(&["n1", "n2"]);
    let keeps = cluster.assign("n1", "net.keeps", "keeps");
    cluster.run("n1", "keeps", &[keeps]);
    cluster.assign("n1", "net.starts", "starts");
    cluster.run("n1", "starts", &[]);
    cluster.assign("n1", "net.gone", "gone");
    cluster.assign("n1", "net.over", "over");
    cluster.run("n1", "over", &[]);
    cluster.inventory.pods.get_mut(&("shop".into(), "over".into())).unwrap().is_finished = true;
    let moved = cluster.assign("n1", "net.moved", "moved");
    cluster.run("n2", "moved", &[moved]);
    cluster.assign("n1", "net.before", "again");
    let again = cluster.assign("n1", "net.again", "again");
    cluster.run("n1", "again", &[again]);
    assert_eq!(cluster.collect(), ["net.before", "net.gone", "net.moved", "net.over"]);
    let left: Vec<String> =
        allocator(&cluster.store).handles().unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, ["net.again", "net.keeps", "net.starts"]);
}

#[test]
fn addresses_of_another_primary_network_are_ignored() {
    let mut cluster = Cluster::new(&["n1"]);
    cluster.assign("n1", "storage.c1", "web");
    cluster.run("n1", "web", &["192.0.2.7".parse().unwrap()]);
    let rules = Rules::load(&cluster.store).unwrap();
    cluster.inventory.pods.values_mut().for_each(|pod| pod.retain_pool_addresses(&rules));
    assert!(cluster.collect().is_empty());
}

#[test]
fn a_second_interface_of_a_running_container_is_not_leaked() {
    let mut cluster = Cluster::new(&["n1"]);
    let first = cluster.assign("n1", "net.c1", "web");
    cluster.assign("n1", "storage.c1", "web");
    cluster.run("n1", "web", &[first]);
    assert_eq!(cluster.collect(), Vec::<String>::new());
}

#[test]
fn addresses_of_unknown_holders_stay() {
    let mut cluster = Cluster::new(&["n1"]);
    cluster.assign("n1", "openstack.7", "");
    let mut request = Request::new(AffinityOwner::host("n1"), "net.vm");
    for (key, value) in [("namespace", "shop"), ("pod", "launcher"), ("vmi-name", "database")] {
        request.attributes.insert(key.into(), value.into());
    }
    allocator(&cluster.store).assign(&cluster.rules(), &request).unwrap();
    assert_eq!(cluster.collect(), Vec::<String>::new());
}

#[test]
fn warm_pools_and_tunnel_addresses_are_released_with_their_node() {
    let mut cluster = Cluster::new(&["n1", "n2"]);
    for node in ["n1", "n2"] {
        cluster.assign(node, &Handle::for_warm_pool(node), "");
        let mut tunnel = Request::new(AffinityOwner::host(node), format!("vxlan-tunnel-addr-{node}"));
        tunnel.intended_use = Use::Tunnel;
        tunnel.attributes.insert("type".into(), "vxlanTunnelAddress".into());
        allocator(&cluster.store).assign(&cluster.rules(), &tunnel).unwrap();
    }
    assert_eq!(cluster.collect(), Vec::<String>::new());
    cluster.inventory.nodes.remove("n2");
    assert_eq!(cluster.collect(), ["podwire-warm-n2", "vxlan-tunnel-addr-n2"]);
    let claims = allocator(&cluster.store).affinities(None).unwrap();
    assert!(claims.iter().all(|(owner, ..)| owner.name() == "n1"), "{claims:?}");
    assert_eq!(allocator(&cluster.store).check(&cluster.rules()).unwrap().problems, []);
}

#[test]
fn pods_of_a_deleted_node_are_released_at_the_second_observation_and_its_blocks_later() {
    let mut cluster = Cluster::new(&["n1"]);
    cluster.assign("n2", "net.a", "web");
    assert_eq!(cluster.find_garbage().leaks, []);
    cluster.now += Duration::from_secs(1);
    let garbage = cluster.find_garbage();
    assert_eq!((garbage.leaks.len(), garbage.nodes.len()), (1, 0));
    // The pod object exists longer than the node object.
    cluster.run("n2", "web", &[garbage.leaks[0].ip]);
    cluster.now += GRACE;
    let garbage = cluster.find_garbage();
    assert_eq!((garbage.leaks.len(), garbage.nodes), (0, vec!["n2".to_owned()]));
    let collected = allocator(&cluster.store).collect(
        &cluster.rules(),
        &Garbage { nodes: vec!["n2".into()], ..Garbage::default() },
        |_| true,
        || true,
    );
    assert_eq!(collected.unwrap().nodes, Vec::<String>::new(), "a block with a pod stays");
}

#[test]
fn an_inventory_without_nodes_is_not_trusted() {
    let mut cluster = Cluster::new(&[]);
    cluster.assign("n1", "net.a", "web");
    assert_eq!(cluster.collect(), Vec::<String>::new());
}

#[test]
fn one_address_in_use_keeps_all_addresses_of_a_handle() {
    let mut cluster = Cluster::new(&["n1"]);
    cluster.assign("n1", "net.a", "gone");
    let ip = cluster.assign("n1", "net.a", "web");
    cluster.run("n1", "web", &[ip]);
    assert_eq!(cluster.collect(), Vec::<String>::new());
}

#[test]
fn empty_handles_and_stale_affinities_are_deleted() {
    let mut cluster = Cluster::new(&["n1", "n2"]);
    let put = |key: &str, value: &str| cluster.store.create(key, value.as_bytes()).unwrap();
    put("/calico/ipam/v2/handle/net.idle", r#"{"block":{},"deleted":false}"#);
    put("/calico/ipam/v2/handle/net.lies", r#"{"block":{"10.0.0.16/28":2},"deleted":false}"#);
    put("/calico/ipam/v2/handle/net.broken", "what?");
    put("/calico/ipam/v2/host/n2/ipv4/block/10.0.0.32-28", r#"{"state":"confirmed","deleted":false}"#);
    put("/calico/ipam/v2/host/gone/ipv4/block/10.0.0.48-28", r#"{"state":"pending","deleted":false}"#);
    cluster.collect();
    let left: Vec<String> = cluster.store.keys("/calico/ipam/").unwrap();
    assert_eq!(left, ["/calico/ipam/v2/handle/net.broken"], "malformed records are kept");
    let problems = allocator(&cluster.store).check(&cluster.rules()).unwrap().problems;
    assert!(
        matches!(&problems[..], [Problem::Malformed { key, .. }] if key.ends_with("net.broken")),
        "{problems:?}"
    );
}

#[test]
fn a_pod_that_returns_at_the_last_moment_keeps_its_address() {
    let mut cluster = Cluster::new(&["n1"]);
    let ip = cluster.assign("n1", "net.a", "web");
    cluster.find_garbage();
    cluster.now += GRACE;
    let garbage = cluster.find_garbage();
    let allocator = allocator(&cluster.store);
    let kept = allocator.collect(&cluster.rules(), &garbage, |_| false, || true).unwrap();
    assert_eq!(kept.leaks, []);
    let stopped = allocator.collect(&cluster.rules(), &garbage, |_| true, || false).unwrap();
    assert_eq!(stopped.leaks, []);
    // The same container gets the same address again: the sequence number differs.
    allocator.release_handle(&cluster.rules(), "net.a").unwrap();
    allocator
        .assign_address(&cluster.rules(), &Request::new(AffinityOwner::host("n1"), "net.a"), ip)
        .unwrap();
    let stale = allocator.collect(&cluster.rules(), &garbage, |_| true, || true).unwrap();
    assert!(matches!(&stale.errors[..], [Error::Stale { .. }]), "{stale:?}");
    assert_eq!(allocator.addresses_of("net.a").unwrap(), [ip]);
}

#[test]
fn a_node_can_be_released_by_hand() {
    let cluster = Cluster::new(&["n1"]);
    cluster.assign("n1", "net.a", "web");
    cluster.assign("n2", "net.b", "web");
    cluster.assign("n2", &Handle::for_warm_pool("n2"), "");
    let container = Request {
        attributes: [("node".to_owned(), "n2".to_owned())].into(),
        ..Request::new(AffinityOwner::host("n2"), "net.container")
    };
    allocator(&cluster.store).assign(&cluster.rules(), &container).unwrap();
    let tunnel = Tunnel::Vxlan(IpFamily::V4);
    let address: IpNet = "192.168.0.2/24".parse().unwrap();
    let register = |node: &mut Node| {
        node.set_address(address);
        node.set_tunnel(tunnel, "10.0.0.9".parse().ok());
    };
    Node::update(&cluster.store, "n2", register).unwrap();
    let allocator = allocator(&cluster.store);
    let collected = allocator.release_node(&cluster.rules(), "n2").unwrap();
    let record = cluster.store.get(&Node::key("n2")).unwrap().unwrap();
    let record = Node::parse(&record.key, &record.value).unwrap();
    assert_eq!((record.tunnel(tunnel), record.address(IpFamily::V4)), (None, Some(address)));
    assert_eq!((collected.leaks.len(), collected.nodes), (3, vec!["n2".to_owned()]));
    let left = cluster.store.keys("/calico/ipam/").unwrap();
    assert!(
        left.iter().all(|key| !key.contains("n2") && !key.contains("net.b") && !key.contains("container")),
        "{left:?}"
    );
    assert_eq!(allocator.addresses_of("net.a").unwrap().len(), 1);
    // No object is created.
    allocator.release_node(&cluster.rules(), "n3").unwrap();
    assert!(cluster.store.get(&Node::key("n3")).unwrap().is_none());
}

#[test]
fn an_object_without_its_kubernetes_node_is_an_orphan() {
    let mut cluster = Cluster::new(&["n1"]);
    for (name, kubernetes_name) in [("n1", true), ("n2", true), ("plain", false)] {
        let set_name = |node: &mut Node| {
            if kubernetes_name {
                node.set_kubernetes_name()
            }
        };
        assert!(Node::update(&cluster.store, name, set_name).unwrap());
        cluster.assign(name, &Handle::for_warm_pool(name), "");
    }
    cluster.store.create(&Node::key("odd"), b"nonsense").unwrap();
    // A Kubernetes node with another name in Calico.
    cluster.store.create(&Node::key("short"), SHORT.as_bytes()).unwrap();
    let ip = cluster.assign("short", "net.short", "web");
    cluster.run("n1", "web", &[ip]);
    // An inventory without Kubernetes nodes is not trusted.
    let mut blank = Inventory::default();
    blank.add_node_objects(Node::list(&cluster.store).unwrap());
    assert_eq!((blank.nodes.len(), blank.orphans.len()), (0, 0));
    cluster.inventory.add_node_objects(Node::list(&cluster.store).unwrap());
    let existing = ["n1", "odd", "plain", "short"].map(String::from).into();
    assert_eq!(cluster.inventory.nodes, existing, "objects without a Kubernetes name count as existing");
    let n2 = ("n2".to_owned(), "n2".to_owned());
    assert_eq!(cluster.inventory.orphans, [n2.clone()].into());
    assert_eq!(cluster.find_garbage().orphans, [], "one observation is not enough");
    let delete = |cluster: &Cluster, node| allocator(&cluster.store).delete_node_object("n2", node).unwrap();
    assert!(!delete(&cluster, "n2"), "it has a block");
    assert_eq!(cluster.collect(), [Handle::for_warm_pool("n2")]);
    cluster.now += GRACE;
    assert_eq!(cluster.find_garbage().orphans, [n2]);
    assert!(!delete(&cluster, "another"), "another Kubernetes name");
    assert!(delete(&cluster, "n2") && !delete(&cluster, "n2"));
    let left: Vec<String> = Node::list(&cluster.store).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["n1", "odd", "plain", "short"]);
}

const SHORT: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"short"},"spec":{"orchRefs":[{"nodeName":"n1","orchestrator":"k8s"}]}}"#;
