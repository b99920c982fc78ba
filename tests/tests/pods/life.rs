//! The properties of a running pod.

use crate::world::{World, CONF};

/// Duplicate address detection may still be running.
const NODE: &str = r#"ip -o address | sed "s/ tentative//"; ip route; nft list ruleset; hostname"#;

#[test]
fn two_pods_reach_each_other_and_the_node_in_both_families() {
    let world = World::new();
    let (one, two) = (world.start("one", ""), world.start("two", "--namespace default"));
    for v6 in [false, true] {
        assert!(world.node.pings(Some(&one), &world.ip("two", v6)));
        assert!(world.node.pings(Some(&two), &world.ip("one", v6)));
        assert!(world.node.pings(None, &world.ip("one", v6)));
    }
    let printed = world.ok("exec one -- ping -c 1 -W 5 127.0.0.1");
    assert!(printed.contains(" 0% packet loss"), "the pod's own loopback is up: {printed}");
    world.ok("rm one two");
    world.assert_clean("after two pods");
}

#[test]
fn a_port_of_the_node_leads_into_the_pod_until_it_is_stopped() {
    let world = World::new();
    let pod = world.start("web", "--port 8080:80 --port 127.0.0.1:5353:53/udp");
    let listeners = [world.node.listen(Some(&pod), "tcp/80"), world.node.listen(Some(&pod), "udp/53")];
    assert!(world.node.ask(None, &world.ip("web", false), "tcp/80").starts_with("web"));
    assert!(world.node.ask(None, "127.0.0.1", "tcp/8080").starts_with("web"));
    assert!(world.node.ask(None, "127.0.0.1", "udp/5353").starts_with("web"));
    let taken = world.fails("run other --port 8080:80");
    assert!(taken.contains("host port 8080/tcp is taken by pods/"), "{taken}");
    drop(listeners);
    world.ok("stop web");
    assert!(world.node.is_silent(None, "127.0.0.1", "tcp/8080"));
    world.ok("run other --port 8080:80");
    world.ok("rm --all");
    world.assert_clean("after pods with ports");
}

#[test]
fn a_pod_has_its_own_names_host_name_and_knobs() {
    let world = World::new();
    let node = world.node.sh("cat /etc/resolv.conf /etc/hostname; hostname");
    let knob = world.node.sh("cat /proc/sys/kernel/msgmax");
    let options = "--dns-server 10.96.0.10 --dns-search default.svc.cluster.local --dns-option ndots:5 --hostname web.example \
        --sysctl net.core.somaxconn=77 --sysctl kernel.msgmax=9000";
    world.ok(&format!("run web {options}"));
    let inside = world.ok("exec web -- sh -c 'cat /etc/resolv.conf; hostname; cat /etc/hostname'");
    let expected = "nameserver 10.96.0.10\nnameserver 10.9.0.53\nsearch default.svc.cluster.local lan\noptions ndots:5\n\
        web.example\nweb.example\n";
    assert_eq!(inside, expected);
    let inside = world.ok("exec web -- cat /proc/sys/net/core/somaxconn /proc/sys/kernel/msgmax");
    assert_eq!(inside, "77\n9000\n");
    assert_eq!(world.node.sh("cat /proc/sys/kernel/msgmax"), knob);
    assert_eq!(world.node.sh("cat /etc/resolv.conf /etc/hostname; hostname"), node);
    // Without DNS options the pod has the plugins' servers; if the network has none, the node's.
    world.ok("run plain");
    assert_eq!(
        world.ok("exec plain -- sh -c 'cat /etc/resolv.conf; hostname'"),
        "nameserver 10.9.0.53\nsearch lan\nplain\n"
    );
    let silent = r#"{"cniVersion": "1.0.0", "name": "silent", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.8.0.0/24"}}"#;
    world.node.write(&format!("{CONF}/20-silent.conf"), silent);
    world.ok("run silent --network silent=eth0");
    let servers = |text: &str| {
        text.lines().filter(|line| line.starts_with("nameserver")).map(String::from).collect::<Vec<_>>()
    };
    let of_node = servers(&node);
    assert_eq!(servers(&world.ok("exec silent -- cat /etc/resolv.conf")), of_node[..of_node.len().min(3)]);
    let warned = world.ok("run many --dns-server 1.1.1.1 --dns-server 2.2.2.2 --dns-server 3.3.3.3");
    assert!(warned.contains("warning: resolvers read 3 DNS servers, left out: 10.9.0.53"), "{warned}");
    world.ok("rm --all");
    world.assert_clean("after pods with names");
}

#[test]
fn a_pod_is_on_as_many_networks_as_it_asks_for_and_limited_as_it_asks() {
    let world = World::new();
    let second = |name: &str, net: u8| {
        let config = format!(
            r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "ptp", "ipam": {{"type": "host-local", "subnet": "10.{net}.0.0/24"}}}}]}}"#
        );
        world.node.write(&format!("{CONF}/20-{name}.conflist"), &config);
    };
    second("storage", 21);
    second("metrics", 22);
    let options = "--network storage --network metrics=mon0 --ingress-bandwidth 8M \
        --annotation kubernetes.io/egress-bandwidth=4M --label app=web";
    world.ok(&format!("run web {options}"));
    let status = world.json("status web");
    let names: Vec<_> =
        status["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["eth0", "net1", "mon0"], "{status}");
    assert_eq!(status["networks"], serde_json::json!(["pods", "storage", "metrics"]));
    assert!(status["interfaces"][1]["addresses"][0].as_str().unwrap().starts_with("10.21.0."), "{status}");
    assert_eq!(status["labels"]["app"], "web");
    assert_eq!(
        status["ips"].as_array().unwrap().len(),
        2,
        "the first network's, one of each family: {status}"
    );
    let queues = world.node.sh("tc qdisc");
    assert!(queues.contains("rate 8Mbit") && queues.contains("rate 4Mbit"), "{queues}");
    world.ok("rm web");
    world.node.sh(&format!("rm {CONF}/20-*"));
    world.assert_clean("after a pod on three networks");
}

#[test]
fn a_pod_on_the_hosts_network_leaves_the_node_alone() {
    let world = World::new();
    world.node.settle(&[]);
    let before = world.node.sh(NODE);
    world.ok("run hosty --host-network --dns-server 10.96.0.10");
    assert_eq!(world.node.sh(NODE), before);
    assert_eq!(world.ok(&format!("exec hosty -- sh -c '{NODE}'")), before);
    assert_eq!(world.ok("exec hosty -- cat /etc/resolv.conf"), "nameserver 10.96.0.10\n");
    let status = world.json("status hosty");
    assert_eq!((&status["hostNetwork"], &status["interfaces"]), (&true.into(), &serde_json::json!([])));
    world.ok("rm hosty");
    assert_eq!(world.node.sh(NODE), before);
    world.assert_clean("after a pod on the host's network");
}

#[test]
fn the_pods_process_is_small_alone_and_holds_nothing_of_the_callers() {
    let world = World::new();
    let script = format!("exec 7</etc/passwd; SECRET=1 {} pod run web", world.prefix());
    world.node.sh(&script);
    let pid = &world.json("status web")["pid"];
    assert_eq!(world.node.sh(&format!("readlink /proc/{pid}/fd/*")), "/dev/null\n".repeat(3));
    assert_eq!(world.node.sh(&format!("cat /proc/{pid}/environ")), "");
    assert_eq!(world.node.sh(&format!("readlink /proc/{pid}/cwd")), "/\n");
    let own: u32 = world
        .node
        .sh(&format!("sed -n 's/^RssAnon:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/{pid}/status"))
        .trim()
        .parse()
        .unwrap();
    assert!(own <= 200, "{own} kB of its own");
    assert_eq!(world.ok("exec web -- sh -c 'echo $$; ls /sys/class/net'"), "2\neth0\nlo\n");
    // The pod reaps orphaned processes; `exec` returns the exit status of the command; processes in the pod end with
    // it.
    world.ok("exec web -- sh -c '(sleep 0.123 &) ; true'");
    let (runs, is_zombie) = ("ps axo args= | grep -q \"sleep 0[.]123\"", "ps axo stat= | grep -q Z");
    world.ok(&format!("exec web -- timeout 20 sh -c 'while {runs} || {is_zombie}; do sleep 0.05; done'"));
    assert_eq!(world.pod("exec web -- sh -c 'exit 7'").status, 7);
    assert_eq!(world.pod("exec web -- sh -c 'kill -KILL $$'").status, 137);
    assert_eq!(world.pod("exec web -- sh -c 'kill -TERM $$; exit 9'").status, 143, "it gets signals");
    world.ok("exec web -- sh -c 'setsid sleep 1234 > /dev/null 2>&1 &'");
    world.node.sh("timeout 20 sh -c 'until pgrep -f \"^sleep 1234\"; do sleep 0.01; done'");
    world.ok("rm web");
    assert!(!world.node.can("pgrep -f '^sleep 1234'"), "it ended with its pod");
    world.assert_clean("after a pod with processes");
}

#[test]
fn checkpoints_are_roots_own() {
    let world = World::new();
    world.ok("run web");
    let modes = world.node.sh("stat -c '%a %n' /run/podwire/pods /run/podwire/pods/web_default /run/podwire/pods/web_default/pod.json");
    let expected = "700 /run/podwire/pods\n700 /run/podwire/pods/web_default\n600 /run/podwire/pods/web_default/pod.json\n";
    assert_eq!(modes, expected);
    world.ok("rm web");
}

#[test]
fn running_a_pod_starts_no_program_but_the_pods_own_process() {
    let world = World::new();
    let (variables, program) =
        world.prefix().rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    // strace runs until the pod ends.
    let script = format!(
        "{variables} strace -f -qq -e trace=execve,execveat -e signal=none -o /run/test/trace {program} pod run web & \
         while ! {0} pod status web > /dev/null 2>&1; do sleep 0.05; done; {0} pod rm web > /dev/null; wait; cat /run/test/trace",
        world.prefix()
    );
    let trace = world.node.sh(&script);
    let calls = trace.lines().filter(|line| line.contains("execve") && line.ends_with("= 0"));
    let started: Vec<_> = calls.filter_map(|line| line.split('"').nth(1)).collect();
    // podwire-cni is the smaller program. It is next to podwire.
    assert_eq!(started, [program.clone(), format!("{program}-cni")], "{trace}");
    world.assert_clean("after a pod that was watched");
}
