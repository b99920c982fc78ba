//! A newer containerd sends STATUS to plugins whenever its own status is requested.

use podwire_runtime_tests::{network, newer_containerd, Containerd, Plugins, PodSpec, Stage, Unlike};
use serde_json::{json, Value};

use crate::assert_nothing_left;
use crate::network::{packets_pass, serve};

/// The guide's network with version 1.1.0 and only two addresses for pods.
fn small_network() -> String {
    let mut small: Value = serde_json::from_str(&network()).expect("JSON");
    small["cniVersion"] = json!("1.1.0");
    small["plugins"][0]["ipam"]["ranges"][0][0] =
        json!({"subnet": "10.85.0.0/16", "rangeStart": "10.85.0.2", "rangeEnd": "10.85.0.3"});
    small.to_string()
}

#[test]
fn containerd_is_not_ready_while_there_is_no_address_left() {
    let Some(programs) = newer_containerd() else { return };
    let stage = Stage::new(Plugins::Ours);
    let outside = stage.outside();
    let mut containerd =
        Containerd::start_unlike(stage, Unlike { programs: Some(programs), ..Unlike::default() });
    containerd.stop();
    containerd.set_network(&small_network());
    containerd.restart();
    let mut cri = containerd.cri();
    let first = cri.run(&PodSpec::named("first").port(1, 1));
    cri.remove(&first.id);
    let before = containerd.traces();

    let ready = cri.conditions();
    assert!(ready["NetworkReady"].0, "{ready:?}");
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let other = serve(&mut cri, &PodSpec::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
    let (ready, why) = cri.conditions()["NetworkReady"].clone();
    assert!(!ready && why.contains("10.85.0.2"), "{why}");
    let refused = cri.try_run(&PodSpec::named("third")).expect_err("no address is left");
    assert!(refused.contains("no IP addresses available"), "{refused}");

    cri.remove(&other.pod.id);
    let ready = cri.conditions();
    assert!(ready["NetworkReady"].0, "{ready:?}");
    cri.remove(&web.pod.id);
    assert_nothing_left(&containerd, &before);
}
