//! `podwire agent calico` on three nodes: pods are routed, and their addresses come from blocks in one store.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use podwire_tests::{needs, podwire};
use serde_json::{json, Value};

use crate::stage::{net_conf, Stage, Store};

/// A pool: its name, its CIDR and the flags of `podwire ipam pool` that select the encapsulation.
pub type Pool<'a> = (&'a str, &'a str, &'a str);

pub const DUAL: [Pool<'_>; 2] =
    [("v4", "10.244.0.0/16", "--vxlan always"), ("v6", "fd44:244::/112", "--vxlan always")];

/// Two nodes on one link, the third behind a router.
const LINKS: [u8; 3] = [10, 10, 20];

/// The flags that select the store.
pub fn store(stage: &Stage) -> String {
    match stage.store {
        Store::Etcd => "http://192.168.10.1:2379".into(),
        _ => stage.folder.join("ipam.db").display().to_string(),
    }
}

/// Runs `podwire ipam …` on the router and returns its output.
#[track_caller]
pub fn ipam(stage: &Stage, words: &str) -> String {
    stage.router.sh(&format!("{} ipam {words} --store {}", podwire(), store(stage)))
}

/// A store with pools, without agents.
pub fn stage(kind: Store, links: [u8; 3], pools: &[Pool<'_>]) -> Stage {
    let stage = Stage::on_links(kind, &net_conf(json!({"Type": "vxlan"})), links);
    for (name, cidr, flags) in pools {
        ipam(&stage, &format!("pool {name} {cidr} {flags}"));
    }
    stage
}

pub fn start(stage: &mut Stage, number: u8, flags: &[&str]) {
    start_behind(stage, number, &[], flags);
}

fn start_behind(stage: &mut Stage, number: u8, wrapper: &[&str], flags: &[&str]) {
    let (store, name) = (store(stage), format!("n{number}"));
    let warm: &[&str] = if flags.contains(&"--warm-addresses") { &[] } else { &["--warm-addresses", "4"] };
    let words = ["agent", "calico", "--store", &store, "--node", &name, "--healthz-port", "8081"];
    stage.start_behind(number, wrapper, &words, &[flags, warm].concat());
}

/// The conflist of an operator.
fn write_network(stage: &Stage, number: u8, families: usize) {
    let kind = if stage.store == Store::Etcd { "etcdv3" } else { "sqlite" };
    let plugin = json!({
        "type": "calico", "nodename": format!("n{number}"), "datastore_type": kind,
        "etcd_endpoints": store(stage), "sqlite_path": store(stage),
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": (families == 2).to_string()},
    });
    let list = json!({"cniVersion": "1.0.0", "name": "cbr0", "plugins": [plugin]});
    stage.node(number).write("/run/cni-conf/10-calico.conflist", &list.to_string());
}

pub fn is_ready(stage: &Stage, number: u8) -> bool {
    let status = stage.status(number);
    status["phase"] == "ready" && status["addresses"]["warmPool"].as_u64() > Some(0)
}

/// All nodes are ready, and each has a pod.
pub fn ready(kind: Store, links: [u8; 3], pools: &[Pool<'_>], flags: &[&str]) -> Stage {
    ready_behind(kind, links, pools, &[], flags)
}

/// The same, with a program that executes its arguments.
pub fn ready_behind(
    kind: Store,
    links: [u8; 3],
    pools: &[Pool<'_>],
    wrapper: &[&str],
    flags: &[&str],
) -> Stage {
    let mut stage = stage(kind, links, pools);
    (1..=3).for_each(|number| start_behind(&mut stage, number, wrapper, flags));
    for number in 1..=3 {
        stage.wait_until("an agent with a warm pool", |stage| is_ready(stage, number));
        write_network(&stage, number, pools.len());
        stage.add_pod(number, &format!("pod{number}"));
    }
    stage.wait_until("routes to both other nodes", |stage| have_routes(stage, pools.len()));
    stage
}

/// Whether every node has a block of each family and routes to the blocks of the others.
pub fn have_routes(stage: &Stage, families: usize) -> bool {
    let all: Vec<Value> = (1..=3).map(|number| stage.status(number)).collect();
    let own = |status: &Value| status["podCidrs"].as_array().map_or(0, Vec::len);
    let blocks: usize = all.iter().map(own).sum();
    all.iter().all(|status| {
        own(status) >= families
            && status["routes"].as_u64() >= Some((blocks - own(status)) as u64)
            && status["peers"] == 2
            && status["unreachable"] == json!([])
            && status["problems"] == json!([])
    })
}

fn routes(stage: &Stage, number: u8) -> Value {
    stage.node(number).json("ip -j route show proto 112")
}

/// The processes that have locks on a file.
fn lock_holders(file: &str) -> BTreeSet<u32> {
    let inode = std::fs::metadata(file).expect(file).ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").expect("/proc/locks");
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.get(5)?.rsplit(':').next()?;
        (found == inode).then(|| words[4].parse().expect("a process id"))
    };
    locks.lines().filter_map(holder).collect()
}

/// A process without locks does not have the file open for the others: the next one that closes it deletes the log, and
/// writes are lost.
#[test]
fn agents_keep_their_locks_on_the_sqlite_file() {
    let stage = ready(Store::Embedded, LINKS, &DUAL, &[]);
    let (file, log) = (store(&stage), format!("{}-wal", store(&stage)));
    let agents: BTreeSet<u32> =
        stage.nodes.iter().map(|node| node.agent.as_ref().expect("an agent").id()).collect();
    let holders = lock_holders(&file);
    assert!(agents.is_subset(&holders), "agents {agents:?}, locks {holders:?}");
    let inode = || std::fs::metadata(&log).expect(&log).ino();
    let before = inode();
    ipam(&stage, "show");
    assert_eq!(inode(), before, "the log was replaced");
}

#[test]
fn pods_are_routed_over_a_vxlan_as_calicos() {
    for kind in [Store::Embedded, Store::Etcd] {
        let stage = ready(kind, LINKS, &DUAL, &[]);
        stage.assert_model_holds();
        let node = stage.node(1);
        let link = &node.json("ip -j -d link show vxlan.calico")[0];
        let data = &link["linkinfo"]["info_data"];
        assert_eq!((&data["id"], &data["port"]), (&json!(4096), &json!(4789)), "{link}");
        assert_eq!(link["address"], calicos_mac("n1"), "{kind:?}");
        assert_eq!(node.sh("bridge fdb show dev vxlan.calico | grep -c 'dst 192.168'").trim(), "2");
        let routes = routes(&stage, 1);
        let blocks = || routes.as_array().into_iter().flatten();
        assert_eq!(blocks().filter(|route| route["dev"] == "vxlan.calico").count(), 2, "{routes:#}");
        assert_eq!(blocks().filter(|route| route["type"] == "blackhole").count(), 1, "{routes:#}");
    }
}

/// The MAC address that calico-node computes from a node's name.
fn calicos_mac(node: &str) -> String {
    let script = "import hashlib,sys; print(':'.join(['66']+['%02x'%b for b in hashlib.sha1(sys.argv[1].encode()).digest()[:5]]))";
    let said = std::process::Command::new("python3").args(["-c", script, node]).output().expect("python3");
    String::from_utf8(said.stdout).expect("text").trim().into()
}

#[test]
fn across_subnets_only_the_tunnel_is_used() {
    let pools = [("v4", "10.244.0.0/16", "--vxlan cross-subnet --nat-outgoing")];
    let stage = ready(Store::Embedded, LINKS, &pools, &[]);
    stage.assert_model_holds_in(1);
    let routes = routes(&stage, 1);
    let over =
        |device: &str| routes.as_array().into_iter().flatten().filter(|route| route["dev"] == device).count();
    assert_eq!((over("eth0"), over("vxlan.calico")), (1, 1), "{routes:#}");
    // The router is outside of the pod network: it has no route to pods, and answers because it sees the node's
    // address.
    stage.router.sh("ip address add 203.0.113.7/32 dev lo");
    stage.node(1).sh("ip netns exec pod1 ping -c 1 -W 5 203.0.113.7");
}

#[test]
fn pods_are_routed_over_ipip() {
    if !needs("ipip") {
        return;
    }
    let pools = [("v4", "10.244.0.0/16", "--ipip cross-subnet")];
    let stage = ready(Store::Embedded, LINKS, &pools, &[]);
    stage.assert_model_holds_in(1);
    let routes = routes(&stage, 1);
    let over = |device: &str| {
        let all = routes.as_array().into_iter().flatten();
        all.filter(|route| route["dev"] == device).map(|route| route["gateway"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(over("eth0"), ["192.168.10.12"], "no tunnel on the same link: {routes:#}");
    assert_eq!(over("podwire.ipip"), ["192.168.20.13"], "{routes:#}");
    stage.node(1).sh("ip link delete podwire.ipip");
    stage.wait_until("the tunnel is back with its route", |stage| {
        stage.node(1).sh("ip route show proto 112").contains("dev podwire.ipip")
    });
    stage.assert_model_holds_in(1);
}

#[test]
fn deleted_objects_are_restored_and_a_killed_agent_loses_no_packet() {
    let mut stage = ready(Store::Embedded, LINKS, &DUAL, &[]);
    let before = stage
        .node(1)
        .sh("ip route show proto 112; ip -6 route show proto 112; nft list table inet podwire_overlay");
    for damage in ["ip link delete vxlan.calico", "ip route flush proto 112", "nft flush ruleset"] {
        stage.node(1).sh(damage);
        stage.wait_until(damage, |stage| {
            stage.node(1).sh("ip route show proto 112; ip -6 route show proto 112; nft list table inet podwire_overlay 2>/dev/null || true") == before
        });
    }
    stage.assert_model_holds();
    let lost = stage.lost_while(1, 3, |stage| {
        for _ in 0..3 {
            stage.kill_agent(1);
            start(stage, 1, &[]);
            stage.wait_until("the agent is ready again", |stage| is_ready(stage, 1));
        }
    });
    assert!(lost.is_empty(), "{lost:?}");
    stage.assert_model_holds();
}

#[test]
fn without_the_store_routes_stay_and_new_pods_are_synced_later() {
    let mut stage = ready(Store::Etcd, LINKS, &DUAL, &[]);
    stage.etcd = None;
    stage.wait_until("the failing store is reported", |stage| {
        stage.status(1)["problems"].to_string().contains("store: ")
    });
    stage.assert_model_holds();
    // The warm pool was filled before.
    stage.add_pod(1, "late");
    stage.assert_model_holds();
    stage.start_etcd();
    stage.wait_until("the store has it", |stage| {
        let status = stage.status(1);
        status["addresses"]["unsynced"] == 0 && status["problems"] == json!([])
    });
    let address = stage.address(1, "late");
    assert!(ipam(&stage, &format!("show --ip {address}")).contains("n1"));
    let check = ipam(&stage, "check");
    assert!(check.contains("no problems"), "{check}");
}

#[test]
fn a_borrowed_address_has_its_own_route() {
    // Two blocks for three nodes: the last node has no warm pool, and its pod borrows an address.
    let pools = [("v4", "10.244.0.0/28", "--block-size 29")];
    let mut stage = stage(Store::Embedded, [10; 3], &pools);
    for number in [1, 2] {
        start(&mut stage, number, &["--warm-addresses", "1"]);
        stage.wait_until("a warm pool", |stage| is_ready(stage, number));
    }
    start(&mut stage, 3, &["--warm-addresses", "1"]);
    stage.wait_until("routes without a warm pool", |stage| {
        let status = stage.status(3);
        status["phase"] == "ready" && status["addresses"]["warmPool"] == 0
    });
    for number in 1..=3 {
        write_network(&stage, number, 1);
        stage.add_pod(number, &format!("pod{number}"));
    }
    stage.wait_until("routes", |stage| {
        let mut all = (1..=3).map(|number| stage.status(number));
        all.all(|status| status["unreachable"] == json!([]) && status["peers"] == 2)
    });
    let borrowed = stage.address(3, "pod3");
    stage.wait_until("a route to one address", |stage| {
        let has_route =
            |number| stage.node(number).sh("ip route show proto 112").contains(&format!("{borrowed} via"));
        has_route(1) && has_route(2)
    });
    stage.assert_model_holds_in(1);
}
