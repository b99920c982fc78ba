//! Policies from files: they are enforced before a pod sends, while the agent is down, and after another program
//! changed the rules.

use std::collections::BTreeSet;

use serde_json::{json, Value};

use crate::stage::{net_conf, Stage, Store};
use podwire_tests::{ours, podwire, Process};

/// In the namespace `shop`, only the web may reach the database.
pub const POLICIES: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
"#;
pub const FOLDER: &str = "/run/policies";

pub fn stage() -> Stage {
    stage_with("flannel")
}

pub fn stage_with(chain: &str) -> Stage {
    let mut stage = stage_without_agents();
    start(&mut stage, chain);
    stage
}

/// Without an agent, so policies are not enforced yet.
pub fn stage_without_agents() -> Stage {
    stage_of(&net_conf(json!({"Type": "vxlan"})))
}

/// The same with another network config.
pub fn stage_of(conf: &Value) -> Stage {
    let stage = Stage::new(Store::Embedded, conf);
    stage.node(1).sh(&format!("mkdir -p {FOLDER}"));
    stage.node(1).write(&format!("{FOLDER}/shop.yaml"), POLICIES);
    stage
}

pub fn start(stage: &mut Stage, chain: &str) {
    start_with(stage, chain, &[]);
}

pub fn start_with(stage: &mut Stage, chain: &str, flags: &[&str]) {
    let policies = format!("files:{FOLDER}");
    let words = ["--policy", &policies, "--cni-version", "1.1.0", "--cni-network", chain];
    let words: Vec<&str> = words.iter().chain(flags).copied().collect();
    stage.start_agent(1, &words);
    stage.wait_ready(1);
}

fn add(stage: &Stage, name: &str) -> (i32, String) {
    add_by(stage, name, "/run/cni-conf")
}

/// Attaches a pod with the conflist in this directory.
pub fn add_by(stage: &Stage, name: &str, lists: &str) -> (i32, String) {
    let node = stage.node(1);
    node.pod(name);
    let (podwire, plugins, pod) = (podwire(), ours(), format!("K8S_POD_NAME={name}"));
    let words = [&podwire, "cni", "add", "cbr0", name, "--plugin-dir", &plugins, "--conf-dir", lists];
    let args = ["--arg", "IgnoreUnknown=1", "--arg", "K8S_POD_NAMESPACE=shop", "--arg", &pod];
    let words: Vec<&str> = words.into_iter().chain(args).collect();
    let said = node.output(&words, &[]);
    (said.status, said.stderr)
}

pub fn add_all(stage: &Stage) {
    for name in ["web", "db", "other"] {
        assert_eq!(add(stage, name), (0, String::new()), "{name}");
    }
}

/// Whether a ping is answered within a time that is long enough for a busy machine.
pub fn reaches(stage: &Stage, from: &str, to: &str) -> bool {
    is_answered(stage, from, to, 5)
}

/// Whether a ping is not answered within a second.
pub fn is_kept_from(stage: &Stage, from: &str, to: &str) -> bool {
    !is_answered(stage, from, to, 1)
}

fn is_answered(stage: &Stage, from: &str, to: &str, seconds: u32) -> bool {
    let address = stage.address(1, to);
    stage.node(1).can(&format!("ip netns exec {from} ping -c 1 -W {seconds} {address} > /dev/null"))
}

#[track_caller]
fn assert_kept_apart(stage: &Stage) {
    assert!(reaches(stage, "web", "db"), "the policy allows it");
    assert!(is_kept_from(stage, "other", "db"), "the policy does not allow it");
    assert!(reaches(stage, "db", "other"), "no policy is about it");
    let address = stage.address(1, "db");
    assert!(stage.node(1).can(&format!("ping -c 1 -W 5 {address} > /dev/null")), "probes of the node pass");
}

#[test]
fn policies_are_enforced_when_a_pod_is_there_and_follow_their_files() {
    let stage = stage();
    add_all(&stage);
    assert_kept_apart(&stage);
    let status = stage.status(1);
    assert_eq!(
        (&status["policies"]["enforced"], &status["policies"]["interfaces"]),
        (&json!(true), &json!(3)),
        "{status}"
    );
    // An invalid file changes nothing.
    stage.node(1).write(&format!("{FOLDER}/wrong.yaml"), "kind: [");
    assert_kept_apart(&stage);
    stage.node(1).sh(&format!("rm {FOLDER}/wrong.yaml"));
    // A removed policy is no longer enforced.
    stage.node(1).sh(&format!("mv {FOLDER}/shop.yaml /run/test/shop.yaml"));
    stage.wait_until("the removed policy is no longer enforced", |stage| reaches(stage, "other", "db"));
    stage.node(1).sh(&format!("mv /run/test/shop.yaml {FOLDER}/"));
    stage.wait_until("the policy is back", |stage| is_kept_from(stage, "other", "db"));
    assert_kept_apart(&stage);
}

/// What `podwire verify` says about the packets of pod3 to the database and to the web, on n1.
fn verified(stage: &Stage) -> [BTreeSet<String>; 2] {
    let packets = stage.verify_with_answer(3, "2s");
    let said = |one: &Value| match (one["failure"].as_str(), one["denied"].as_str()) {
        (None, None) => "arrived".to_owned(),
        (Some(failure), None) if failure.starts_with("arrived, but") => failure.to_owned(),
        (Some(_), None) => "lost".to_owned(),
        (_, Some(policy)) => format!("denied: {policy}"),
    };
    ["shop/db@n1", "shop/web@n1"].map(|to| {
        let asked = packets.iter().filter(|one| one["from"] == "pod3" && one["to"] == to);
        asked.map(said).collect()
    })
}

/// n3 has no policies, and does not know the pods of n1.
#[test]
fn verify_separates_denied_from_broken_packets_to_another_node() {
    let mut stage = stage();
    add_all(&stage);
    stage.start_agent(3, &[]);
    stage.wait_ready(3);
    stage.add_pod(3, "pod3");
    stage.wait_until("both agents have the other's node", |stage| {
        [1, 3].into_iter().all(|number| stage.status(number)["peers"] == 1)
    });
    let target = stage.address(1, "web");
    stage.wait_until("pod3 reaches the web", |stage| {
        stage.node(3).can(&format!("ip netns exec pod3 ping -c 1 -W 1 {target}"))
    });
    let _answering = stage.answer(1, 3);
    let each = |to_db: &str, to_web: &str| [to_db, to_web].map(|text| BTreeSet::from([text.to_owned()]));
    let isolated = "ingress of shop/db: the pod is isolated and no rule allows it: shop/db";
    let denied = format!("denied: {isolated}");
    assert_eq!(verified(&stage), each(&denied, "arrived"), "a policy of n1");

    stage.node(1).sh("nft add table inet broken
         nft add chain inet broken forward '{ type filter hook forward priority -200; }'
         nft add rule inet broken forward drop");
    assert_eq!(verified(&stage), each(&denied, "lost"), "all packets to pods of n1 are lost");
    stage.node(1).sh("nft delete table inet broken");

    stage.kill_agent(1);
    stage.node(1).sh("nft flush ruleset");
    let breach = format!("arrived, but policies deny it: {isolated}");
    assert_eq!(verified(&stage), each(&breach, "arrived"), "the policy is not enforced");
}

/// Policies are turned on at a node that has pods.
#[test]
fn pods_from_before_policies_are_kept_apart_like_others() {
    let mut stage = stage_without_agents();
    stage.start_agent(1, &["--cni-version", "1.1.0", "--cni-network", "flannel"]);
    stage.wait_ready(1);
    add_all(&stage);
    assert!(reaches(&stage, "other", "db"), "there are no policies yet");
    stage.kill_agent(1);
    start(&mut stage, "flannel");
    stage.wait_until("the policy is enforced for them", |stage| is_kept_from(stage, "other", "db"));
    assert_kept_apart(&stage);
    let policies = &stage.status(1)["policies"];
    assert_eq!(policies["interfaces"], 3, "{policies}");
    assert_eq!(policies["unguardedPods"]["count"], 0, "{policies}");
}

/// Pods on a bridge have link-local addresses, which no policy names.
#[test]
fn link_local_addresses_do_not_bypass_policies() {
    let stage = stage();
    add_all(&stage);
    let of = |pod: &str, scope: &str| {
        let script = format!(
            "ip -n {pod} -6 -o address show dev eth0 scope {scope} | sed 's/.*inet6 \\([0-9a-f:]*\\).*/\\1/'"
        );
        stage.node(1).sh(&script).trim().to_owned()
    };
    let ping = |from: &str, words: &str| {
        stage.node(1).can(&format!("ip netns exec {from} ping -6 -c 1 {words} > /dev/null"))
    };
    let (link_local, global) = (of("db", "link"), of("db", "global"));
    assert!(link_local.starts_with("fe80:"), "{link_local}");
    assert!(ping("web", &format!("-W 5 {global}")), "neighbours are found");
    assert!(!ping("other", &format!("-W 1 {link_local}%eth0")), "the database is for the web only");
    let link = of("other", "link");
    assert!(!ping("other", &format!("-W 1 -I {link}%eth0 {global}")), "with whatever address");
}

#[test]
fn pods_that_calicos_plugin_attaches_are_kept_apart_like_others() {
    let stage = stage();
    let cidrs = stage.status(1)["podCidrs"].clone();
    let range = |cidr: &serde_json::Value| json!([{ "subnet": cidr }]);
    let ranges: Vec<_> = cidrs.as_array().expect("pod CIDRs").iter().map(range).collect();
    let plugin = json!({ "type": "calico", "policy": {"type": "k8s"},
        "ipam": { "type": "host-local", "ranges": ranges } });
    let list = json!({ "cniVersion": "1.1.0", "name": "cbr0", "plugins": [plugin] });
    stage.node(1).write("/run/test/calico/10-routed.conflist", &list.to_string());
    for name in ["web", "db", "other"] {
        assert_eq!(add_by(&stage, name, "/run/test/calico"), (0, String::new()), "{name}");
    }
    assert_kept_apart(&stage);
    assert_eq!(stage.status(1)["policies"]["interfaces"], 3);
}

/// Invalid specs, and the texts of the log.
const MISTAKES: [(&str, &str); 3] = [
    ("{podSelector: {matchLabels: {app: db}}, ingres: []}", "spec.ingres: no such field"),
    (
        "{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.7/24}}]}]}",
        "198.51.100.7/24 has host bits: it is read as 198.51.100.0/24",
    ),
    (
        "{podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 80, protocol: tcp}]}]}",
        "none of TCP, UDP, SCTP",
    ),
];

#[test]
fn mistakes_in_policies_are_logged_and_allow_nothing() {
    let mut stage = stage();
    add_all(&stage);
    for (number, (spec, reported)) in MISTAKES.into_iter().enumerate() {
        let name = format!("bad{number}");
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
        );
        stage.node(1).write(&format!("{FOLDER}/{name}.yaml"), &policy);
        let agent = stage.nodes[0].agent.as_mut().expect("the agent");
        agent.expect(&["WARN", &format!("NetworkPolicy shop/{name}: "), reported]);
    }
    // Thousands of peers are valid.
    let peers: Vec<String> =
        (0..4000).map(|n| format!("{{ipBlock: {{cidr: 198.18.{}.{}/32}}}}", n / 125, n % 125 * 2)).collect();
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: many, namespace: shop}}\n\
         spec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{}]}}]}}\n",
        peers.join(", ")
    );
    stage.node(1).write(&format!("{FOLDER}/many.yaml"), &policy);
    stage.wait_until("all peers are in the rules", |stage| {
        stage.node(1).can("nft list table inet podwire_policy | grep -qF 198.18.31.248")
    });
    assert_kept_apart(&stage);
}

#[test]
fn damaged_rules_are_restored() {
    let stage = stage();
    add_all(&stage);
    for damage in [
        "nft flush ruleset",
        "nft delete table inet podwire_policy",
        "nft flush chain inet podwire_policy ingress",
        "nft flush map inet podwire_policy ingress_4",
    ] {
        stage.node(1).sh(damage);
        stage.wait_until(damage, |stage| is_kept_from(stage, "other", "db"));
        stage.wait_until(damage, |stage| reaches(stage, "web", "db"));
        assert_kept_apart(&stage);
    }
}

#[test]
fn while_the_agent_is_down_rules_stay_and_no_pod_is_attached() {
    let mut stage = stage();
    add_all(&stage);
    let before = stage.node(1).sh("nft -s list table inet podwire_policy");
    stage.kill_agent(1);
    assert_kept_apart(&stage);
    let (status, said) = add(&stage, "late");
    assert_eq!(status, 1, "{said}");
    assert!(
        said.contains("the policies of pod shop/late are not enforced") && said.contains("--policy"),
        "{said}"
    );
    let left = stage.node(1).sh("ip -o link | grep -c 'master cni0'");
    assert_eq!(left.trim(), "3", "the attempt leaves nothing");
    let (podwire, plugins) = (podwire(), ours());
    let words = [
        &podwire,
        "cni",
        "status",
        "cbr0",
        "--plugin-dir",
        &plugins,
        "--conf-dir",
        "/run/cni-conf",
        "--json",
    ];
    let words: Vec<&str> = words.iter().map(|word| word.as_ref()).collect();
    let said = stage.node(1).output(&words, &[]);
    assert_ne!(said.status, 0, "no agent enforces policies: the network is not ready");
    // The agent finds existing pods in the plugins' ledger. The rules do not change, not even for a moment.
    let mut monitor = stage.node(1).command("sh");
    monitor.args(["-c", "exec stdbuf -oL nft monitor >&2"]);
    let mut monitor = Process::start(monitor);
    stage.wait_until("changes are seen", |stage| {
        stage.node(1).sh("nft 'add table ip before; delete table ip before'");
        monitor.count(&["before"]) > 0
    });
    start(&mut stage, "flannel");
    stage.wait_ready(1);
    stage.wait_until("the agent has all interfaces", |stage| stage.status(1)["policies"]["interfaces"] == 3);
    stage.wait_until("policies are enforced again", |stage| stage.status(1)["policies"]["enforced"] == true);
    stage.node(1).sh("nft add table ip afterwards");
    monitor.expect(&["afterwards"]);
    assert_eq!(monitor.count(&["podwire_policy"]), 0, "{}", monitor.said());
    assert_eq!(stage.node(1).sh("nft -s list table inet podwire_policy"), before);
    assert_kept_apart(&stage);
    assert_eq!(add(&stage, "again"), (0, String::new()));
}

#[test]
fn a_deleted_pod_is_removed_and_its_address_is_blocked() {
    let stage = stage();
    add_all(&stage);
    let address = stage.address(1, "other");
    let (podwire, plugins) = (podwire(), ours());
    let words =
        [&podwire, "cni", "del", "cbr0", "other", "--plugin-dir", &plugins, "--conf-dir", "/run/cni-conf"];
    let words: Vec<&str> = words.iter().map(|word| word.as_ref()).collect();
    assert_eq!(stage.node(1).output(&words, &[]).status, 0);
    stage.wait_until("the interface is removed", |stage| stage.status(1)["policies"]["interfaces"] == 2);
    // Packets of a pod that adds this address without ADD are dropped.
    stage.node(1).sh(&format!("ip netns exec web ip address add {address}/24 dev eth0"));
    let target = stage.address(1, "db");
    let borrowed = format!("ip netns exec web ping -c 1 -W 1 -I {address} {target} > /dev/null");
    assert!(!stage.node(1).can(&borrowed), "an address of this node that is no pod's");
}

/// Whether datagrams that `from` sends with the address `claimed` arrive at the database. Datagrams can be lost, so it
/// sends them for three seconds.
#[track_caller]
pub fn arrives(stage: &Stage, from: &str, claimed: &str) -> bool {
    let node = stage.node(1);
    let (target, any) = if claimed.contains(':') {
        (stage.address6(1, "db"), "::")
    } else {
        (stage.address(1, "db"), "0.0.0.0")
    };
    let listen = "import os, select, socket, sys
any, family = sys.argv[1], socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
receiver = socket.socket(family, socket.SOCK_DGRAM)
receiver.bind((any, 7000))
open('/run/test/ready', 'w')
while not select.select([receiver], [], [], 0.05)[0]:
    if os.path.exists('/run/test/over'):
        sys.exit(1)";
    let send = "import socket, sys, time
own, target = sys.argv[1:]
sender = socket.socket(socket.AF_INET6 if ':' in own else socket.AF_INET, socket.SOCK_DGRAM)
sender.bind((own, 0))
for _ in range(30):
    try: sender.sendto(b'!', (target, 7000))
    except OSError: pass
    time.sleep(0.1)";
    node.write("/run/test/listen.py", listen);
    node.write("/run/test/send.py", send);
    let said = node.output(
        &[
            "sh",
            "-c",
            &format!(
                "rm -f /run/test/ready /run/test/over; ip netns exec db python3 /run/test/listen.py {any} & listener=$!; \
                 until [ -e /run/test/ready ]; do sleep 0.05; done; \
                 {{ ip netns exec {from} python3 /run/test/send.py {claimed} {target} || touch /run/test/unsent; touch /run/test/over; }} & \
                 wait $listener; received=$?; touch /run/test/over; wait; \
                 [ ! -e /run/test/unsent ] || {{ rm /run/test/unsent; exit 9; }}; exit $received"
            ),
        ],
        &[],
    );
    assert!(said.status < 2, "{from} cannot send as {claimed}: {}", said.stderr);
    said.status == 0
}

/// Waits until datagrams arrive: a new veth pair carries packets only after the kernel has activated it.
#[track_caller]
pub fn must_arrive(stage: &Stage, from: &str, claimed: &str) {
    stage.wait_until(&format!("{claimed} of {from} arrives"), |stage| arrives(stage, from, claimed));
}

#[test]
fn a_pod_cannot_send_as_another() {
    for chain in ["bridge", "ptp"] {
        let mut stage = stage_with(chain);
        add_all(&stage);
        assert_kept_apart(&stage);
        let (web, other) = (stage.address(1, "web"), stage.address(1, "other"));
        must_arrive(&stage, "web", &web);
        assert!(!arrives(&stage, "other", &other), "{chain}: the policy");
        stage.node(1).sh(&format!("ip netns exec other ip address add {web}/32 dev eth0"));
        assert!(!arrives(&stage, "other", &web), "{chain}: the web's address");
        // Only this rule blocked the packets.
        stage.kill_agent(1);
        let family = if chain == "ptp" { "inet" } else { "bridge" };
        stage.node(1).sh(&format!("nft flush chain {family} podwire_policy from_pods"));
        must_arrive(&stage, "other", &web);
    }
}
