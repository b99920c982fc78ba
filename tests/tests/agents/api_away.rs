//! Policies from a real API server that stops and starts again, under a continuous probe.

use std::time::Duration;

use podwire_tests::{ours, podwire};
use serde_json::{json, Value};

use crate::api_server::Kubernetes;
use crate::continuous_probe::ContinuousProbe;
use crate::policies::reaches;
use crate::stage::{net_conf, Stage, Store};

/// How long the API server is down. The agent retries meanwhile.
const DOWNTIME: Duration = Duration::from_secs(4);
const POLICY: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";

/// Pods by name, each with the label `app`. The last two are attached while the API server is down.
const PODS: [(&str, &str); 6] = [
    ("web", "web"),
    ("db", "db"),
    ("other", "other"),
    ("leaving", "web"),
    ("late", "other"),
    ("lateweb", "web"),
];

/// Only the web, this network and one more peer may reach the database.
fn policy(network: &str, more: Value) -> Value {
    let web = json!({"podSelector": {"matchLabels": {"app": "web"}}});
    let from = json!([web, {"ipBlock": {"cidr": network}}, more]);
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "db", "namespace": "shop"},
           "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": from}]}})
}

/// Creates the namespace, its pods and its policy in the API server.
fn describe(stage: &Stage, kubernetes: &Kubernetes) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    kubernetes.ask(stage, "POST", "/api/v1/namespaces", &namespace);
    for (name, app) in PODS {
        let containers = json!([{"name": "c", "image": "none"}]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
                         "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
                         "spec": {"nodeName": "n1", "containers": containers}});
        kubernetes.ask(stage, "POST", "/api/v1/namespaces/shop/pods", &pod);
    }
    kubernetes.ask(
        stage,
        "POST",
        POLICY,
        &policy("198.51.1.0/24", json!({"ipBlock": {"cidr": "198.51.2.0/24"}})),
    );
}

/// Attaches or detaches a pod, as a runtime does: `verb` is `add` or `del`.
fn cni(stage: &Stage, verb: &str, name: &str) {
    stage.node(1).sh(&format!(
        "{} cni {verb} cbr0 {name} --plugin-dir {} --conf-dir /run/cni-conf \
         --arg IgnoreUnknown=1 --arg K8S_POD_NAMESPACE=shop --arg K8S_POD_NAME={name}",
        podwire(),
        ours()
    ));
}

fn is_enforced(stage: &Stage, words: &str) -> bool {
    stage.node(1).can(&format!("nft list table inet podwire_policy | grep -qF '{words}'"))
}

#[test]
fn while_the_api_server_is_down_policies_stay_and_changes_follow_when_it_is_up_again() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    let Some(mut kubernetes) = Kubernetes::start(&stage) else { return };
    describe(&stage, &kubernetes);
    let credentials = kubernetes.kubeconfig.clone();
    stage.start_agent(
        1,
        &["--policy", "kubernetes", "--kubeconfig-file", &credentials, "--cni-version", "1.1.0"],
    );
    stage.wait_ready(1);
    stage.wait_until("policies are enforced", |stage| stage.status(1)["policies"]["enforced"] == true);
    PODS.iter().for_each(|(name, _)| drop(stage.node(1).pod(name)));
    ["web", "db", "other", "leaving"].iter().for_each(|name| cni(&stage, "add", name));

    // The pods that are attached later send from the beginning.
    let probe =
        ContinuousProbe::start(&stage, &[("other", "db"), ("web", "db"), ("late", "db"), ("lateweb", "db")]);
    kubernetes.kill_server();
    let agent = stage.nodes[0].agent.as_mut().expect("the agent");
    agent.expect(&["watch failed; the last known objects stay in force"]);
    cni(&stage, "add", "late");
    cni(&stage, "add", "lateweb");
    cni(&stage, "del", "leaving");
    stage.wait_until("the detached pod is removed", |stage| stage.status(1)["policies"]["interfaces"] == 5);
    std::thread::sleep(DOWNTIME);

    kubernetes.start_server(&stage);
    let changed = policy("198.51.7.0/24", json!({"ipBlock": {"cidr": "198.51.2.0/24"}}));
    kubernetes.ask(&stage, "PUT", &format!("{POLICY}/db"), &changed);
    stage.wait_until("a change is enforced again", |stage| is_enforced(stage, "198.51.7.0"));
    std::thread::sleep(Duration::from_millis(500));
    for result in probe.stop() {
        if result.is_from("web") || result.is_from("lateweb") {
            result.assert_arrived(Duration::ZERO)
        } else {
            result.assert_none_arrived()
        }
    }
    let opened = policy("198.51.7.0/24", json!({"podSelector": {"matchLabels": {"app": "other"}}}));
    kubernetes.ask(&stage, "PUT", &format!("{POLICY}/db"), &opened);
    stage.wait_until("packets that are allowed now arrive", |stage| {
        reaches(stage, "other", "db") && reaches(stage, "late", "db")
    });
}
