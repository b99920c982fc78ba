//! podman or conmon is killed. No daemon cleans up: the next podman removes what it can, and the commands of the guide
//! remove the rest.

use podwire_runtime_tests::{settle_at, ContainerSpec, Engine, Gate, Plugins, Podman, Then, GATES};

use crate::scene;

use Then::{Continues, IsKilled};

/// Moments of a start, in their order. podman calls conmon when the network is complete, and conmon calls runc.
const STARTS: &[(Gate, Then)] = &[
    (Gate::before("bridge"), Continues),
    (Gate::after("host-local"), Continues),
    (Gate::after("host-local"), IsKilled),
    (Gate::after("bridge"), Continues),
    (Gate::after("bridge"), IsKilled),
    (Gate::after("portmap"), IsKilled),
    (Gate::after("firewall"), Continues),
    (Gate::after("tuning"), Continues),
    (Gate::after("tuning"), IsKilled),
    (Gate::before("conmon"), Continues),
    (Gate::before("conmon"), IsKilled),
    (Gate::before("runc"), Continues),
    (Gate::before("runc"), IsKilled),
    (Gate::after("runc"), Continues),
    (Gate::after("runc"), IsKilled),
];

/// Moments of a removal: podman calls the plugins in reverse order.
const ENDS: &[(Gate, Then)] = &[
    (Gate::at("DEL", "tuning"), IsKilled),
    (Gate::at("DEL", "portmap"), Continues),
    (Gate::at("DEL", "portmap"), IsKilled),
    (Gate::at("DEL", "bridge"), IsKilled),
];

/// Runs podman into a gate and kills it there.
fn kill_at(podman: &Podman, gate: Gate, then: Then, words: &[&str]) {
    println!("{gate:?}, and {then:?}");
    gate.put_up(podman);
    let running = podman.begin(words);
    gate.pass(podman, then, || running.kill(podman));
    gate.take_away(podman);
}

/// The processes of containers and their monitors.
fn processes(podman: &Podman) -> Vec<String> {
    let found = podman.sh("ps -e -o comm= | grep -E '^(conmon|runc|httpd)' | sort");
    found.lines().map(String::from).collect()
}

/// Removes a container that podman may not know. The first try may fail because of a mount that is left.
fn remove(podman: &Podman, name: &str) {
    let words = ["rm", "-f", "-i", "-t", "0", name];
    if podman.call(&words).status != 0 {
        podman.must(&words);
    }
}

#[test]
fn leftovers_of_a_killed_podman_are_removed_and_running_containers_are_unaffected() {
    let (podman, outside) = scene(Plugins::Ours);
    podman.sh(&format!("mkdir -p {GATES} && ln -s $(command -v runc) $(command -v conmon) {GATES}/"));
    let web = podman.run(&ContainerSpec::named("web").port(8080, 80));
    let other = podman.run(&ContainerSpec::named("other"));
    let before = podman.traces();
    let running = ["conmon", "conmon", "httpd", "httpd"].map(String::from).to_vec();
    settle_at(&podman, "two containers run", processes, &running);
    let (runtime, monitor) = (format!("{GATES}/runc"), format!("{GATES}/conmon"));
    let spec = podman.words(&ContainerSpec::named("partial").port(8081, 80));
    let mut words = vec!["--runtime", &runtime, "--conmon", &monitor];
    words.extend(spec.iter().map(String::as_str));
    for (gate, then) in STARTS {
        kill_at(&podman, *gate, *then, &words);
        remove(&podman, "partial");
        podman.sweep();
        podman.assert_nothing_new(&before);
        settle_at(&podman, "processes that are left", processes, &running);
    }
    // The same name and the same host port can be used again.
    podman.run(&ContainerSpec::named("partial").port(8081, 80));
    for (gate, then) in ENDS {
        kill_at(&podman, *gate, *then, &["rm", "-f", "-t", "0", "partial"]);
        remove(&podman, "partial");
        podman.sweep();
        podman.assert_nothing_new(&before);
        podman.run(&ContainerSpec::named("partial").port(8081, 80));
    }
    podman.remove("partial");
    podman.packets_pass(&outside, &web, ("other", &other));
    podman.assert_nothing_new(&before);
}

#[test]
fn a_container_whose_conmon_is_killed_keeps_its_network_and_is_removed_cleanly() {
    let (podman, outside) = scene(Plugins::Ours);
    let before = podman.traces();
    let web = podman.run(&ContainerSpec::named("web").port(8080, 80));
    let other = podman.run(&ContainerSpec::named("other"));
    let monitor = podman.must(&["inspect", "--format", "{{.State.ConmonPid}}", "web"]);
    podman.sh(&format!("kill -9 {monitor}"));
    for address in &web.addresses {
        podman.exec("other", &format!("ping -c 1 -W 10 {address}"));
    }
    assert_eq!(podman.page(&outside, "192.0.2.1:8080"), "web");
    for name in ["web", "other"] {
        remove(&podman, name);
    }
    podman.sh("for pid in $(pidof httpd); do kill -9 $pid; done");
    podman.sweep();
    podman.assert_nothing_left(&before);
    drop(other);
}
