//! `ctr run --cni`: containers without Kubernetes. The id of a container is `default-NAME` for the plugins, and its
//! namespace is `/proc/PID/ns/net`.

use std::sync::Mutex;

use podwire_runtime_tests::{image, network, Containerd, Gate, Plugins, Stage, Then};
use podwire_tests::{differences, podwire, Pod};
use serde_json::{json, Value};

fn start() -> Containerd {
    Containerd::start(Stage::new(Plugins::Ours))
}

/// Runs a command in a running container; panics if it fails.
fn exec(containerd: &Containerd, name: &str, words: &str) {
    containerd.sh(&format!("ctr task exec --exec-id look-$$ {name} {words}"));
}

/// The addresses of a container, IPv4 and IPv6, read in its namespace. `ctr task exec` is not used: it loses the output
/// of about one command in two thousand (seen with 1.6.20).
fn addresses(containerd: &Containerd, name: &str) -> Vec<String> {
    let links = containerd.json(&format!(
        "pid=$(ctr task list | sed -n 's/^{name}  *\\([0-9]*\\).*/\\1/p')
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
fn detached_containers_ping_each_other_and_gc_and_audit_remove_leftovers_of_ctr() {
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
    // ctr sends no DEL for a container that it started in the background: its address and its record stay.
    end("one");
    assert!(containerd.can("ls /var/lib/cni/results/pods-default-one-eth0"));
    sweep("gc pods");
    assert!(!containerd.can("ls /var/lib/cni/results/pods-default-one-eth0"));
    // The other container still works.
    exec(&containerd, "two", "ping -c 1 -W 10 10.85.0.1");
    end("two");
    sweep("audit --fix");
    assert_eq!(differences(&before, &containerd.traces()), "");
}

/// The command of a container that serves a page with its name.
fn serve(name: &str) -> String {
    format!(
        "ctr run --cni --detach {} {name} sh -c 'mkdir -p /www; echo {name} >/www/index.html; exec httpd -f -p 80 -h /www'",
        image::BOX
    )
}

/// A container's namespace, with a name for the stage's functions.
fn pod(containerd: &Containerd, name: &str) -> Pod {
    let pid = containerd.sh(&format!("ctr task list | sed -n 's/^{name}  *\\([0-9]*\\).*/\\1/p'"));
    containerd.adopt(name, &format!("/proc/{}/ns/net", pid.trim()))
}

/// Ends containers, for which ctr sends no DEL, and cleans up.
fn end(containerd: &Containerd, names: &[&str]) {
    for name in names {
        containerd.sh(&format!(
            "rm -f /run/netns/{name}; ctr task delete --force {name}; ctr container delete {name}"
        ));
    }
    containerd.sh(&format!("{} cni gc pods", podwire()));
}

/// ctr passes no capability arguments to plugins: ports and limits are in the network config.
fn network_with_port_and_limits() -> String {
    let mut list: Value = serde_json::from_str(&network()).expect("the guide's network");
    for plugin in list["plugins"].as_array_mut().expect("plugins") {
        if plugin["type"] == "portmap" {
            let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
            plugin["runtimeConfig"] = json!({ "portMappings": ports });
        }
        if plugin["type"] == "bandwidth" {
            plugin["ingressRate"] = json!(40_000_000);
            plugin["ingressBurst"] = json!(400_000);
            plugin["egressRate"] = json!(16_000_000);
            plugin["egressBurst"] = json!(160_000);
        }
    }
    list.to_string()
}

fn a_container_has_a_port_and_limits(plugins: Plugins) {
    let stage = Stage::new(plugins);
    let outside = stage.outside();
    let containerd = Containerd::start(stage);
    containerd.set_network(&network_with_port_and_limits());
    containerd.sh(&format!("ctr run --cni --rm {} first true", image::BOX));
    let before = containerd.traces();
    containerd.sh(&serve("web"));
    let (web, addresses) = (pod(&containerd, "web"), addresses(&containerd, "web"));
    for address in [containerd.address().to_owned(), format!("[{}]", containerd.address6())] {
        assert_eq!(containerd.page(&outside, &format!("{address}:8080")), "web", "from outside, {address}");
    }
    for (family, world) in [(0, "192.0.2.2"), (1, "2001:db8:2::2")] {
        containerd.assert_limited(40_000_000, &outside, &web, &addresses[family]);
        containerd.assert_limited(16_000_000, &web, &outside, world);
    }
    end(&containerd, &["web"]);
    // GC finds the iptables rules of Go's plugins, but not the devices of their bandwidth.
    match plugins {
        Plugins::Ours => containerd.assert_nothing_left(&before),
        Plugins::Go => assert!(!containerd.can("ls /var/lib/cni/results/pods-default-web-eth0")),
    }
}

#[test]
fn ports_and_limits_of_the_network_config_apply_to_every_container() {
    a_container_has_a_port_and_limits(Plugins::Ours);
}

#[test]
fn with_go_plugins_a_container_has_the_port_and_limits_too() {
    a_container_has_a_port_and_limits(Plugins::Go);
}

#[test]
fn containers_of_go_plugins_keep_their_network_and_are_removed_by_our_plugins() {
    let containerd = Containerd::start(Stage::new(Plugins::Go));
    containerd.sh(&format!("ctr run --cni --rm {} first true", image::BOX));
    let before = containerd.traces();
    run_detached(&containerd, "old");
    let old = addresses(&containerd, "old");
    containerd.install(Plugins::Ours);
    run_detached(&containerd, "new");
    for address in old.iter().chain(&addresses(&containerd, "new")) {
        exec(&containerd, "old", &format!("ping -c 1 -W 10 {address}"));
        exec(&containerd, "new", &format!("ping -c 1 -W 10 {address}"));
    }
    end(&containerd, &["old", "new"]);
    containerd.assert_nothing_new(&before);
}

#[test]
fn fifty_containers_eight_at_a_time_get_unique_addresses_and_are_removed() {
    let containerd = start();
    containerd.sh(&format!("ctr run --cni --rm {} first true", image::BOX));
    let before = containerd.traces();
    let names: Vec<String> = (0..50).map(|n| format!("box-{n}")).collect();
    let queue = Mutex::new(names.iter());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let take = || queue.lock().expect("the queue").next();
                while let Some(name) = take() {
                    run_detached(&containerd, name);
                }
            });
        }
    });
    let mut all: Vec<String> = names.iter().flat_map(|name| addresses(&containerd, name)).collect();
    for address in &all {
        containerd.sh(&format!("ping -q -c 1 -W 10 {address}"));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 100, "each has two addresses, and no two the same");
    end(&containerd, &names.iter().map(String::as_str).collect::<Vec<_>>());
    containerd.assert_nothing_left(&before);
}

#[test]
fn leftovers_of_a_killed_ctr_are_removed() {
    let containerd = start();
    containerd.sh(&format!("ctr run --cni --rm {} first true", image::BOX));
    let before = containerd.traces();
    let run = ["ctr", "run", "--cni", "--detach", image::BOX, "partial", "sleep", "100000"];
    for (gate, then) in [
        (Gate::before("bridge"), Then::IsKilled),
        (Gate::after("host-local"), Then::IsKilled),
        (Gate::after("host-local"), Then::Continues),
        (Gate::after("bridge"), Then::IsKilled),
        (Gate::after("portmap"), Then::Continues),
        (Gate::after("bandwidth"), Then::IsKilled),
    ] {
        gate.put_up(&containerd);
        let client = containerd.daemon(&run);
        gate.pass(&containerd, then, || client.kill(&containerd));
        gate.take_away(&containerd);
        end(&containerd, &["partial"]);
        containerd.assert_nothing_new(&before);
    }
    // The same name can be used again.
    run_detached(&containerd, "partial");
    exec(&containerd, "partial", "ping -c 1 -W 10 10.85.0.1");
    end(&containerd, &["partial"]);
    containerd.assert_nothing_new(&before);
}
