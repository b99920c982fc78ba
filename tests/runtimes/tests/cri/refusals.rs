//! Failures are reported once, clearly, and leave nothing behind.

use std::time::Duration;

use podwire_runtime_tests::{network, Containerd, Plugins, PodSpec, Stage, Unlike, NETWORK};

use crate::{assert_nothing_left, remove_all, scene};

/// A registry without a listener: the machine outside.
const NOWHERE: &str = "192.0.2.2:5000/nothing:1";

#[test]
fn an_image_that_cannot_be_fetched_is_one_clear_error_and_leaves_nothing() {
    let (containerd, _outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let spec = PodSpec::named("web").port(8080, 80);
    let pod = cri.run(&spec);
    let refused = cri.try_pull(NOWHERE).expect_err("there is no listener");
    assert!(refused.contains(NOWHERE) && refused.contains("connection refused"), "{refused}");
    let refused = cri.try_container(&pod, &spec, NOWHERE, &["sh"]).expect_err("no image");
    assert!(refused.contains("not found"), "{refused}");
    cri.remove(&pod.id);
    assert_nothing_left(&containerd, &before);
}

#[test]
fn a_pod_whose_own_image_cannot_be_fetched_leaves_nothing() {
    let stage = Stage::new(Plugins::Ours);
    stage.outside();
    let containerd = Containerd::start_unlike(stage, Unlike { pause: Some(NOWHERE), ..Unlike::default() });
    let before = containerd.traces();
    let refused = containerd.cri().try_run(&PodSpec::named("web").port(8080, 80)).expect_err("no image");
    assert!(refused.contains(NOWHERE) && refused.contains("connection refused"), "{refused}");
    assert_nothing_left(&containerd, &before);
}

/// The change to the stage or the network, and the texts of the runtime's error.
struct Refusal {
    spoil: fn(&Containerd),
    says: &'static [&'static str],
}

const REFUSALS: &[Refusal] = &[
    Refusal {
        spoil: |containerd| containerd.set_network(&network().replace("fd85::/64", "fd85::/129")),
        says: &["plugin type=\"bridge\" failed (add)", "fd85::/129"],
    },
    Refusal {
        spoil: |containerd| {
            containerd.set_network(&network().replace("\"hairpinMode\": true", "\"hairpinMode\": 7"))
        },
        says: &["plugin type=\"bridge\" failed (add)", "hairpinMode"],
    },
    // containerd reports these before it runs any plugin.
    Refusal {
        spoil: |containerd| drop(containerd.sh("rm /opt/cni/bin/portmap")),
        says: &["\"portmap\"", "/opt/cni/bin"],
    },
    // bridge reports these.
    Refusal {
        spoil: |containerd| containerd.set_network(&network().replace("host-local", "no-such-ipam")),
        says: &["no-such-ipam", "/opt/cni/bin"],
    },
    // The second plugin of the chain fails: the first one's work is undone.
    Refusal {
        spoil: |containerd| {
            containerd
                .set_network(&network().replace("\"snat\": true", "\"snat\": true, \"markMasqBit\": 99"))
        },
        says: &["plugin type=\"portmap\" failed (add)", "MasqMarkBit must be between 0 and 31"],
    },
];

#[test]
fn a_bad_network_or_a_missing_plugin_fails_with_the_plugins_error_and_leaves_nothing() {
    let (containerd, _outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    for Refusal { spoil, says } in REFUSALS {
        spoil(&containerd);
        let mut cri = containerd.cri();
        // containerd reads the directory shortly after it has changed.
        let refused = (0..100).find_map(|n| {
            let tried = cri.try_run(&PodSpec::named(&format!("web-{n}")).port(8080, 80));
            tried.is_ok().then(|| remove_all(&mut cri));
            tried.err()
        });
        let refused = refused.unwrap_or_else(|| panic!("nothing is wrong with {says:?}"));
        assert!(says.iter().all(|words| refused.contains(words)), "{says:?} is not in: {refused}");
        containerd.install(Plugins::Ours);
        containerd.set_network(&network());
        // A pod that could not be detached completely because a plugin was missing stays in containerd's list.
        remove_all(&mut cri);
        let well = (0..100).find_map(|_| cri.try_run(&PodSpec::named("well").port(8080, 80)).ok());
        cri.remove(&well.expect("the good network again").id);
        assert_nothing_left(&containerd, &before);
    }
}

#[test]
fn containerd_is_not_ready_until_there_is_a_network() {
    let (containerd, _outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let mut wait_until = |ready: bool| {
        let said = (0..3000).find_map(|_| {
            let (is_ready, why) = cri.conditions()["NetworkReady"].clone();
            std::thread::sleep(Duration::from_millis(20));
            (is_ready == ready).then_some(why)
        });
        said.unwrap_or_else(|| panic!("NetworkReady does not become {ready}"))
    };
    containerd.sh(&format!("rm {NETWORK}"));
    let why = wait_until(false);
    assert!(why.contains("cni plugin not initialized"), "{why}");
    let refused = containerd.cri().try_run(&PodSpec::named("web")).expect_err("no network");
    assert!(refused.contains("cni plugin not initialized"), "{refused}");
    containerd.set_network(&network());
    wait_until(true);
    // containerd could not undo the failed start, and keeps the pod in its list.
    remove_all(&mut containerd.cri());
    assert_nothing_left(&containerd, &before);
}
