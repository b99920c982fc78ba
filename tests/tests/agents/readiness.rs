//! What a runtime gets while the node cannot carry traffic.

use podwire_tests::{ours, podwire};
use serde_json::json;

use super::stage::{net_conf, Stage, Store};

/// The output of `podwire cni status`, and whether the network is ready.
fn status(stage: &Stage) -> (bool, String) {
    let words = [&podwire(), "cni", "status", "--plugin-dir", &ours(), "--conf-dir", "/run/cni-conf"];
    let said = stage.node(1).output(&words, &[]);
    (said.status == 0, format!("{}{}", said.stdout, said.stderr))
}

const LIST: &str = "test -e /run/cni-conf/10-podwire.conflist";

#[test]
fn with_not_ready_status_the_plugins_status_fails_with_the_agents_reason() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    let flags = ["--not-ready", "status"];
    stage.start_agent(1, &flags);
    stage.wait_ready(1);
    let (ready, said) = status(&stage);
    assert!(ready, "{said}");

    // A device of another kind replaces the agent's.
    stage.kill_agent(1);
    stage.node(1).sh("ip link del flannel.1 && ip link add flannel.1 type bridge");
    assert!(status(&stage).0, "no agent has checked yet");
    stage.start_agent(1, &flags);
    stage.wait_until("STATUS fails with the reason", |stage| {
        let (ready, said) = status(stage);
        !ready && said.contains("50") && said.contains("flannel.1") && said.contains("exists as a bridge")
    });
    assert!(stage.node(1).can(LIST), "the list stays");
    stage.node(1).sh("ip link del flannel.1");
    stage.wait_until("STATUS is well again", |stage| status(stage).0);

    // After a reboot only the conflist exists.
    stage.kill_agent(1);
    stage.node(1).sh("rm -r /run/podwire");
    let (ready, said) = status(&stage);
    assert!(!ready && said.contains("50") && said.contains("has not set up routes"), "{said}");
    stage.start_agent(1, &flags);
    stage.wait_until("STATUS is well again", |stage| status(stage).0);
}

#[test]
fn by_default_the_conflist_is_withdrawn() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    stage.start_agent(1, &[]);
    stage.wait_ready(1);
    assert!(stage.node(1).can(LIST) && status(&stage).0);
    stage.kill_agent(1);
    stage.node(1).sh("ip link del flannel.1 && ip link add flannel.1 type bridge");
    stage.start_agent(1, &[]);
    stage.wait_until("the list goes", |stage| !stage.node(1).can(LIST));
    stage.node(1).sh("ip link del flannel.1");
    stage.wait_until("the conflist is written", |stage| stage.node(1).can(LIST));
}

#[test]
fn not_ready_status_needs_a_version_with_status() {
    let mut stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
    stage.start_agent(1, &["--not-ready", "status", "--cni-version", "1.0.0"]);
    let agent = stage.nodes[0].agent.as_mut().expect("the agent");
    agent.expect(&["has no STATUS"]);
}
