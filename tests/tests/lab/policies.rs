//! Policies in a lab: files that are applied, pods that they describe, and the tables of `tests/policies` played with packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_policy::Protocol;
use serde_json::{json, Value};

use super::faults::QUIET;
use super::laboratory::{lab, name, text, Laboratory};
use super::probe::{places, Place, Probe, Question};
use super::tables::{self, Connection, Table, Tables, CLUSTER_NETWORK_POLICY, NETWORK_POLICY};

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("podwire-policies-{}", name()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SHOP: &str = "
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

/// The database is for those with this label.
fn policy(label: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: shop}}\nspec:\n  \
         podSelector: {{matchLabels: {{app: db}}}}\n  ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {label}}}}}}}]}}]\n"
    )
}

/// Nobody listens: a refusal comes from the other pod, so it was reached. Each question is a connection of its own, even if it
/// comes from where another pod was before.
fn reaches(lab: &Laboratory, from: &str, to: &str) -> bool {
    asks(lab, from, to, "10")
}

/// The same; who is kept from another hears nothing for as long as he waits.
fn is_kept_from(lab: &Laboratory, from: &str, to: &str) -> bool {
    !asks(lab, from, to, "2")
}

fn asks(lab: &Laboratory, from: &str, to: &str, seconds: &str) -> bool {
    let script = "import socket, sys; s = socket.socket(); s.settimeout(int(sys.argv[2])); sys.exit(s.connect_ex((sys.argv[1], 80)) != 111)";
    lab.run(&["exec", from, "--", "python3", "-c", script, &lab.address(to), seconds]).status.success()
}

#[test]
fn pods_of_files_run_and_policies_are_enforced_between_nodes_as_often_as_they_are_applied() {
    keep_shop("flannel");
}

#[test]
fn policies_are_enforced_between_routed_pods_as_often_as_they_are_applied() {
    keep_shop("calico");
}

fn keep_shop(network: &str) {
    let folder = Folder::new();
    folder.write("shop.yaml", SHOP);
    folder.write("db.yaml", &policy("web"));
    let words = ["--nodes", "2", "--pods", "1", "--cni-network", network, "--policies", folder.path()];
    let lab = Laboratory::up(&words);
    assert!(reaches(&lab, "shop/web", "shop/db"), "another node's pod by its labels");
    assert!(is_kept_from(&lab, "n2-pod1", "shop/db"), "a pod of no file has no labels");

    folder.write("db.yaml", &policy("nobody"));
    let (applied, _) = lab.json(&["apply"]);
    let pods = json!(["shop/web", "shop/db", "default/n1-pod1"]);
    assert_eq!((&applied["policies"], &applied["pods"]), (&json!(1), &pods));
    assert!(is_kept_from(&lab, "shop/web", "shop/db"), "applied is enforced");

    // The lab's own pods may have labels, too.
    let own = policy("own").replace("from: [{", "from: [{namespaceSelector: {}, ");
    folder.write("db.yaml", &own);
    assert!(lab.run(&["apply"]).status.success());
    assert!(reaches(&lab, "n1-pod1", "shop/db") && is_kept_from(&lab, "shop/web", "shop/db"));

    // A mistake is told, and changes nothing.
    folder.write("db.yaml", "kind: [");
    let said = lab.run(&["apply"]);
    let words = text(&said.stderr);
    assert!(!said.status.success() && words.contains("db.yaml"), "{words}");
    assert!(is_kept_from(&lab, "shop/web", "shop/db"));

    // A pod that is new in the files is run; it is known to the other node's agent at once.
    folder.write("db.yaml", &policy("more"));
    let more = "apiVersion: v1\nkind: Pod\nmetadata: {name: more, namespace: shop, labels: {app: more}}\nspec: {nodeName: n1}\n";
    folder.write("more.yaml", more);
    assert!(lab.run(&["apply"]).status.success());
    assert!(reaches(&lab, "shop/more", "shop/db") && is_kept_from(&lab, "shop/web", "shop/db"));

    // A node that starts anew runs its pods again, with other addresses perhaps, which are told.
    assert!(lab.run(&["break", "reboot-node", "n1"]).status.success());
    assert!(lab.run(&["heal"]).status.success());
    // The roads between nodes open a moment after the agents know each other.
    let end = Instant::now() + Duration::from_secs(20);
    while !reaches(&lab, "shop/more", "shop/db") {
        assert!(Instant::now() < end, "{}", lab.status());
    }
    assert!(is_kept_from(&lab, "shop/web", "shop/db"));
}

#[test]
fn policies_that_make_no_sense_are_told_before_anything_is_made() {
    let folder = Folder::new();
    for (file, says) in [
        ("kind: [", "p.yaml"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: n7}",
            "pod default/a is for node \"n7\"",
        ),
    ] {
        folder.write("p.yaml", file);
        let name = name();
        let said = lab(&["up", "--name", &name, "--policies", folder.path()]);
        let words = text(&said.stderr);
        assert!(!said.status.success() && words.contains(says), "{words}");
        assert!(!Path::new("/run/podwire/lab").join(name).exists());
    }
    let said = lab(&["up", "--name", &name(), "--policies", "/nowhere"]);
    assert!(text(&said.stderr).contains("find the policies' folder /nowhere"), "{}", text(&said.stderr));
    let one = Laboratory::up(&["--nodes", "1", "--pods", "0"]);
    let words = text(&one.run(&["apply"]).stderr);
    assert!(words.contains("has no policies") && words.contains("--policies FOLDER"), "{words}");
}

/// What is between nodes, and how pods are attached.
const MODES: [(&str, &str); 5] =
    [("vxlan", "bridge"), ("vxlan", "ptp"), ("host-gw", "bridge"), ("host-gw", "ptp"), ("vxlan", "calico")];

/// All tables that say something of TCP or UDP between pods, over IPv4 and IPv6, in every mode. SCTP is played elsewhere:
/// crates/policy-agent/tests/conformance.rs.
#[test]
fn policies_do_in_labs_of_every_mode_what_the_tables_say() {
    let _alone = QUIET.write();
    may_open_many_sockets();
    let plays = MODES.map(|(backend, network)| std::thread::spawn(move || play(backend, network)));
    // All of them end before one of them fails.
    let ends = plays.map(std::thread::JoinHandle::join);
    let failed: Vec<_> =
        MODES.iter().zip(ends).filter(|(_, end)| end.is_err()).map(|(mode, _)| mode).collect();
    assert!(failed.is_empty(), "{failed:?}: see above");
}

/// Some thousands at once: more than a shell usually grants, less than may be asked for.
fn may_open_many_sockets() {
    let script = format!("prlimit --pid {} --nofile=$(ulimit -Hn):", std::process::id());
    let granted = Command::new("sh").args(["-c", &script]).status();
    assert!(granted.expect("sh").success());
}

fn play(backend: &str, network: &str) {
    let files = [NETWORK_POLICY, CLUSTER_NETWORK_POLICY].map(Tables::read);
    let world: Vec<Value> = files.iter().flat_map(|file| file.objects.clone()).collect();
    let folder = Folder::new();
    folder.write("world.json", &written(&world));
    let words = ["--nodes", "2", "--pods", "0", "--backend", backend, "--cni-network", network];
    let lab = Laboratory::up(&[&words[..], &["--policies", folder.path()]].concat());
    let places = places(&lab);
    let moved = moved(&files, &places);
    let (mut played, mut last) = (0, String::new());
    let probe = Probe::new(places, &ports(&files));
    for (file, table) in files.iter().flat_map(|file| file.tables.iter().map(move |table| (file, table))) {
        let expected = expected(file, table);
        if expected.is_empty() {
            continue;
        }
        let all = in_the_lab(&written(&together(&world, &table.objects)), &moved);
        // Several tables may be about the same policies.
        if all != last {
            folder.write("world.json", &all);
            let applied = lab.run(&["apply"]);
            assert!(applied.status.success(), "{}: {}", table.name, text(&applied.stderr));
            last = all;
        }
        let wrong = probe.ask(&questions(&expected, &probe.places));
        assert!(wrong.is_empty(), "{backend}, {network}: {}:\n{}", table.name, wrong.join("\n"));
        played += 1;
    }
    assert!(played >= 110, "{played} tables");
}

/// What the table says of TCP and UDP between pods.
fn expected(file: &Tables, table: &Table) -> BTreeMap<Connection, bool> {
    let snapshot = tables::snapshot(&together(&file.objects, &table.objects));
    let mut all = table.expected(&snapshot);
    all.retain(|(_, _, protocol, _), _| *protocol != Protocol::Sctp);
    all
}

/// Where anybody asks.
fn ports(files: &[Tables]) -> BTreeSet<(Protocol, u16)> {
    let tables = files.iter().flat_map(|file| file.tables.iter().map(move |table| expected(file, table)));
    tables.flat_map(BTreeMap::into_keys).map(|(_, _, protocol, port)| (protocol, port)).collect()
}

/// Each connection over IPv4 and over IPv6.
fn questions(expected: &BTreeMap<Connection, bool>, places: &BTreeMap<String, Place>) -> Vec<Question> {
    let both = |((from, to, protocol, port), allowed): (&Connection, &bool)| {
        let question = |ip| Question {
            from: from.clone(),
            to: to.clone(),
            ip,
            protocol: *protocol,
            port: *port,
            allowed: *allowed,
        };
        let ips = &places[to].ips;
        assert_eq!(ips.len(), 2, "{to}: {ips:?}");
        ips.iter().copied().map(question).collect::<Vec<_>>()
    };
    expected.iter().flat_map(both).collect()
}

/// A table's own objects in the place of those with their names.
fn together(world: &[Value], own: &[Value]) -> Vec<Value> {
    let name = |object: &Value| {
        let meta = &object["metadata"];
        [&object["kind"], &meta["namespace"], &meta["name"]].map(Value::to_string)
    };
    let replaced: BTreeSet<_> = own.iter().map(name).collect();
    world.iter().filter(|object| !replaced.contains(&name(object))).chain(own).cloned().collect()
}

/// As a file for the lab, which says itself where pods are: by turns on its nodes.
fn written(objects: &[Value]) -> String {
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

/// All at once: where one pod is in the lab, another one may be in the tables.
fn in_the_lab(text: &str, moved: &[(String, String)]) -> String {
    let next = |rest: &str| {
        let found = moved.iter().filter_map(|(from, to)| Some((rest.find(from)?, from.len(), to)));
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
fn an_address_is_moved_once_even_to_where_another_pod_was() {
    let moved = [("10.244.7.9/", "10.244.8.9/"), ("10.244.8.9/", "10.244.71.8/")];
    let moved = moved.map(|(from, to)| (from.to_owned(), to.to_owned()));
    let said = in_the_lab("cidr: 10.244.8.9/32, except: [10.244.7.9/32], 10.244.9.1/32", &moved);
    assert_eq!(said, "cidr: 10.244.71.8/32, except: [10.244.8.9/32], 10.244.9.1/32");
}

/// Addresses and networks of the tables, and what they are in the lab.
fn moved(files: &[Tables], places: &BTreeMap<String, Place>) -> Vec<(String, String)> {
    let mut moved = vec![("fd00:10:244::/64".to_owned(), "fd00:244::/48".to_owned())];
    for file in files {
        assert_eq!(file.networks, ["10.244.0.0/16", "fd00:10:244::/64"], "the first is the lab's own");
        for pod in &tables::snapshot(&file.objects).pods {
            for (before, now) in pod.addresses().iter().zip(&places[&pod.full_name()].ips) {
                assert_eq!(before.is_ipv4(), now.is_ipv4());
                moved.push((format!("{before}/"), format!("{now}/")));
            }
        }
    }
    moved
}
