//! `ctr run --cni`: containers without Kubernetes. The id of a container is `default-NAME` for the plugins, and its namespace
//! is `/proc/PID/ns/net`.

use podwire_runtime_tests::{image, Containerd, Plugins, Stage};
use podwire_tests::{differences, podwire};

fn start() -> Containerd {
    Containerd::start(Stage::new(Plugins::Ours))
}

/// Runs words in a container that runs; panics if they fail.
fn exec(containerd: &Containerd, name: &str, words: &str) {
    containerd.sh(&format!("ctr task exec --exec-id look-$$ {name} {words}"));
}

/// The addresses of a container, IPv4 and IPv6, read in its namespace: of one in some two thousand commands that `ctr task exec` runs,
/// it loses what they printed (seen with 1.6.20, while the namespace was as it should be).
fn addresses(containerd: &Containerd, name: &str) -> Vec<String> {
    let links = containerd.json(&format!(
        "pid=$(ctr task list | sed -n 's/^{name} *\\([0-9]*\\).*/\\1/p')
         nsenter --net=/proc/$pid/ns/net ip -j address show dev eth0 scope global"
    ));
    let found = links[0]["addr_info"].as_array().cloned().unwrap_or_default();
    let all: Vec<_> = found.iter().filter_map(|one| one["local"].as_str()).map(String::from).collect();
    assert_eq!(all.len(), 2, "IPv4 and IPv6 of {name}: {links}");
    all
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
            for address in addresses(containerd, to) {
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
