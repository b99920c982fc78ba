//! `ctr run --cni`: containers without Kubernetes. The id of a container is `default-NAME` for the plugins, and its namespace
//! is `/proc/PID/ns/net`.

use podwire_runtime_tests::{image, Containerd, Plugins, Stage};
use podwire_tests::{differences, podwire};

fn start() -> Containerd {
    Containerd::start(Stage::new(Plugins::Ours))
}

/// Runs words in a container that runs.
fn exec(containerd: &Containerd, name: &str, words: &str) -> String {
    containerd.sh(&format!("ctr task exec --exec-id look-$$ {name} {words}"))
}

/// The addresses of a container, IPv4 and IPv6, as it sees them itself.
fn addresses(containerd: &Containerd, name: &str) -> Vec<String> {
    let printed = exec(containerd, name, "ip address show dev eth0");
    let lines = printed.lines().filter(|line| line.contains("scope global"));
    let address =
        |line: &str| line.split_whitespace().nth(1).and_then(|cidr| cidr.split('/').next()).map(String::from);
    lines.filter_map(address).collect()
}

fn run_detached(containerd: &Containerd, name: &str) {
    containerd.sh(&format!("ctr run --cni --detach {} {name} sleep 100000", image::BOX));
}

#[test]
fn a_container_in_the_foreground_has_a_network_and_leaves_nothing() {
    let containerd = start();
    let run = |name: &str| {
        containerd.sh(&format!("ctr run --cni --rm {} {name} ping -c 1 -W 10 10.85.0.1", image::BOX));
        containerd.traces()
    };
    let before = run("first");
    assert_eq!(differences(&before, &run("second")), "");
}

#[test]
fn detached_containers_ping_each_other_and_what_ctr_leaves_of_them_is_swept_by_gc_and_audit() {
    let mut containerd = start();
    containerd.sh(&format!("ctr run --cni --rm {} first true", image::BOX));
    let before = containerd.traces();
    run_detached(&containerd, "one");
    run_detached(&containerd, "two");
    let ping_both_ways = |containerd: &Containerd| {
        for (from, to) in [("one", "two"), ("two", "one")] {
            let all = addresses(containerd, to);
            assert_eq!(all.len(), 2, "{all:?}");
            for address in all {
                exec(containerd, from, &format!("ping -c 1 -W 10 {address}"));
            }
        }
    };
    ping_both_ways(&containerd);
    containerd.kill();
    containerd.restart();
    ping_both_ways(&containerd);

    let end = |name: &str| {
        containerd.sh(&format!("ctr task delete --force {name} && ctr container delete {name}"));
    };
    let sweep = |words: &str| containerd.sh(&format!("{} cni {words}", podwire()));
    // ctr does not detach a container that it started in the background: its address and its record stay.
    end("one");
    assert!(containerd.can("ls /var/lib/cni/results/pods-default-one-eth0"));
    sweep("gc pods");
    assert!(!containerd.can("ls /var/lib/cni/results/pods-default-one-eth0"));
    // The other one was not touched.
    exec(&containerd, "two", "ping -c 1 -W 10 10.85.0.1");
    end("two");
    sweep("audit --fix");
    assert_eq!(differences(&before, &containerd.traces()), "");
}
