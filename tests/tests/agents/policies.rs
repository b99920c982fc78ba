//! Pods that policies from files separate: before they send, while the agent is down, and after another program changed
//! the rules.

use serde_json::{json, Value};

use crate::stage::{net_conf, Stage, Store};
use podwire_tests::{ours, podwire, Process};

/// In the namespace `shop` the database is for the web only.
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

/// Without an agent, so that policies are not enforced yet.
pub fn stage_without_agents() -> Stage {
    stage_of(&net_conf(json!({"Type": "vxlan"})))
}

/// The same with other networks.
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

/// By the list of plugins in this folder.
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

/// Whether a ping is answered; on a busy machine that takes its time.
pub fn reaches(stage: &Stage, from: &str, to: &str) -> bool {
    is_answered(stage, from, to, 5)
}

/// Whether it is not, which is known sooner.
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
    // A mistake changes nothing.
    stage.node(1).write(&format!("{FOLDER}/wrong.yaml"), "kind: [");
    assert_kept_apart(&stage);
    stage.node(1).sh(&format!("rm {FOLDER}/wrong.yaml"));
    // What a file says from now on is so from now on.
    stage.node(1).sh(&format!("mv {FOLDER}/shop.yaml /run/test/shop.yaml"));
    stage.wait_until("without the policy all reach it", |stage| reaches(stage, "other", "db"));
    stage.node(1).sh(&format!("mv /run/test/shop.yaml {FOLDER}/"));
    stage.wait_until("the policy is back", |stage| is_kept_from(stage, "other", "db"));
    assert_kept_apart(&stage);
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

/// Each mistake, and what the log says of it.
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
    // Thousands of peers are no mistake.
    let peers: Vec<String> =
        (0..4000).map(|n| format!("{{ipBlock: {{cidr: 198.18.{}.{}/32}}}}", n / 125, n % 125 * 2)).collect();
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: many, namespace: shop}}\n\
         spec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{}]}}]}}\n",
        peers.join(", ")
    );
    stage.node(1).write(&format!("{FOLDER}/many.yaml"), &policy);
    stage.wait_until("all are enforced", |stage| {
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
fn while_the_agent_is_away_rules_stay_and_no_pod_comes_unguarded() {
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
    // Pods of before are known again, from the plugins' ledger; nothing changes, not even for a moment.
    let mut ear = stage.node(1).command("sh");
    ear.args(["-c", "exec stdbuf -oL nft monitor >&2"]);
    let mut ear = Process::start(ear);
    stage.wait_until("changes are seen", |stage| {
        stage.node(1).sh("nft 'add table ip before; delete table ip before'");
        ear.count(&["before"]) > 0
    });
    start(&mut stage, "flannel");
    stage.wait_ready(1);
    stage.wait_until("all are known again", |stage| stage.status(1)["policies"]["interfaces"] == 3);
    stage.wait_until("all is enforced again", |stage| stage.status(1)["policies"]["enforced"] == true);
    stage.node(1).sh("nft add table ip afterwards");
    ear.expect(&["afterwards"]);
    assert_eq!(ear.count(&["podwire_policy"]), 0, "{}", ear.said());
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
    stage.wait_until("it is forgotten", |stage| stage.status(1)["policies"]["interfaces"] == 2);
    // Packets of a pod that adds this address without ADD are dropped.
    stage.node(1).sh(&format!("ip netns exec web ip address add {address}/24 dev eth0"));
    let target = stage.address(1, "db");
    let borrowed = format!("ip netns exec web ping -c 1 -W 1 -I {address} {target} > /dev/null");
    assert!(!stage.node(1).can(&borrowed), "an address of this node that is no pod's");
}

/// Whether datagrams that `from` sends with the address `claimed` arrive at the database. One alone may be lost, as on
/// every network: for three seconds one after the other is sent.
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
ear = socket.socket(family, socket.SOCK_DGRAM)
ear.bind((any, 7000))
open('/run/test/ready', 'w')
while not select.select([ear], [], [], 0.05)[0]:
    if os.path.exists('/run/test/over'):
        sys.exit(1)";
    let send = "import socket, sys, time
own, target = sys.argv[1:]
mouth = socket.socket(socket.AF_INET6 if ':' in own else socket.AF_INET, socket.SOCK_DGRAM)
mouth.bind((own, 0))
for _ in range(30):
    try: mouth.sendto(b'!', (target, 7000))
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
                 {{ ip netns exec {from} python3 /run/test/send.py {claimed} {target} || touch /run/test/mute; touch /run/test/over; }} & \
                 wait $listener; received=$?; touch /run/test/over; wait; \
                 [ ! -e /run/test/mute ] || {{ rm /run/test/mute; exit 9; }}; exit $received"
            ),
        ],
        &[],
    );
    assert!(said.status < 2, "{from} cannot send as {claimed}: {}", said.stderr);
    said.status == 0
}

/// Expected packets are waited for: a new veth pair carries nothing until the kernel has activated it.
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
        // It is that rule that keeps it from it, and nothing else.
        stage.kill_agent(1);
        let family = if chain == "ptp" { "inet" } else { "bridge" };
        stage.node(1).sh(&format!("nft flush chain {family} podwire_policy from_pods"));
        must_arrive(&stage, "other", &web);
    }
}
