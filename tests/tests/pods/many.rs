//! Many pods at once, and many commands for one pod.

use std::time::{Duration, Instant};

use crate::world::{World, CONF};

#[test]
fn two_hundred_pods_at_once_leave_nothing() {
    let world = World::new();
    world.ok("run load --count 200");
    let list = world.json("list");
    let pods = list["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 200);
    assert!(pods.iter().all(|pod| pod["state"] == "ready"), "{list}");
    let mut addresses: Vec<_> =
        pods.iter().flat_map(|pod| pod["ips"].as_array().unwrap().clone()).map(|ip| ip.to_string()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 400, "each has an address of each family, and no two have the same");
    world.ok("stop --all");
    assert!(world.json("list")["pods"].as_array().unwrap().iter().all(|pod| pod["state"] == "stopped"));
    world.ok("rm --all");
    world.assert_clean("after 200 pods");
}

#[test]
fn names_come_from_standard_input_too() {
    let world = World::new();
    world.node.sh(&format!("printf 'a\\nkube-system/b\\n\\n' | {} pod run -", world.prefix()));
    let list = world.ok("list");
    assert!(list.contains("default      a ") && list.contains("kube-system  b "), "{list}");
    world.node.sh(&format!("printf 'a\\nkube-system/b\\n' | {} pod rm -", world.prefix()));
    assert_eq!(world.ok("list"), "no pods\n");
}

#[test]
fn of_concurrent_runs_of_the_same_pod_one_succeeds() {
    let world = World::new();
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| world.pod("run same"))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let (done, refused): (Vec<_>, Vec<_>) = outputs.iter().partition(|output| output.status == 0);
    assert_eq!(done.len(), 1, "{outputs:?}");
    assert!(
        refused.iter().all(|output| output.stderr.contains("pod default/same already exists: it is ready")),
        "{refused:?}"
    );
    world.ok("rm same");
    world.assert_clean("after one pod run by many");
}

#[test]
fn running_and_removing_one_pod_at_the_same_time_leaves_it_there_or_not() {
    let world = World::new();
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let world = &world;
            scope.spawn(move || {
                for _ in 0..10 {
                    let output = world.pod(if worker % 2 == 0 { "run same" } else { "rm same" });
                    let fair = output.status == 0 || output.stderr.contains("already exists");
                    assert!(fair, "{}{}", output.stdout, output.stderr);
                }
            });
        }
    });
    let list = world.json("list");
    assert!(list["pods"].as_array().unwrap().iter().all(|pod| pod["state"] == "ready"), "{list}");
    world.ok("rm same");
    world.assert_clean("after a struggle over one pod");
}

/// Waits until the slow plugin runs for this many pods.
#[track_caller]
fn wait_until_begun(world: &World, count: usize) {
    let end = Instant::now() + Duration::from_secs(40);
    let begun = || {
        let said = world.node.try_sh("grep -c begin /run/test/log").stdout;
        String::from_utf8_lossy(&said).trim().parse::<usize>().unwrap_or(0)
    };
    while begun() < count {
        assert!(Instant::now() < end, "{} of {count} have begun", begun());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn operations_on_one_pod_wait_for_each_other_and_on_others_do_not() {
    let world = World::new();
    let slow = r#"{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]}"#;
    world.node.write(&format!("{CONF}/20-slow.conflist"), slow);
    // Removing a pod that is being started waits until it runs.
    world.node.sh("touch /run/test/gate");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.ok("run one --network slow=eth0"));
        wait_until_begun(&world, 1);
        assert_eq!(world.json("list")["pods"][0]["state"], "starting");
        let removal = scope.spawn(|| world.ok("rm one"));
        // Without waiting, the removal would have ended by then.
        std::thread::sleep(Duration::from_millis(500));
        world.node.sh("rm /run/test/gate");
        run.join().unwrap();
        removal.join().unwrap();
    });
    let log = world.node.sh("cut -d' ' -f1 /run/test/log");
    assert_eq!(log, "begin\nend\ndel\n");
    // Eight pods: none is complete before all have begun.
    world.node.sh("rm /run/test/log && touch /run/test/gate");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.ok("run load --count 8 --network slow=eth0"));
        wait_until_begun(&world, 8);
        world.node.sh("rm /run/test/gate");
        run.join().unwrap();
    });
    world.ok("rm --all");
    world.node.sh(&format!("rm {CONF}/20-slow.conflist"));
    world.assert_clean("after slow pods");
}
