//! Packets of containers: reachability and ports.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins};
use serde_json::json;

use crate::scene;

fn containers_are_on_the_network(plugins: Plugins) {
    let (docker, outside) = scene(plugins);
    let before = docker.traces();
    let dns = ["--dns", "10.96.0.10", "--dns-search", "pods.test", "--dns-option", "ndots:5"];
    let web = docker.run(&ContainerSpec::named("web").port(8080, 80).with(&dns));
    let other = docker.run(&ContainerSpec::named("other"));
    docker.packets_pass(&outside, &web, ("other", &other));
    let resolver = docker.exec("web", "cat /etc/resolv.conf");
    assert_eq!(resolver, "search pods.test\nnameserver 10.96.0.10\noptions ndots:5\n");
    if plugins == Plugins::Ours {
        // CHECK of Go's portmap looks for the IPv4 rules among those of IPv6, and Go's bridge can detach only one of
        // two interfaces in one network.
        docker.must(&["docker-net", "check", "pods", "web"]);
        docker.must(&["docker-net", "add", "pods", "web", "--ifname", "eth1"]);
        assert_eq!(docker.addresses(&web.pod.netns, "eth1").len(), 2);
        docker.must(&["docker-net", "del", "pods", "web", "--ifname", "eth1"]);
        docker.packets_pass(&outside, &web, ("other", &other));
    }

    for name in ["web", "other"] {
        docker.remove(name);
    }
    docker.assert_nothing_left(&before);
}

#[test]
fn containers_ping_each_other_and_host_ports_answer_from_outside() {
    containers_are_on_the_network(Plugins::Ours);
}

#[test]
fn with_go_plugins_all_of_this_is_so_too() {
    containers_are_on_the_network(Plugins::Go);
}

#[test]
fn a_container_receives_and_sends_as_fast_as_it_may_and_no_faster() {
    limits_are_kept(Plugins::Ours);
}

#[test]
fn with_go_plugins_it_does_so_too() {
    limits_are_kept(Plugins::Go);
}

fn limits_are_kept(plugins: Plugins) {
    let (docker, outside) = scene(plugins);
    let before = docker.traces();
    docker.try_create(&ContainerSpec::named("web")).expect("a container");
    let limits = json!({"ingressRate": 40_000_000, "ingressBurst": 400_000, "egressRate": 16_000_000, "egressBurst": 160_000});
    let web = docker.try_attach("web", &["--capability", &format!("bandwidth={limits}")]).expect("a network");
    for (family, world) in [(0, "192.0.2.2"), (1, "2001:db8:2::2")] {
        docker.assert_limited(40_000_000, &outside, &web.pod, &web.addresses[family]);
        docker.assert_limited(16_000_000, &web.pod, &outside, world);
    }
    docker.remove("web");
    docker.assert_nothing_left(&before);
}

#[test]
fn fifty_containers_eight_at_a_time_get_a_network_each_and_leave_nothing() {
    let (docker, outside) = scene(Plugins::Ours);
    let before = docker.traces();
    docker.crowd(&outside);
    docker.assert_nothing_left(&before);
}

#[test]
fn with_go_plugins_fifty_get_one_too() {
    let (docker, outside) = scene(Plugins::Go);
    docker.crowd(&outside);
}

#[test]
fn as_cnitool_it_attaches_and_detaches_a_container_too() {
    let (docker, outside) = scene(Plugins::Ours);
    let before = docker.traces();
    docker.try_create(&ContainerSpec::named("web")).expect("a container");
    let netns = docker.container("web").pod.netns;
    let ports =
        "CAP_ARGS={\"portMappings\": [{\"hostPort\": 8080, \"containerPort\": 80, \"protocol\": \"tcp\"}]}";
    docker.must(&["CNI_PATH=/opt/cni/bin", ports, "cnitool", "add", "pods", &netns]);
    let web = docker.container("web");
    assert_eq!(web.addresses.len(), 2, "{web:?}");
    assert_eq!(docker.page(&outside, "192.0.2.1:8080"), "web");
    docker.must(&["CNI_PATH=/opt/cni/bin", ports, "cnitool", "check", "pods", &netns]);
    docker.must(&["CNI_PATH=/opt/cni/bin", ports, "cnitool", "del", "pods", &netns]);
    docker.must(&["docker", "rm", "-f", "web"]);
    docker.sh(&format!("rm -f /run/netns/{}", web.pod.name));
    docker.assert_nothing_left(&before);
}
