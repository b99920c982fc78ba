//! An agent in Kubernetes, with the stand-in API server.

use serde_json::json;

use super::stage::{Stage, Store};

#[test]
fn a_node_uses_its_internal_ip_and_reports_events() {
    let conf = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}});
    let mut stage = Stage::new(Store::Kubernetes, &conf);
    let api = |stage: &Stage, act: &dyn Fn(&super::api::Api)| act(stage.api.as_ref().expect("the API"));
    // The default route uses the same interface, but another source address.
    stage.node(1).sh("ip address add 192.168.10.111/24 dev eth0");
    api(&stage, &|api| {
        api.put("n1", json!({}), &[]);
        api.set_internal_ip("n1", "192.168.10.111");
    });
    stage.start_agent(1, &[]);
    let reported = |stage: &Stage, node: &str, reason: &str, words: &str| {
        stage.api.as_ref().is_some_and(|api| api.has_event(node, reason, words))
    };
    stage.wait_until("the missing pod CIDR is reported", |stage| {
        reported(stage, "n1", "RangeMissing", "pod cidr not assigned")
    });

    // The controller sets it, and the agent gets the event.
    api(&stage, &|api| api.put("n1", json!({}), &["10.244.1.0/24"]));
    stage.wait_ready(1);
    let public = |stage: &Stage, node: &str| {
        stage.api.as_ref().and_then(|api| api.annotation(node, "flannel.alpha.coreos.com/public-ip"))
    };
    assert_eq!(public(&stage, "n1").as_deref(), Some("192.168.10.111"));
    assert_eq!(stage.status(1)["uplinks"][0], "eth0 192.168.10.111");
    stage.wait_until("the ready network is reported", |stage| {
        reported(stage, "n1", "PodNetworkReady", "the node accepts pods")
    });

    // A node whose address in the cluster is not on the machine.
    api(&stage, &|api| {
        api.put("n2", json!({}), &["10.244.2.0/24"]);
        api.set_internal_ip("n2", "203.0.113.9");
    });
    stage.start_agent(2, &[]);
    stage.wait_ready(2);
    assert_eq!(public(&stage, "n2").as_deref(), Some("192.168.10.12"));
    stage.wait_until("the ambiguity is reported", |stage| {
        reported(stage, "n2", "InterfaceAmbiguous", "203.0.113.9")
    });

    // A node with another backend.
    let name = |of: &str| format!("flannel.alpha.coreos.com/{of}");
    let strange = json!({name("kube-subnet-manager"): "true", name("backend-type"): "host-gw",
                         name("backend-data"): "null", name("public-ip"): "192.168.10.99"});
    api(&stage, &|api| api.put("old", strange.clone(), &["10.244.9.0/24"]));
    stage.wait_until("the backend mismatch is reported", |stage| {
        reported(stage, "n1", "BackendMismatch", "old")
    });
    stage.wait_until("there is a route to n2", |stage| {
        stage.node(1).can("ip route show proto 112 | grep -q 10.244.2.0/24")
    });
}

#[test]
fn two_default_routes_are_not_guessed_between() {
    let conf = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}});
    let mut stage = Stage::new(Store::Kubernetes, &conf);
    stage
        .node(1)
        .sh("ip link add eth1 type veth peer name far && ip link set eth1 up && ip link set far up \
         && ip address add 198.51.100.7/24 dev eth1 && ip route append default via 198.51.100.1");
    if let Some(api) = &stage.api {
        api.put("n1", json!({}), &["10.244.1.0/24"]);
        api.set_internal_ip("n1", "203.0.113.9");
    }
    stage.start_agent(1, &[]);
    stage.wait_until("both are reported", |stage| {
        stage.api.as_ref().is_some_and(|api| {
            api.has_event("n1", "InterfaceAmbiguous", "eth0")
                && api.has_event("n1", "InterfaceAmbiguous", "eth1")
        })
    });
    // The kernel's notification wakes the agent.
    stage.node(1).sh("ip route del default via 198.51.100.1");
    stage.wait_ready(1);
}
