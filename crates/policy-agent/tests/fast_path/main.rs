//! The fast path together with policies: which packets take it, and that nothing passes it that the normal path would not
//! pass. Needs root and the same tools as `packets`. The other tests of this folder run with the fast path too.

mod bypass;
mod flows;
mod lifecycle;
mod normal_path;
mod reused_address;
#[path = "../testbed/mod.rs"]
mod testbed;

use serde_json::{json, Value};

use testbed::{network_policy, pod, Endpoint};

/// Pairs of pods, one of each attachment.
fn pairs() -> [[Endpoint; 2]; 3] {
    [[10, 11].map(Endpoint::bridged), [12, 13].map(Endpoint::routed), [14, 15].map(Endpoint::calico)]
}

/// Pods need a policy: it makes the kernel track connections.
fn allow_all(endpoints: &[&Endpoint]) -> Vec<Value> {
    let names = endpoints.iter().enumerate();
    let mut objects: Vec<Value> =
        names.map(|(index, endpoint)| pod(&format!("p{index}"), json!({}), endpoint)).collect();
    objects.push(network_policy(
        "all",
        json!({ "podSelector": {}, "ingress": [{}], "egress": [{}],
        "policyTypes": ["Ingress", "Egress"] }),
    ));
    objects
}
