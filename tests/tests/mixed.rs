//! Go's and Podwire's plugins in one chain and on one pool of addresses.

use std::collections::{BTreeSet, HashSet};
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};

use podwire_tests::{assert_same, ours, podwire, Chain, Invocation, Node, Pod, GO};
use serde_json::{json, Value};

/// A directory with one plugin, Podwire's or Go's, which comes before another directory in `CNI_PATH`.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, plugin: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for plugins");
        symlink(plugin, folder.join(Path::new(plugin).file_name().expect("a plugin")))
            .expect("a link to a plugin");
        Folder(folder)
    }

    fn before(&self, others: &str) -> String {
        format!("{}:{others}", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pool() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]})
}

/// Attaches two pods, checks that they reach each other, runs CHECK, and detaches them: nothing is left.
fn attach_and_detach(path: &str, main: Value) {
    let node = Node::new();
    let warm = Chain::new(path, "pods", &[main]);
    let first = node.pod("first");
    let result = warm.add(&node, &first);
    warm.del(&node, &first, Some(&result));
    let before = node.leftovers();
    let pods = [node.pod("one"), node.pod("other")];
    let results: Vec<Value> = pods.iter().map(|pod| warm.add(&node, pod)).collect();
    assert_eq!(
        (&results[0]["ips"][0]["address"], &results[1]["ips"][1]["address"]),
        (&json!("10.1.0.3/24"), &json!("fd00:1::4/64"))
    );
    assert!(node.pings(Some(&pods[0]), "10.1.0.4") && node.pings(Some(&pods[1]), "fd00:1::3"));
    for (pod, result) in pods.iter().zip(&results) {
        warm.check(&node, pod, result).unwrap_or_else(|failed| panic!("{}{}", failed.stdout, failed.stderr));
        warm.del(&node, pod, Some(result));
    }
    assert_same(&before, &node.leftovers(), path);
}

#[test]
fn gos_bridge_takes_addresses_from_our_host_local() {
    let folder = Folder::with("our-ipam", &format!("{}/host-local", ours()));
    attach_and_detach(
        &folder.before(GO),
        json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool()}),
    );
    attach_and_detach(&folder.before(GO), json!({"type": "ptp", "ipam": pool()}));
}

#[test]
fn our_bridge_takes_addresses_from_gos_host_local() {
    let folder = Folder::with("go-ipam", &format!("{GO}/host-local"));
    attach_and_detach(
        &folder.before(&ours()),
        json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool()}),
    );
    attach_and_detach(&folder.before(&ours()), json!({"type": "ptp", "ipam": pool()}));
}

#[test]
fn our_bridge_gives_addresses_of_gos_host_local_back_when_it_fails() {
    let folder = Folder::with("go-ipam-failing", &format!("{GO}/host-local"));
    let node = Node::new();
    node.sh("ip link add br0 type bridge; ip address add 10.9.0.1/16 dev br0; ip link set br0 up");
    let before = node.leftovers();
    let pod = node.pod("one");
    let main = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool()});
    let failed = Chain::new(&folder.before(&ours()), "pods", &[main]).try_add(&node, &pod).unwrap_err();
    assert!(failed.error().1.contains("already has an IP address"), "{}", failed.stdout);
    assert_same(&before, &node.leftovers(), "after a failed ADD");
}

/// Chained plugins of either kind come after a main plugin of the other.
#[test]
fn chained_plugins_follow_a_main_plugin_of_the_other_kind() {
    for (main, others) in [(GO.to_string(), ours()), (ours(), GO.to_string())] {
        let folder = Folder::with("main", &format!("{main}/bridge"));
        let node = Node::new();
        let outside = node.neighbour("outside", "192.0.2", "2001:db8:a");
        let pod = node.pod("one");
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
        let plugins = [
            json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": pool()}),
            json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}),
            json!({"type": "bandwidth", "runtimeConfig": {"bandwidth": limits}}),
            json!({"type": "firewall", "backend": "iptables"}),
            json!({"type": "tuning", "mtu": 1400}),
        ];
        let chain = Chain::new(&folder.before(&others), "pods", &plugins);
        let result = chain.add(&node, &pod);
        let _listen = [node.listen(Some(&pod), "tcp/80"), node.listen(Some(&outside), "tcp/80")];
        assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8080"), "one 192.0.2.2", "{main}");
        assert_eq!(node.ask(Some(&pod), "192.0.2.2", "tcp/80"), "outside 192.0.2.1", "{main}");
        chain.del(&node, &pod, Some(&result));
        let left = node.leftovers();
        assert!(
            !left.contains("one") && !left.contains("bwp") && !left.contains("10.1.0.2"),
            "{main}:\n{left}"
        );
    }
}

/// host-local, Podwire's or Go's, called directly.
fn lease(node: &Node, path: &str, verb: &str, container: &str) -> podwire_tests::Output {
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.109"});
    let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "host-local", "ipam": ipam});
    let pod = Pod { name: container.into(), netns: format!("/run/netns/{container}") };
    Invocation::new(node, path, verb, &pod, &config).run()
}

fn leased(output: &podwire_tests::Output) -> Ipv4Addr {
    let result = output.result();
    let text = result["ips"][0]["address"].as_str().and_then(|text| text.split('/').next());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address: {result}"))
}

const MANY: usize = 64;

/// The calls with odd numbers use Go's plugin.
fn kind(n: usize) -> String {
    if n % 2 == 1 {
        GO.into()
    } else {
        ours()
    }
}

/// Runs `each` for all of MANY at once.
fn at_once<T: Send>(each: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(MANY);
    std::thread::scope(|scope| {
        let (start, each) = (&start, &each);
        let all: Vec<_> = (0..MANY)
            .map(|n| {
                scope.spawn(move || {
                    start.wait();
                    each(n)
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().expect("all succeed")).collect()
    })
}

fn entries(node: &Node) -> BTreeSet<String> {
    node.sh("ls /var/lib/cni/networks/pods | grep -v -e lock -e last_reserved_ip -e podwire || true")
        .lines()
        .map(str::to_string)
        .collect()
}

#[test]
fn both_kinds_of_host_local_share_a_pool_without_giving_an_address_twice() {
    let node = Node::new();
    let given = at_once(|n| leased(&lease(&node, &kind(n), "ADD", &format!("c{n}"))));
    assert_eq!(given.iter().collect::<HashSet<_>>().len(), MANY, "each has its own: {given:?}");
    let files: BTreeSet<String> = given.iter().map(Ipv4Addr::to_string).collect();
    assert_eq!(entries(&node), files, "and each has its file");
    // The pool has a hundred addresses and all were free: these are the first.
    assert_eq!(given.iter().max(), Some(&Ipv4Addr::new(10, 1, 0, 10 + MANY as u8 - 1)));
    // Each address is checked and released by the other plugin.
    at_once(|n| assert_eq!(lease(&node, &kind(n + 1), "CHECK", &format!("c{n}")).status, 0));
    at_once(|n| assert_eq!(lease(&node, &kind(n + 1), "DEL", &format!("c{n}")).status, 0));
    assert_eq!(entries(&node), BTreeSet::new(), "none is lost");
}

#[test]
fn both_plugins_allocate_and_release_addresses_at_the_same_time() {
    let node = Node::new();
    let held = Mutex::new(HashSet::new());
    at_once(|n| {
        for round in 0..2 {
            let (kind, container) = (kind(n + round), format!("c{n}-{round}"));
            let ip = leased(&lease(&node, &kind, "ADD", &container));
            assert!(held.lock().unwrap().insert(ip), "{ip} was given to {container} and another at once");
            held.lock().unwrap().remove(&ip);
            let given_back = lease(&node, &kind, "DEL", &container);
            assert_eq!(given_back.status, 0, "{}{}", given_back.stdout, given_back.stderr);
        }
    });
    assert_eq!(entries(&node), BTreeSet::new(), "none is lost");
    // The allocation continues after the last address, with either plugin.
    let last: Ipv4Addr = node.sh("cat /var/lib/cni/networks/pods/last_reserved_ip.0").parse().unwrap();
    let mut expected = last;
    for n in 0..6 {
        expected = if expected == Ipv4Addr::new(10, 1, 0, 109) {
            Ipv4Addr::new(10, 1, 0, 10)
        } else {
            (u32::from(expected) + 1).into()
        };
        assert_eq!(leased(&lease(&node, &kind(n), "ADD", &format!("next{n}"))), expected);
    }
}

#[test]
fn a_pool_that_one_kind_has_exhausted_is_exhausted_for_the_other() {
    let node = Node::new();
    at_once(|n| leased(&lease(&node, &kind(n), "ADD", &format!("c{n}"))));
    for n in MANY..100 {
        leased(&lease(&node, &kind(n), "ADD", &format!("c{n}")));
    }
    for path in [GO, &ours()] {
        let (_, text) = lease(&node, path, "ADD", "late").error();
        assert!(
            text.contains("no IP addresses available in range set: 10.1.0.10-10.1.0.109"),
            "{path}: {text}"
        );
    }
    // An address that one plugin releases can be allocated by the other.
    lease(&node, GO, "DEL", "c7").result();
    let free = leased(&lease(&node, &ours(), "ADD", "late"));
    lease(&node, &ours(), "DEL", "late").result();
    assert_eq!(leased(&lease(&node, GO, "ADD", "later")), free);
}

/// The network list of an administrator.
fn network(node: &Node, plugins: &Value) {
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins});
    node.write("/run/test/net.d/10-pods.conflist", &list.to_string());
}

/// Our runtime, with these plugins.
fn runtime(node: &Node, plugins: &str, verb: &str, rest: &str) -> String {
    let tool = podwire();
    node.sh(&format!(
        "{tool} --json cni {verb} pods {rest} --conf-dir /run/test/net.d --plugin-dir {plugins}"
    ))
}

#[test]
fn our_runtime_runs_gos_plugins_and_changes_to_ours_while_pods_run() {
    let node = Node::new();
    let outside = node.neighbour("outside", "192.0.2", "2001:db8:a");
    network(
        &node,
        &json!([
            {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": pool()},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "tuning", "mtu": 1400},
        ]),
    );
    let before = node.leftovers();
    let (go, ours) = (GO, ours());
    for (attached_by, detached_by) in [(go, go), (go, &ours), (&ours, &ours)] {
        let pod = node.pod("one");
        let result: Value =
            serde_json::from_str(&runtime(&node, attached_by, "add", "one --publish 8080:80")).unwrap();
        assert_eq!(result["interfaces"][2]["name"], "eth0", "{result}");
        {
            let _listens = node.listen(Some(&pod), "tcp/80");
            assert_eq!(node.ask(Some(&outside), "192.0.2.1", "tcp/8080"), "one 192.0.2.2", "{attached_by}");
        }
        // (CHECK of Go's portmap fails even for its own ADD with this iptables.)
        if detached_by == ours {
            runtime(&node, detached_by, "check", "one");
        }
        runtime(&node, detached_by, "del", "one");
        node.remove(&pod);
        let left = node.leftovers();
        let known = |line: &&str| !line.contains("CNI-HOSTPORT-") && !line.contains(" br0 ");
        let left: String = left.lines().filter(known).map(|line| format!("{line}\n")).collect();
        assert_same(&before, &left, &format!("{attached_by}, then {detached_by}"));
    }
}

/// A foreign IPAM plugin, as a script on the node. It records its DELs; the DEL of `pod9` takes as long as the test
/// needs.
const FOREIGN: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) echo "{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"10.1.0.${CNI_CONTAINERID#pod}/24\"}]}" ;;
DEL) echo "$CNI_CONTAINERID" >>/run/test/deleted
  [ "$CNI_CONTAINERID" != pod9 ] || { touch /run/test/waits; until [ -e /run/test/goes-on ]; do sleep 0.05; done; } ;;
esac
"#;

fn foreign(node: &Node) -> Chain {
    node.write("/run/test/bin/foreign", FOREIGN);
    node.sh("chmod 755 /run/test/bin/foreign");
    let bridge = json!({"type": "bridge", "bridge": "br0", "ipam": {"type": "foreign"}});
    let chain = Chain::new(&format!("/run/test/bin:{}", ours()), "pods", &[bridge]);
    Chain { version: "1.1.0".into(), ..chain }
}

/// GC of a plugin may take a long time before it searches for objects without a ledger file.
#[test]
fn a_pod_that_is_attached_while_gc_runs_is_not_affected() {
    let node = Node::new();
    let (chain, orphan, new) = (foreign(&node), node.pod("pod9"), node.pod("pod2"));
    chain.add(&node, &orphan);
    std::thread::scope(|scope| {
        let gc = scope.spawn(|| chain.gc(&node, &[]));
        node.sh("timeout 60 sh -c 'until [ -e /run/test/waits ]; do sleep 0.05; done'");
        let result = chain.add(&node, &new);
        node.sh("touch /run/test/goes-on");
        gc.join().expect("GC");
        assert!(!node.can("ip -n pod9 link show eth0"));
        chain.check(&node, &new, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
        chain.del(&node, &new, Some(&result));
    });
}

#[test]
fn an_address_that_cannot_be_parsed_is_released() {
    let node = Node::new();
    let (chain, pod) = (foreign(&node), node.pod("pod.none"));
    let said = chain.try_add(&node, &pod).expect_err("an invalid address");
    assert!(said.stdout.contains("read the result of plugin foreign"), "{}", said.stdout);
    assert_eq!(node.sh("cat /run/test/deleted").trim(), "pod.none");
}

/// An IPAM plugin may assign the same address to a container again. If the second ADD released it while undoing, other
/// containers would get it.
#[test]
fn a_second_add_of_a_running_pod_does_not_release_its_address() {
    let node = Node::new();
    let (bridge, pod) = (foreign(&node), node.pod("pod5"));
    let with_gateway = FOREIGN.replace("/24\\\"}", "/24\\\", \\\"gateway\\\": \\\"10.1.0.1\\\"}");
    assert_ne!(with_gateway, FOREIGN);
    node.write("/run/test/bin/foreign", &with_gateway);
    let ptp = json!({"type": "ptp", "ipam": {"type": "foreign"}});
    for chain in [Chain { plugins: vec![ptp], name: "ptp".into(), ..bridge.clone() }, bridge] {
        let result = chain.add(&node, &pod);
        let said = chain.try_add(&node, &pod).expect_err("it is attached");
        assert!(said.stdout.contains("already exists"), "{}", said.stdout);
        assert!(!node.can("test -s /run/test/deleted"), "{}", node.sh("cat /run/test/deleted"));
        chain.del(&node, &pod, Some(&result));
        node.sh("rm /run/test/deleted");
    }
}

/// After a reboot a record describes objects that are gone; a new namespace can have the old name.
#[test]
fn an_add_that_fails_leaves_nothing_though_a_record_says_that_the_pod_is_attached() {
    let node = Node::new();
    network(
        &node,
        &json!([{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": pool()},
            {"type": "portmap", "capabilities": {"portMappings": true}}]),
    );
    for name in ["one", "other"] {
        node.pod(name);
    }
    runtime(&node, &ours(), "add", "other --container other --publish 8080:80");
    let before = node.leftovers();
    runtime(&node, &ours(), "add", "one --container one");
    node.sh("rm -r /run/podwire/ledger/pods/one:*; ip netns delete one; ip netns add one");
    let line = format!(
        "{} cni add pods one --container one --publish 8080:80 --conf-dir /run/test/net.d --plugin-dir {}",
        podwire(),
        ours()
    );
    let refused = node.output(&line.split(' ').collect::<Vec<_>>(), &[]);
    assert!(refused.stderr.contains("host port 8080/tcp is taken"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("already attached"), "{}", refused.stderr);
    node.sh("ip -n one link show eth0 && exit 1; ip netns delete one");
    assert_same(&before, &node.leftovers(), "after the ADD that failed");

    // A foreign container's objects are not changed.
    node.pod("elsewhere");
    let line = line.replace("pods one --container one --publish 8080:80", "pods elsewhere --container other");
    let refused = node.output(&line.split(' ').collect::<Vec<_>>(), &[]);
    assert!(refused.stderr.contains("the container is already attached"), "{}", refused.stderr);
    runtime(&node, &ours(), "check", "other --container other");
}
