//! Policies in a lab: applying files, running their pods, and the tables of `tests/policies` tested with packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_policy::Protocol;
use serde_json::{json, Value};

use super::faults::QUIET;
use super::laboratory::{lab, name, text, Laboratory};
use super::probe::{endpoints, Endpoint, Expected, Prober};
use super::tables::{self, Connection, Table, Tables, CLUSTER_NETWORK_POLICY, NETWORK_POLICY};

/// A temporary directory.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        let path = std::env::temp_dir().join(format!("podwire-policies-{}", name()));
        std::fs::create_dir_all(&path).expect("a directory");
        TempDir(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("a file");
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {nodeName: n1}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n2}
---
apiVersion: v1
kind: Pod
metadata: {name: n1-pod1, labels: {app: own}}
";

/// Only pods with this label may connect to the database.
pub fn policy(label: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: shop}}\nspec:\n  \
         podSelector: {{matchLabels: {{app: db}}}}\n  ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {label}}}}}}}]}}]\n"
    )
}

/// No process listens, so a refusal (ECONNREFUSED) comes from the other pod and proves that the packet arrived. Each
/// call opens a new connection, also from an address that another pod had before.
fn reaches(lab: &Laboratory, from: &str, to: &str) -> bool {
    connects(lab, from, to, "10")
}

/// Whether a connection is dropped: the sender gets no answer at all.
fn is_denied(lab: &Laboratory, from: &str, to: &str) -> bool {
    !connects(lab, from, to, "2")
}

fn connects(lab: &Laboratory, from: &str, to: &str, seconds: &str) -> bool {
    let script = "import socket, sys; s = socket.socket(); s.settimeout(int(sys.argv[2])); sys.exit(s.connect_ex((sys.argv[1], 80)) != 111)";
    lab.run(&["exec", from, "--", "python3", "-c", script, &lab.address(to), seconds]).status.success()
}

#[test]
fn apply_runs_new_pods_and_enforces_changed_policies() {
    apply_policies("flannel");
}

#[test]
fn apply_works_with_the_calico_agent() {
    apply_policies("calico");
}

fn apply_policies(network: &str) {
    let dir = TempDir::new();
    dir.write("shop.yaml", SHOP);
    dir.write("db.yaml", &policy("web"));
    let words = ["--nodes", "2", "--pods", "1", "--cni-network", network, "--policies", dir.path()];
    let lab = Laboratory::up(&words);
    assert!(reaches(&lab, "shop/web", "shop/db"), "another node's pod by its labels");
    assert!(is_denied(&lab, "n2-pod1", "shop/db"), "a pod of no file has no labels");

    dir.write("db.yaml", &policy("none"));
    let (applied, _) = lab.json(&["apply"]);
    let pods = json!(["shop/web", "shop/db", "default/n1-pod1"]);
    assert_eq!((&applied["policies"], &applied["pods"]), (&json!(1), &pods));
    assert!(is_denied(&lab, "shop/web", "shop/db"), "applied is enforced");
    let warning = json!("pods app=none in namespace shop: there are none now");
    assert_eq!(applied["warnings"][0]["text"], warning, "{applied}");
    // Any node's agent explains it.
    for (node, to, status) in
        [("n1", "shop/db", 1), ("n2", "shop/db", 1), ("n1", "shop/web", 0), ("n1", "shop/no", 2)]
    {
        let program = podwire_tests::podwire();
        let said = lab.run(&["exec", node, "--", &program, "policy", "explain", "default/n2-pod1", to, "80"]);
        assert_eq!(
            said.status.code(),
            Some(status),
            "{node} {to}: {}{}",
            text(&said.stdout),
            text(&said.stderr)
        );
        let why =
            "NetworkPolicy shop/db ingress[0]: the other end is default/n2-pod1 with labels {} in namespace \
                   default, not pods {app=none} in namespace shop";
        assert!(status != 1 || text(&said.stdout).contains(why), "{}", text(&said.stdout));
    }

    // The lab's own pods may have labels, too.
    let own = policy("own").replace("from: [{", "from: [{namespaceSelector: {}, ");
    dir.write("db.yaml", &own);
    assert!(lab.run(&["apply"]).status.success());
    assert!(reaches(&lab, "n1-pod1", "shop/db") && is_denied(&lab, "shop/web", "shop/db"));

    // An invalid file is reported and changes nothing.
    dir.write("db.yaml", "kind: [");
    let said = lab.run(&["apply"]);
    let words = text(&said.stderr);
    assert!(!said.status.success() && words.contains("db.yaml"), "{words}");
    assert!(is_denied(&lab, "shop/web", "shop/db"));

    // A new pod in the files is started, and the other node's agent gets it at once.
    dir.write("db.yaml", &policy("more"));
    let more = "apiVersion: v1\nkind: Pod\nmetadata: {name: more, namespace: shop, labels: {app: more}}\nspec: {nodeName: n1}\n";
    dir.write("more.yaml", more);
    assert!(lab.run(&["apply"]).status.success());
    assert!(reaches(&lab, "shop/more", "shop/db") && is_denied(&lab, "shop/web", "shop/db"));

    // A rebooted node runs its pods again, perhaps with other addresses, which are published.
    assert!(lab.run(&["break", "reboot-node", "n1"]).status.success());
    assert!(lab.run(&["heal"]).status.success());
    // The routes between nodes are set up shortly after the agents have each other's node.
    let end = Instant::now() + Duration::from_secs(20);
    while !reaches(&lab, "shop/more", "shop/db") {
        assert!(Instant::now() < end, "{}", lab.status());
    }
    assert!(is_denied(&lab, "shop/web", "shop/db"));
}

#[test]
fn up_warns_about_a_policy_that_selects_no_pod() {
    let dir = TempDir::new();
    dir.write("shop.yaml", SHOP);
    dir.write("db.yaml", &policy("none"));
    let lab = Laboratory::up(&["--nodes", "2", "--pods", "0", "--policies", dir.path()]);
    let warning = "pods app=none in namespace shop: there are none now";
    assert!(lab.started.contains(warning), "{}", lab.started);
}

#[test]
fn invalid_policies_are_refused_before_anything_is_created() {
    let dir = TempDir::new();
    for (file, says) in [
        ("kind: [", "p.yaml"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: n7}",
            "pod default/a names the unknown node \"n7\"",
        ),
    ] {
        dir.write("p.yaml", file);
        let name = name();
        let said = lab(&["up", "--name", &name, "--policies", dir.path()]);
        let words = text(&said.stderr);
        assert!(!said.status.success() && words.contains(says), "{words}");
        assert!(!Path::new("/run/podwire/lab").join(name).exists());
    }
    let said = lab(&["up", "--name", &name(), "--policies", "/nowhere"]);
    assert!(text(&said.stderr).contains("find the policy directory /nowhere"), "{}", text(&said.stderr));
    let one = Laboratory::up(&["--nodes", "1", "--pods", "0"]);
    let words = text(&one.run(&["apply"]).stderr);
    assert!(words.contains("has no policies") && words.contains("--policies DIR"), "{words}");
}

/// The backend and the network of each lab.
const MODES: [(&str, &str); 5] =
    [("vxlan", "bridge"), ("vxlan", "ptp"), ("host-gw", "bridge"), ("host-gw", "ptp"), ("vxlan", "calico")];

/// All tables about TCP or UDP between pods, over IPv4 and IPv6, in every mode. The kernel tests of the policy agent
/// cover SCTP.
#[test]
fn the_verdicts_of_all_tables_hold_in_every_mode() {
    let _exclusive = QUIET.write();
    raise_file_limit();
    let threads = MODES.map(|(backend, network)| std::thread::spawn(move || run_tables(backend, network)));
    // All threads end before one of them fails the test.
    let ends = threads.map(std::thread::JoinHandle::join);
    let failed: Vec<_> =
        MODES.iter().zip(ends).filter(|(_, end)| end.is_err()).map(|(mode, _)| mode).collect();
    assert!(failed.is_empty(), "{failed:?}: see above");
}

/// The test opens some thousands of sockets: more than the usual soft limit and less than the hard limit.
fn raise_file_limit() {
    let script = format!("prlimit --pid {} --nofile=$(ulimit -Hn):", std::process::id());
    let granted = Command::new("sh").args(["-c", &script]).status();
    assert!(granted.expect("sh").success());
}

fn run_tables(backend: &str, network: &str) {
    let files = [NETWORK_POLICY, CLUSTER_NETWORK_POLICY].map(Tables::read);
    let objects: Vec<Value> = files.iter().flat_map(|file| file.objects.clone()).collect();
    let dir = TempDir::new();
    dir.write("objects.json", &as_file(&objects));
    let words = ["--nodes", "2", "--pods", "0", "--backend", backend, "--cni-network", network];
    let lab = Laboratory::up(&[&words[..], &["--policies", dir.path()]].concat());
    let endpoints = endpoints(&lab);
    let addresses = translations(&files, &endpoints);
    let (mut tested, mut last) = (0, String::new());
    let prober = Prober::new(endpoints, &ports(&files));
    for (file, table) in files.iter().flat_map(|file| file.tables.iter().map(move |table| (file, table))) {
        let expected = expected(file, table);
        if expected.is_empty() {
            continue;
        }
        let all = translate(&as_file(&with_replaced(&objects, &table.objects)), &addresses);
        // Several tables may have the same policies.
        if all != last {
            dir.write("objects.json", &all);
            let applied = lab.run(&["apply"]);
            assert!(applied.status.success(), "{}: {}", table.name, text(&applied.stderr));
            last = all;
        }
        let wrong = prober.send(&probes(&expected, &prober.endpoints));
        assert!(wrong.is_empty(), "{backend}, {network}: {}:\n{}", table.name, wrong.join("\n"));
        tested += 1;
    }
    assert!(tested >= 110, "{tested} tables");
}

/// The expected verdicts of a table for TCP and UDP between pods.
fn expected(file: &Tables, table: &Table) -> BTreeMap<Connection, bool> {
    let snapshot = tables::snapshot(&with_replaced(&file.objects, &table.objects));
    let mut all = table.expected(&snapshot);
    all.retain(|(_, _, protocol, _), _| *protocol != Protocol::Sctp);
    all
}

/// All ports of the tables.
fn ports(files: &[Tables]) -> BTreeSet<(Protocol, u16)> {
    let tables = files.iter().flat_map(|file| file.tables.iter().map(move |table| expected(file, table)));
    tables.flat_map(BTreeMap::into_keys).map(|(_, _, protocol, port)| (protocol, port)).collect()
}

/// Each connection over IPv4 and over IPv6.
fn probes(expected: &BTreeMap<Connection, bool>, endpoints: &BTreeMap<String, Endpoint>) -> Vec<Expected> {
    let both = |((from, to, protocol, port), allowed): (&Connection, &bool)| {
        let probe = |ip| Expected {
            from: from.clone(),
            to: to.clone(),
            ip,
            protocol: *protocol,
            port: *port,
            allowed: *allowed,
        };
        let ips = &endpoints[to].ips;
        assert_eq!(ips.len(), 2, "{to}: {ips:?}");
        ips.iter().copied().map(probe).collect::<Vec<_>>()
    };
    expected.iter().flat_map(both).collect()
}

/// The objects, with those of a table in the place of objects of the same kind and name.
fn with_replaced(objects: &[Value], own: &[Value]) -> Vec<Value> {
    let name = |object: &Value| {
        let meta = &object["metadata"];
        [&object["kind"], &meta["namespace"], &meta["name"]].map(Value::to_string)
    };
    let replaced: BTreeSet<_> = own.iter().map(name).collect();
    objects.iter().filter(|object| !replaced.contains(&name(object))).chain(own).cloned().collect()
}

/// The objects as a file. Without nodeName and status, so that the lab chooses the nodes and addresses.
fn as_file(objects: &[Value]) -> String {
    let lines = objects.iter().map(|object| {
        let mut object = object.clone();
        if object["kind"] == "Pod" {
            object.pointer_mut("/spec").and_then(Value::as_object_mut).map(|spec| spec.remove("nodeName"));
            object.as_object_mut().expect("an object").remove("status");
        }
        object.to_string()
    });
    lines.collect::<Vec<_>>().join("\n---\n")
}

/// Replaces the addresses of the tables by those of the lab, in one pass: an address may be a pod's in the tables and
/// another pod's in the lab.
fn translate(text: &str, addresses: &[(String, String)]) -> String {
    let next = |rest: &str| {
        let found = addresses.iter().filter_map(|(from, to)| Some((rest.find(from)?, from.len(), to)));
        found.min_by_key(|(at, ..)| *at)
    };
    let (mut all, mut rest) = (String::new(), text);
    while let Some((at, length, to)) = next(rest) {
        all.extend([&rest[..at], to]);
        rest = &rest[at + length..];
    }
    all + rest
}

#[test]
fn an_address_is_translated_only_once() {
    let addresses = [("10.244.7.9/", "10.244.8.9/"), ("10.244.8.9/", "10.244.71.8/")];
    let addresses = addresses.map(|(from, to)| (from.to_owned(), to.to_owned()));
    let text = translate("cidr: 10.244.8.9/32, except: [10.244.7.9/32], 10.244.9.1/32", &addresses);
    assert_eq!(text, "cidr: 10.244.71.8/32, except: [10.244.8.9/32], 10.244.9.1/32");
}

/// The addresses and networks of the tables, each with its counterpart in the lab.
fn translations(files: &[Tables], endpoints: &BTreeMap<String, Endpoint>) -> Vec<(String, String)> {
    let mut all = vec![("fd00:10:244::/64".to_owned(), "fd00:244::/48".to_owned())];
    for file in files {
        assert_eq!(
            file.networks,
            ["10.244.0.0/16", "fd00:10:244::/64"],
            "the first is the network of the lab"
        );
        for pod in &tables::snapshot(&file.objects).pods {
            for (before, now) in pod.addresses().iter().zip(&endpoints[&pod.full_name()].ips) {
                assert_eq!(before.is_ipv4(), now.is_ipv4());
                all.push((format!("{before}/"), format!("{now}/")));
            }
        }
    }
    all
}
