//! Failures have helpful errors and leave nothing behind.

use crate::world::{World, CONF, PODS};

#[track_caller]
fn refused(world: &World, words: &str, expected: &str) {
    let reported = world.fails(words);
    let because = reported.lines().filter(|line| line.trim_start().starts_with("because:")).count();
    assert!(reported.contains(expected) && because == 1, "{words}: {reported}");
    world.assert_clean(&format!("after {words}"));
}

#[test]
fn an_invalid_pod_fails_and_leaves_nothing() {
    let world = World::new();
    for (words, expected) in [
        ("run Web", "invalid pod name \"Web\""),
        ("run a/b/c", "invalid pod name \"b/c\""),
        ("run web --namespace ../x", "invalid namespace \"../x\""),
        ("run web --hostname 'a b'", "\"a b\" is not a host name"),
        ("run web --dns-server dns.example", "DNS server \"dns.example\" is not an address"),
        ("run web --dns-search 'a b'", "DNS search \"a b\" is not a domain"),
        ("run web --dns-option 'a b'", "DNS option \"a b\" is invalid"),
        ("run web --sysctl vm.swappiness=1", "sysctl \"vm.swappiness\" is not namespaced"),
        ("run web --sysctl net.ipv4.no_such_knob=1", "net/ipv4/no_such_knob"),
        ("run web --sysctl net.core.somaxconn=many", "Invalid argument"),
        ("run web --host-network --sysctl net.core.somaxconn=1", "would change the node"),
        ("run web --host-network --port 80:80", "a pod on the host's network has no ports of its own"),
        ("run web --network nowhere", "no net configuration with name \"nowhere\""),
        ("run web --network pods=lo", "interface \"lo\" is requested twice"),
        ("run web --network pods=a --network pods=a", "interface \"a\" is requested twice"),
        ("run web --network pods=a/b", "interface name contains / or :"),
        (
            "run web --annotation kubernetes.io/ingress-bandwidth=fast",
            "annotation kubernetes.io/ingress-bandwidth",
        ),
        ("run web --uid 'a;b'", "neither ';' nor '='"),
    ] {
        refused(&world, words, expected);
    }
    for usage in
        ["run web --port 80", "run web --ingress-bandwidth 10MB", "run web --count 0", "run", "rm", "exec"]
    {
        assert_eq!(world.pod(usage).status, 2, "{usage}");
    }
    assert!(world.fails("exec missing -- true").contains("there is no pod default/missing"));
    assert!(world.fails("status missing").contains("there is no pod default/missing"));
    let by_hand = world.run("pause");
    assert!(by_hand.status == 2 && by_hand.stderr.contains("runs in pods only"), "{}", by_hand.stderr);
    world.assert_clean("after all refusals");
}

#[test]
fn a_pod_that_is_there_is_not_touched_by_another_of_its_name() {
    let world = World::new();
    let pod = world.start("web", "");
    let address = world.ip("web", false);
    assert!(world.fails("run web").contains("pod default/web already exists: it is ready"));
    assert!(world.node.pings(None, &address) && world.node.pings(Some(&pod), "10.9.0.1"));
    world.ok("rm web");
    world.assert_clean("after a pod that was asked for twice");
}

#[test]
fn without_a_usable_network_run_fails_with_the_reason_and_leaves_nothing() {
    let world = World::new();
    let file = |name: &str, text: &str| world.node.write(&format!("{CONF}/{name}"), text);
    world.node.sh(&format!("rm {CONF}/*"));
    refused(&world, "run web", "no net configurations found in /run/test/conf");
    let status = world.pod("status");
    assert!(
        status.status == 1 && status.stdout.contains("network not ready: no net configurations found"),
        "{}",
        status.stdout
    );
    file("10-torn.conflist", "{");
    refused(&world, "run web", "10-torn.conflist: error parsing configuration list: invalid JSON");
    file("20-absent.conflist", r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "nowhere"}]}"#);
    refused(&world, "run web", "failed to find plugin \"nowhere\"");
    file(
        "30-plain.conflist",
        r#"{"cniVersion": "1.0.0", "name": "plain", "plugins": [{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]}"#,
    );
    refused(&world, "run web --port 80:80", "network \"plain\" publishes no ports");
    refused(&world, "run web --ingress-bandwidth 8M", "network \"plain\" limits no bandwidth");
    // A network whose last plugin fails.
    file(
        "40-late.conflist",
        &PODS
            .replace("\"pods\"", "\"late\"")
            .replace(r#"{"type": "firewall"}"#, r#"{"type": "firewall", "backend": "nonsense"}"#),
    );
    refused(&world, "run web --network late=eth0", "nonsense");
    refused(&world, "run web --network late", "nonsense");
    world.ok("run web --network plain=eth0");
    world.ok("rm web");
}

#[test]
fn some_pods_of_many_fail_and_the_others_run() {
    let world = World::new();
    world.ok("run b");
    let output = world.pod("run a b c");
    assert_eq!(output.status, 1);
    assert!(
        output.stdout.contains("running default/a") && output.stdout.contains("running default/c"),
        "{}",
        output.stdout
    );
    assert!(output.stderr.contains("cannot run pod default/b"), "{}", output.stderr);
    world.ok("rm --all");
    world.assert_clean("after a pod among others that failed");
}
