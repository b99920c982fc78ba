//! Removal of pods whose config, records or plugins are missing.

use crate::world::{World, CONF};

#[test]
fn a_pod_whose_process_was_killed_is_lost_and_can_be_removed() {
    let world = World::new();
    for verbs in [&["rm web"][..], &["stop web", "stop web", "rm web"]] {
        world.ok("run web --port 8080:80");
        let pid = world.json("status web")["pid"].clone();
        world.node.sh(&format!("kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.01; done"));
        let status = world.json("status web");
        assert_eq!((&status["state"], &status["pid"]), (&"lost".into(), &serde_json::Value::Null));
        assert!(world.fails("exec web -- true").contains("pod default/web is not running: it is lost"));
        verbs.iter().for_each(|verb| drop(world.ok(verb)));
        world.assert_clean("after a pod whose process was killed");
    }
}

#[test]
fn a_pod_ends_without_config_records_and_our_plugins_files() {
    let world = World::with_plugins("/run/test/plugins");
    world.ok("run web --port 8080:80 --ingress-bandwidth 8M");
    world.node.sh(&format!("rm -r {CONF} /run/test/plugins /var/lib/cni/results"));
    world.ok("rm web");
    world.assert_clean("after a pod that had lost config, records and plugins");
    world.node.write(&format!("{CONF}/10-pods.conflist"), crate::world::PODS);
    let refused = world.fails("run web");
    assert!(
        refused.contains("failed to find plugin \"bridge\""),
        "nothing new is attached in a plugin's place: {refused}"
    );
    world.assert_clean("after a refusal");
}

#[test]
fn a_pod_of_a_missing_foreign_plugin_stays_listed_until_it_is_removed() {
    let world = World::new();
    let slow = r#"{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]}"#;
    world.node.write(&format!("{CONF}/20-slow.conflist"), slow);
    world.ok("run one --network slow");
    world.ok("run two --network slow");
    world.node.sh("mv /run/test/bin/slow /run/test/slow");
    let reported = world.fails("rm one");
    assert!(
        reported.contains("cannot remove pod default/one")
            && reported.contains("failed to find plugin \"slow\""),
        "{reported}"
    );
    let state = world.json("status one");
    assert_eq!(
        (&state["state"], &state["pid"]),
        (&"unfinished".into(), &serde_json::Value::Null),
        "its process has ended"
    );
    world.fails("stop one");
    world.ok("rm one --force");
    world.fails("rm two");
    world.node.sh("mv /run/test/slow /run/test/bin/slow");
    world.ok("rm two");
    world.node.sh(&format!("rm -f {CONF}/20-slow.conflist /var/lib/cni/results/slow-*"));
    world.assert_clean("after pods of a plugin that was gone");
}

#[test]
fn stop_and_rm_are_idempotent() {
    let world = World::new();
    assert_eq!(world.ok("rm missing"), "nothing to do for default/missing\n");
    assert_eq!(world.ok("stop missing"), "nothing to do for default/missing\n");
    world.ok("run web");
    assert_eq!(world.ok("stop web"), "stopped default/web\n");
    assert_eq!(world.ok("stop web"), "nothing to do for default/web\n");
    assert!(world.fails("run web").contains("already exists: it is stopped"));
    assert_eq!(world.ok("rm web"), "removed default/web\n");
    world.assert_clean("after doing everything twice");
}

#[test]
fn a_pod_whose_default_network_changed_is_detached_from_the_one_it_was_attached_to() {
    let world = World::new();
    world.ok("run web");
    let other = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}]}"#;
    world.node.write(&format!("{CONF}/10-pods.conflist"), other);
    world.ok("rm web");
    world.assert_clean("after a pod whose network changed");
}
