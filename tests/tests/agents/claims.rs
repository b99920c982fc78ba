//! A pod can send with source addresses other than its own if it claims them and its network allows them.

use crate::policies::{add_by, arrives, must_arrive, stage_without_agents, start_with, FOLDER, POLICIES};
use crate::stage::Stage;
use podwire_tests::podwire;

const LISTS: &str = "/run/cni-own";
/// Addresses of both families: one that a pod claims and may use, and others.
const ADDRESSES: [&str; 5] = ["10.8.1.7", "10.8.2.7", "10.9.1.7", "fd08:1::7", "fd08:2::7"];

/// The web routes to 10.8.1.0/24, which the database uses. The other pod claims more than it may use.
fn policies(more: &str) -> String {
    let claim = |prefixes: &str| {
        format!("annotations: {{cni.projectcalico.org/allowedSourcePrefixes: '[{prefixes}]'}}, ")
    };
    let other = format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: other, namespace: shop, {}}}\n",
        claim("\"10.9.0.0/16\"")
    );
    let web =
        format!("metadata: {{name: web, namespace: shop, {}", claim("\"10.8.1.0/24\", \"fd08:1::/64\""));
    let from = "  - from: [{ipBlock: {cidr: 10.8.0.0/15}}, {ipBlock: {cidr: 'fd08::/16'}}]\n";
    format!("{}{from}{other}{more}", POLICIES.replace("metadata: {name: web, namespace: shop, ", &web))
}

/// The agent's conflist, with the prefixes that the administrator allows.
fn allow(stage: &Stage, prefixes: &str) {
    let script = format!(
        "import json; l = json.load(open('/run/cni-conf/10-podwire.conflist')); \
         l['plugins'][0]['policy']['allowedSourcePrefixes'] = {prefixes}; json.dump(l, open('{LISTS}/10-own.conflist', 'w'))"
    );
    stage.node(1).sh(&format!("mkdir -p {LISTS} && python3 -c \"{script}\""));
}

#[test]
fn a_pod_can_send_with_claimed_and_allowed_prefixes_only() {
    for chain in ["bridge", "ptp"] {
        let mut stage = stage_without_agents();
        stage.node(1).write(&format!("{FOLDER}/shop.yaml"), &policies(""));
        start_with(&mut stage, chain, &[]);
        allow(&stage, "['10.8.0.0/16', 'fd08::/16']");
        for name in ["web", "db", "other"] {
            assert_eq!(add_by(&stage, name, LISTS), (0, String::new()), "{name}");
        }
        let own = stage.address(1, "web");
        for pod in ["web", "other"] {
            for address in ADDRESSES {
                stage.node(1).sh(&format!("ip -n {pod} address add {address} dev eth0 nodad"));
            }
        }
        let arrived = |stage: &Stage, pod: &str| ADDRESSES.map(|address| arrives(stage, pod, address));
        must_arrive(&stage, "web", ADDRESSES[0]);
        must_arrive(&stage, "web", ADDRESSES[3]);
        assert_eq!(arrived(&stage, "web"), [true, false, false, true, false], "{chain}: what it claims");
        assert_eq!(arrived(&stage, "other"), [false; 5], "{chain}: another's, and what is not allowed");
        let agent = stage.nodes[0].agent.as_mut().expect("the agent");
        agent.expect(&[
            "Pod shop/other",
            "10.9.0.0/16 is not granted",
            "policy.allowedSourcePrefixes of network cbr0",
        ]);

        // These addresses count as the pod's own: its policies apply.
        let silent = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n\
                      spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}\n";
        stage.node(1).write(&format!("{FOLDER}/shop.yaml"), &policies(silent));
        stage.wait_until("the web is silent", |stage| !arrives(stage, "web", &own));
        assert!(!arrives(&stage, "web", "10.8.1.7"), "{chain}: its policies");

        // A restarted agent reads the claims from the ledger: nothing changes.
        let family = if chain == "ptp" { "inet" } else { "bridge" };
        let list = format!("nft -s list table {family} podwire_policy");
        let before = stage.node(1).sh(&list);
        assert!(before.contains("10.8.1.0"), "{before}");
        stage.kill_agent(1);
        start_with(&mut stage, chain, &[]);
        stage.wait_until("policies are enforced again", |stage| {
            stage.status(1)["policies"]["enforced"] == true
        });
        assert_eq!(stage.node(1).sh(&list), before, "{chain}");
    }
}

#[test]
fn the_agents_conflist_allows_the_prefixes_of_its_flag() {
    let mut stage = stage_without_agents();
    stage.node(1).write(&format!("{FOLDER}/shop.yaml"), &policies(""));
    start_with(&mut stage, "flannel", &["--policy-allowed-source-prefixes", "10.8.0.0/16,fd08::/16"]);
    for name in ["web", "db"] {
        assert_eq!(add_by(&stage, name, "/run/cni-conf"), (0, String::new()), "{name}");
    }
    for address in ADDRESSES {
        stage.node(1).sh(&format!("ip -n web address add {address} dev eth0 nodad"));
    }
    must_arrive(&stage, "web", ADDRESSES[0]);
    must_arrive(&stage, "web", ADDRESSES[3]);
    let arrived = ADDRESSES.map(|address| arrives(&stage, "web", address));
    assert_eq!(arrived, [true, false, false, true, false]);
}

#[test]
fn a_flag_that_allows_nonsense_is_refused() {
    let stage = stage_without_agents();
    for (words, says) in [
        (
            "--policy files:/x --cni-network ptp --policy-allowed-source-prefixes 10.8.0.0",
            "invalid CIDR address",
        ),
        (
            "--policy files:/x --cni-network ptp --policy-allowed-source-prefixes 10.8.0.1/16",
            "write 10.8.0.0/16",
        ),
        ("--policy files:/x --policy-allowed-source-prefixes 10.8.0.0/16", "without --cni-network"),
        ("--cni-network ptp --policy-allowed-source-prefixes 10.8.0.0/16", "--policy <SOURCE>"),
    ] {
        let said = stage.node(1).try_sh(&format!("{} agent flannel {words} 2>&1", podwire()));
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(!said.status.success() && text.contains(says), "{words}: {text}");
    }
}

#[test]
fn a_network_that_allows_nonsense_is_refused() {
    let mut stage = stage_without_agents();
    start_with(&mut stage, "bridge", &[]);
    for (pod, nonsense) in [("a", "'10.8.0.0/16'"), ("b", "['10.8']"), ("c", "[8]")] {
        allow(&stage, nonsense);
        let (status, said) = add_by(&stage, pod, LISTS);
        assert!(status != 0 && said.contains("policy.allowedSourcePrefixes"), "{nonsense}: {said}");
    }
}
