//! dockerd or `podwire cni` restarts or is killed.

use podwire_runtime_tests::{settle_at, ContainerSpec, Docker, Engine, Gate, Plugins, Then, GATES};
use podwire_tests::podwire;

use crate::scene;

#[test]
fn containers_keep_their_network_while_dockerd_is_down_and_are_removed_cleanly_afterwards() {
    let (mut docker, outside) = scene(Plugins::Ours);
    let before = docker.traces();
    let web = docker.run(&ContainerSpec::named("web").port(8080, 80));
    let other = docker.run(&ContainerSpec::named("other"));
    let running = docker.traces();
    // dockerd stops once regularly and crashes once.
    for crash in [false, true] {
        if crash {
            docker.kill();
        } else {
            docker.stop();
        }
        assert!(
            web.addresses.iter().all(|address| docker.pings(Some(&other.pod), address)),
            "while dockerd is away"
        );
        assert_eq!(docker.page(&outside, "192.0.2.1:8080"), "web", "while dockerd is away");
        docker.restart();
        docker.assert_nothing_left(&running);
    }
    docker.packets_pass(&outside, &web, ("other", &other));
    for name in ["web", "other"] {
        docker.remove(name);
    }
    docker.assert_nothing_left(&before);
}

#[test]
fn leftovers_of_a_container_that_ended_without_del_are_removed() {
    let (docker, _outside) = scene(Plugins::Ours);
    let running = docker.run(&ContainerSpec::named("running"));
    let before = docker.traces();
    // The container is removed, or its process ends: in both cases Docker removes the namespace.
    for end in [&["docker", "rm", "-f", "gone"][..], &["docker", "kill", "gone"]] {
        let gone = docker.run(&ContainerSpec::named("gone").port(8080, 80));
        docker.must(end);
        // kill returns shortly before the namespace is removed.
        let exists = format!("stat -f -c %T {} 2>/dev/null | grep -q nsfs", gone.pod.netns);
        docker.sh(&format!("for try in $(seq 600); do {exists} || exit 0; sleep 0.05; done; exit 1"));
        docker.sh(&format!("rm -f /run/netns/{}", gone.pod.name));
        let printed = docker.must(&["podwire", "cni", "gc", "pods"]);
        assert!(printed.starts_with(&format!("removed {} eth0 10.87.", &gone.id[..12])), "{printed}");
        docker.call(&["docker", "rm", "gone"]);
        docker.assert_nothing_left(&before);
    }
    docker.must(&["docker-net", "check", "pods", "running"]);
    drop(running);
}

#[test]
fn leftovers_of_a_killed_dockerd_are_removed() {
    let (mut docker, outside) = scene(Plugins::Ours);
    docker.sh(&format!("mkdir -p {GATES}"));
    let web = docker.run(&ContainerSpec::named("web").port(8080, 80));
    let other = docker.run(&ContainerSpec::named("other"));
    let namespaces = |docker: &Docker| docker.stage().sh("findmnt -n -r -o TARGET -t nsfs | sort");
    let (before, used) = (docker.traces(), namespaces(&docker));
    for gate in [Gate::before("runc"), Gate::after("runc")] {
        for then in [Then::Continues, Then::IsKilled] {
            println!("{gate:?}, and {then:?}");
            let words = docker.words(&ContainerSpec::named("partial"));
            docker.kill_at(gate, then, &words);
            docker.restart();
            docker.call(&["docker", "rm", "-f", "partial"]);
            docker.sweep();
            docker.assert_nothing_new(&before);
            settle_at(&docker, "namespaces of Docker's", namespaces, &used);
        }
    }
    docker.packets_pass(&outside, &web, ("other", &other));
    // The same name can be used again.
    docker.run(&ContainerSpec::named("partial").port(8081, 80));
}

/// Kills `podwire cni add` at a gate.
fn kill_attaching(docker: &Docker, gate: Gate, then: Then) {
    println!("{gate:?}, and {then:?}");
    gate.put_up(docker);
    let netns = docker.container("partial").pod.netns;
    let id = docker.must(&["docker", "inspect", "--format", "{{.Id}}", "partial"]);
    let program = podwire();
    // The gates are there, and not beside the program.
    let plugins = "--plugin-dir=/opt/cni/bin";
    let words =
        [&*program, "cni", "add", "pods", &netns, "--container", &id, "--publish", "8081:80", plugins];
    let running = docker.daemon(&words);
    gate.pass(docker, then, || running.kill(docker));
    gate.take_away(docker);
}

#[test]
fn an_incomplete_attachment_is_removed_by_del_or_replaced_by_another_add() {
    let (docker, outside) = scene(Plugins::Ours);
    docker.try_create(&ContainerSpec::named("partial")).expect("a container");
    docker.container("partial");
    let before = docker.traces();
    for gate in [
        Gate::before("bridge"),
        Gate::after("host-local"),
        Gate::after("bridge"),
        Gate::after("portmap"),
        Gate::after("bandwidth"),
        Gate::after("firewall"),
    ] {
        for then in [Then::Continues, Then::IsKilled] {
            kill_attaching(&docker, gate, then);
            docker.must(&["docker-net", "del", "pods", "partial"]);
            docker.assert_nothing_left(&before);
            // Without a DEL in between, the next ADD removes what is left.
            kill_attaching(&docker, gate, then);
            docker.must(&["docker-net", "add", "pods", "partial", "--publish", "8081:80"]);
            assert_eq!(docker.page(&outside, "192.0.2.1:8081"), "partial");
            docker.must(&["docker-net", "check", "pods", "partial"]);
            docker.must(&["docker-net", "del", "pods", "partial"]);
            docker.assert_nothing_left(&before);
        }
    }
    // The container is removed before another DEL or ADD.
    kill_attaching(&docker, Gate::after("portmap"), Then::IsKilled);
    docker.must(&["docker", "rm", "-f", "partial"]);
    docker.must(&["podwire", "cni", "gc", "pods"]);
    docker.assert_nothing_left(&before);
}
