//! Packets of containers: reachability and ports.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins, Podman};

use crate::scene;

fn containers_are_on_the_network(plugins: Plugins) {
    let (podman, outside) = scene(plugins);
    let before = podman.traces();
    let dns = ["--dns", "10.96.0.10", "--dns-search", "pods.test", "--dns-opt", "ndots:5"];
    let web = podman.run(&ContainerSpec::named("web").port(8080, 80).with(&dns));
    let other = podman.run(&ContainerSpec::named("other"));
    podman.packets_pass(&outside, &web, ("other", &other));
    let resolver = podman.exec("web", "cat /etc/resolv.conf");
    assert_eq!(resolver, "search pods.test\nnameserver 10.96.0.10\noptions ndots:5\n");

    // Attach a running container to a second network, and detach it again.
    podman.must(&["network", "create", "--subnet", "10.91.0.0/24", "second"]);
    podman.must(&["network", "connect", "second", "web"]);
    let second = podman.addresses(&web.pod.netns, "eth1");
    assert_eq!(second.len(), 1, "{second:?}");
    let third = ["run", "-d", "--name", "third", "--network", "second", "--cap-add=NET_RAW"];
    podman.must(&[&third[..], &["podwire.test/pause:1"]].concat());
    podman.exec("third", &format!("ping -c 1 -W 10 {}", second[0]));
    podman.packets_pass(&outside, &web, ("other", &other));
    podman.must(&["network", "disconnect", "second", "web"]);
    assert!(
        !podman.can(&format!("nsenter --net={} ip link show eth1", web.pod.netns)),
        "eth1 is still there"
    );
    podman.packets_pass(&outside, &web, ("other", &other));

    // After a stop and a start, a container has a network again.
    podman.must(&["restart", "-t", "0", "web"]);
    podman.packets_pass(&outside, &podman.container("web"), ("other", &other));

    for name in ["third", "web", "other"] {
        podman.remove(name);
    }
    podman.must(&["network", "rm", "second"]);
    podman.assert_nothing_left(&before);
    podman.must(&["network", "rm", "pods"]);
    let left = podman.traces();
    assert!(!left.contains("cni-podman") && !left.contains("10.90.0."), "after the network: {left}");
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
fn a_container_receives_and_sends_as_fast_as_it_may_and_asks_its_networks_name_server() {
    limits_are_kept(Plugins::Ours);
}

#[test]
fn with_go_plugins_it_does_so_too() {
    limits_are_kept(Plugins::Go);
}

fn limits_are_kept(plugins: Plugins) {
    let (mut podman, outside) = scene(plugins);
    let before = podman.traces();
    podman.write("/etc/cni/net.d/limited.conflist", &Podman::limited_network());
    podman.set_network("limited");
    let web = podman.run(&ContainerSpec::named("web").port(8080, 80));
    let other = podman.run(&ContainerSpec::named("other"));
    podman.packets_pass(&outside, &web, ("other", &other));
    let resolver = podman.exec("web", "cat /etc/resolv.conf");
    assert!(resolver.starts_with("search limited.test\nnameserver 10.86.0.53\n"), "{resolver}");
    for (family, world) in [(0, "192.0.2.2"), (1, "2001:db8:2::2")] {
        podman.assert_limited(40_000_000, &outside, &web.pod, &web.addresses[family]);
        podman.assert_limited(16_000_000, &web.pod, &outside, world);
    }
    for name in ["web", "other"] {
        podman.remove(name);
    }
    podman.must(&["network", "rm", "limited"]);
    podman.assert_nothing_left(&before);
}

#[test]
fn fifty_containers_eight_at_a_time_get_a_network_each_and_leave_nothing() {
    let (podman, outside) = scene(Plugins::Ours);
    let before = podman.traces();
    podman.crowd(&outside);
    podman.assert_nothing_left(&before);
}

#[test]
fn with_go_plugins_fifty_get_one_too() {
    let (podman, outside) = scene(Plugins::Go);
    podman.crowd(&outside);
}
