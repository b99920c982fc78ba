//! The firewall plugin on a node with firewalld: the real one, on a real D-Bus, one for each node.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use podwire_tests::{assert_same, ours, podwire, Chain, Invocation, Node, Output, Pod, GO};
use serde_json::{json, Value};

/// A configuration without the machine's own files and without other services on the bus.
const PRIVATE: &str = "for place in /etc/firewalld /var/log /usr/share/dbus-1/system-services; do
  mount -t tmpfs none $place; done; mkdir -p /run/dbus";
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program on a node. It ends with the test, or when this value is dropped.
struct Daemon {
    keeper: Child,
    /// Closing it ends the program.
    stdin: Option<ChildStdin>,
    /// The process of the program.
    pid: String,
}

impl Daemon {
    fn start(node: &Node, command: &str) -> Daemon {
        let script = format!(
            "{command} </dev/null >>/run/test/log 2>&1 & echo $!
             cat >/dev/null; kill -CONT $!; kill $!; wait $!"
        );
        let mut keeper = node.command("sh");
        let mut keeper = keeper
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter");
        let (stdin, mut pid) = (keeper.stdin.take(), String::new());
        BufReader::new(keeper.stdout.take().expect("stdout")).read_line(&mut pid).expect("a process id");
        Daemon { keeper, stdin, pid: pid.trim().into() }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A node with a D-Bus and, while it runs, firewalld. (The fields are dropped in this order.)
struct Guarded {
    firewalld: Option<Daemon>,
    bus: Option<Daemon>,
    node: Node,
}

impl Guarded {
    /// The node, without firewalld.
    fn unguarded() -> Guarded {
        let node = Node::new();
        node.sh(PRIVATE);
        let bus = Some(Daemon::start(&node, "dbus-daemon --system --nofork --nopidfile"));
        let guarded = Guarded { firewalld: None, bus, node };
        guarded.wait_for(&owned("org.freedesktop.DBus"));
        guarded
    }

    fn new() -> Guarded {
        let mut guarded = Guarded::unguarded();
        guarded.start();
        guarded
    }

    fn start(&mut self) {
        self.firewalld = Some(Daemon::start(&self.node, "firewalld --nofork --nopid"));
        self.wait_for(&owned("org.fedoraproject.FirewallD1"));
        // firewalld has its name on the bus before it responds.
        self.wait_for("firewall-cmd --state");
    }

    fn stop(&mut self) {
        self.firewalld = None;
    }

    fn wait_for(&self, script: &str) {
        let end = Instant::now() + TIMEOUT;
        while !self.node.can(script) {
            let log = || self.node.sh("cat /run/test/log");
            assert!(Instant::now() < end, "{script}: never, in {} s\n{}", TIMEOUT.as_secs(), log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The zone's sources according to firewalld, sorted.
    fn sources(&self, zone: &str) -> Vec<String> {
        let printed = self.node.sh(&format!("firewall-cmd --zone={zone} --list-sources"));
        let mut all: Vec<_> = printed.split_whitespace().map(String::from).collect();
        all.sort();
        all
    }

    /// The elements of a set in Podwire's own table.
    fn set(&self, name: &str) -> Vec<Value> {
        let printed = self.node.try_sh(&format!("nft -j list set inet podwire_firewall {name}")).stdout;
        let set: Value = serde_json::from_slice(&printed).unwrap_or_default();
        set["nftables"][1]["set"]["elem"].as_array().cloned().unwrap_or_default()
    }

    /// STATUS of the firewall plugin.
    fn status(&self, chain: &Chain) -> Output {
        let mut config = chain.config(1);
        config["cniVersion"] = json!("1.1.0");
        let no_pod = Pod { name: String::new(), netns: String::new() };
        Invocation::new(&self.node, &ours(), "STATUS", &no_pod, &config).run()
    }
}

fn owned(name: &str) -> String {
    let ask =
        "dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner";
    format!("{ask} string:{name} | grep -q 'boolean true'")
}

/// A network with a bridge, and this config for the firewall plugin.
fn network(firewall: Value) -> Chain {
    let ranges = json!([[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges});
    let bridge = json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": ipam});
    let mut second = json!({"type": "firewall"});
    for (key, value) in firewall.as_object().expect("an object") {
        second[key] = value.clone();
    }
    Chain::new(&ours(), "guarded", &[bridge, second])
}

fn with_firewalld() -> Chain {
    network(json!({"backend": "firewalld"}))
}

const FIRST_POD: [&str; 2] = ["10.88.0.2/32", "fd88::2/128"];
const NONE: [&str; 0] = [];

#[test]
fn a_pod_is_in_the_zone_from_add_to_del() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let pod = node.pod("a");
    let result = chain.add(node, &pod);
    assert_eq!(guarded.sources("trusted"), FIRST_POD);
    assert_eq!((guarded.set("pods4"), guarded.set("pods6")), (vec![], vec![]), "one backend is enough");
    chain.check(node, &pod, &result).expect("CHECK");
    // A repeated ADD, as after a crash of the runtime, finds the address in its zone.
    Invocation::new(node, &ours(), "ADD", &pod, &chain.config(1)).prev(&result).run().result();
    assert_eq!(guarded.sources("trusted"), FIRST_POD);
    chain.del(node, &pod, Some(&result));
    assert_eq!(guarded.sources("trusted"), NONE);
    chain.del(node, &pod, Some(&result));
    chain.del(node, &pod, None);
}

#[test]
fn packets_of_a_pod_pass_firewalld_while_it_is_in_the_zone() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let (pod, world) = (node.pod("a"), node.neighbour("world", "192.0.2", "fd99"));
    node.sh(&format!("ip -n {} route add 10.88.0.0/16 via 192.0.2.1", world.name));
    let result = chain.add(node, &pod);
    assert!(node.pings(Some(&pod), "192.0.2.2"));
    node.sh("firewall-cmd --zone=trusted --remove-source=10.88.0.2/32");
    assert!(!node.pings(Some(&pod), "192.0.2.2"), "firewalld does not guard this node");
    chain.del(node, &pod, Some(&result));
}

#[test]
fn check_reports_an_address_that_was_removed_from_the_zone() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let pod = node.pod("a");
    let result = chain.add(node, &pod);
    node.sh("firewall-cmd --zone=trusted --remove-source=fd88::2/128");
    let (_, text) = chain.check(node, &pod, &result).expect_err("CHECK").error();
    assert_eq!(text, "failed to find the address fd88::2/128 in trusted zone");
    chain.del(node, &pod, Some(&result));
    assert_eq!(guarded.sources("trusted"), NONE);
}

#[test]
fn a_repair_puts_the_pod_into_the_zone_again() {
    let guarded = Guarded::new();
    let (node, mut chain) = (&guarded.node, with_firewalld());
    chain.plugins[1]["ingressPolicy"] = json!("same-bridge");
    let list = json!({"cniVersion": chain.version, "name": chain.name, "plugins": chain.plugins});
    node.write("/run/test/net.d/10-guarded.conflist", &list.to_string());
    node.pod("a");
    let tool = |words: &[&str]| {
        let (program, plugins) = (podwire(), ours());
        let place = ["guarded", "a", "--conf-dir", "/run/test/net.d", "--plugin-dir", &plugins];
        node.output(&[&[&program, "cni"], words, &place].concat(), &[])
    };
    assert_eq!(tool(&["add"]).status, 0);
    // firewalld removes what is not in its permanent configuration, and keeps rules of others.
    node.sh("firewall-cmd --reload && nft flush set inet podwire_firewall bridges");
    assert_eq!(guarded.sources("trusted"), NONE);
    let said = tool(&["check"]).stderr;
    assert!(said.contains("failed to find the address fd88::2/128 in trusted zone"), "{said}");
    assert!(said.contains("the rules of ingressPolicy are not complete"), "{said}");
    let repaired = tool(&["check", "--repair"]);
    assert_eq!(repaired.status, 0, "{}{}", repaired.stdout, repaired.stderr);
    assert_eq!(guarded.sources("trusted"), FIRST_POD);
    assert_eq!(guarded.set("bridges").len(), 1);
    assert_eq!(tool(&["del"]).status, 0);
    assert_eq!(guarded.sources("trusted"), NONE);
}

#[test]
fn a_reload_of_firewalld_is_followed_by_one_of_ours() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let pod = node.pod("a");
    let result = chain.add(node, &pod);
    node.sh("firewall-cmd --reload");
    assert_eq!(guarded.sources("trusted"), NONE);
    let said = node.output(&[&podwire(), "cni", "reload"], &[]);
    assert_eq!((said.status, &*said.stdout), (0, "restored 2 missing rules\n"), "{}", said.stderr);
    assert_eq!(guarded.sources("trusted"), FIRST_POD);
    chain.check(node, &pod, &result).expect("CHECK");
    chain.del(node, &pod, Some(&result));
}

#[test]
fn the_zone_is_the_one_that_the_config_names() {
    let guarded = Guarded::new();
    let (node, chain) =
        (&guarded.node, network(json!({"backend": "firewalld", "firewalldZone": "internal"})));
    let pod = node.pod("a");
    let result = chain.add(node, &pod);
    assert_eq!(guarded.sources("internal"), FIRST_POD);
    assert_eq!(guarded.sources("trusted"), NONE);
    // A DEL for another zone does not remove it.
    with_firewalld().del(node, &pod, Some(&result));
    assert_eq!(guarded.sources("internal"), FIRST_POD);
    chain.del(node, &pod, Some(&result));
    assert_eq!(guarded.sources("internal"), NONE);
}

#[test]
fn a_config_without_backend_takes_firewalld_if_it_runs_and_our_own_rules_else() {
    let mut guarded = Guarded::unguarded();
    let chain = network(json!({}));
    let (before, after) = (guarded.node.pod("before"), guarded.node.pod("after"));
    let early = chain.add(&guarded.node, &before);
    assert_eq!((guarded.set("pods4").len(), guarded.set("pods6").len()), (1, 1));
    chain.check(&guarded.node, &before, &early).expect("CHECK");

    guarded.start();
    let late = chain.add(&guarded.node, &after);
    assert_eq!(guarded.sources("trusted"), ["10.88.0.3/32", "fd88::3/128"]);
    assert_eq!(guarded.set("pods4").len(), 1, "only the pod from before");
    chain.check(&guarded.node, &after, &late).expect("CHECK");
    // This pod was attached before firewalld ran, and firewalld would not let its packets pass.
    let (_, text) = chain.check(&guarded.node, &before, &early).expect_err("CHECK").error();
    let lost = |address: &str| format!("failed to find the address {address} in trusted zone");
    assert_eq!(text, format!("{}; {}", lost(FIRST_POD[0]), lost(FIRST_POD[1])));

    chain.del(&guarded.node, &before, Some(&early));
    assert_eq!((guarded.set("pods4"), guarded.set("pods6")), (vec![], vec![]));
    guarded.stop();
    chain.del(&guarded.node, &after, Some(&late));
}

#[test]
fn without_a_bus_a_config_without_backend_takes_our_own_rules() {
    let mut guarded = Guarded::unguarded();
    guarded.bus = None;
    let (node, chain) = (&guarded.node, network(json!({})));
    let pod = node.pod("a");
    let result = chain.add(node, &pod);
    assert_eq!(guarded.set("pods4").len(), 1);
    chain.del(node, &pod, Some(&result));
    assert_eq!(guarded.set("pods4").len(), 0);
}

#[test]
fn del_succeeds_without_firewalld_and_without_the_bus() {
    let mut guarded = Guarded::new();
    let chain = with_firewalld();
    let pod = guarded.node.pod("a");
    let result = chain.add(&guarded.node, &pod);
    guarded.stop();
    let (code, text) = chain.check(&guarded.node, &pod, &result).expect_err("CHECK").error();
    assert!(code == 50 && text.starts_with("failed to find the address 10.88.0.2/32"), "{code} {text}");
    chain.del(&guarded.node, &pod, Some(&result));
    guarded.bus = None;
    chain.del(&guarded.node, &pod, Some(&result));
    guarded.node.sh("rm -f /run/dbus/system_bus_socket");
    chain.del(&guarded.node, &pod, Some(&result));
    chain.del(&guarded.node, &pod, None);
}

#[test]
fn del_takes_the_pod_from_wherever_it_was() {
    let guarded = Guarded::new();
    let (node, other) = (&guarded.node, network(json!({"backend": "nftables"})));
    let (in_zone, in_set) = (node.pod("a"), node.pod("b"));
    let (bound, listed) = (with_firewalld().add(node, &in_zone), other.add(node, &in_set));
    assert_eq!((guarded.sources("trusted").len(), guarded.set("pods4").len()), (2, 1));
    other.del(node, &in_zone, Some(&bound));
    with_firewalld().del(node, &in_set, Some(&listed));
    assert_eq!(guarded.sources("trusted"), NONE);
    assert_eq!((guarded.set("pods4"), guarded.set("pods6")), (vec![], vec![]));
}

#[test]
fn a_failed_add_leaves_nothing() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let pod = node.pod("a");
    // The administrator's own source, which no ADD or DEL of another zone changes.
    node.sh("firewall-cmd --zone=work --add-source=fd88::2/128");
    let (code, text) = chain.try_add(node, &pod).expect_err("ADD").error();
    assert!(
        text.starts_with("failed to add the address fd88::2/128 to trusted zone: ZONE_CONFLICT"),
        "{code} {text}"
    );
    assert_eq!(guarded.sources("trusted"), NONE, "the first address is taken back");
    chain.del(node, &pod, None);
    assert_eq!(guarded.sources("work"), ["fd88::2/128"]);
}

#[test]
fn a_zone_that_firewalld_does_not_have_is_an_error_of_the_config() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, network(json!({"firewalldZone": "nowhere"})));
    let pod = node.pod("a");
    let (code, text) = chain.try_add(node, &pod).expect_err("ADD").error();
    assert_eq!((code, text.contains("INVALID_ZONE: nowhere")), (7, true), "{text}");
    let (code, text) = guarded.status(&chain).error();
    assert_eq!((code, text.contains("INVALID_ZONE: nowhere")), (7, true), "{text}");
    chain.del(node, &pod, None);
    guarded.status(&with_firewalld()).result();
}

#[test]
fn a_config_that_wants_firewalld_fails_without_it() {
    let mut guarded = Guarded::unguarded();
    let chain = with_firewalld();
    let pod = guarded.node.pod("a");
    for _ in ["no firewalld on the bus", "no bus"] {
        let before = guarded.node.state(&pod);
        assert_eq!(chain.try_add(&guarded.node, &pod).expect_err("ADD").error().0, 50);
        assert_eq!(guarded.status(&chain).error().0, 50);
        chain.del(&guarded.node, &pod, None);
        let bridge =
            |state: String| state.lines().filter(|line| !line.contains("br0")).collect::<Vec<_>>().join("\n");
        assert_same(&bridge(before), &bridge(guarded.node.state(&pod)), "after ADD and DEL");
        guarded.bus = None;
    }
    guarded.status(&network(json!({}))).result();
}

#[test]
fn bridges_are_kept_apart_by_our_own_rules() {
    let guarded = Guarded::new();
    let (node, pod) = (&guarded.node, guarded.node.pod("a"));
    let apart = network(json!({"backend": "firewalld", "ingressPolicy": "same-bridge"}));
    let result = apart.add(node, &pod);
    assert_eq!(guarded.sources("trusted"), FIRST_POD);
    assert_eq!(
        (guarded.set("bridges").len(), guarded.set("same").len(), guarded.set("pods4").len()),
        (1, 1, 0)
    );
    apart.check(node, &pod, &result).expect("CHECK");
    apart.del(node, &pod, Some(&result));
    let result = with_firewalld().add(node, &pod);
    assert_eq!((guarded.set("bridges"), guarded.set("same")), (vec![], vec![]), "the config is another now");
    with_firewalld().del(node, &pod, Some(&result));
}

#[test]
fn a_firewalld_that_hangs_is_not_waited_for_long() {
    let guarded = Guarded::new();
    let (node, chain) = (&guarded.node, with_firewalld());
    let (pod, pid) = (node.pod("a"), &guarded.firewalld.as_ref().unwrap().pid);
    node.sh(&format!("kill -STOP {pid}"));
    let start = Instant::now();
    let (code, text) = chain.try_add(node, &pod).expect_err("ADD").error();
    assert!(code == 11 && text.contains("no response"), "{code} {text}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    node.sh(&format!("kill -CONT {pid}"));
    guarded.wait_for("firewall-cmd --state");
    assert_eq!(guarded.sources("trusted"), NONE);
    chain.del(node, &pod, None);
}

#[test]
fn ours_and_gos_detach_and_check_each_others_pods() {
    let guarded = Guarded::new();
    let node = &guarded.node;
    let (ours, go) = (with_firewalld(), Chain { path: GO.into(), ..with_firewalld() });
    let (a, b) = (node.pod("a"), node.pod("b"));
    let (his, its) = (go.add(node, &a), ours.add(node, &b));
    assert_eq!(guarded.sources("trusted"), ["10.88.0.2/32", "10.88.0.3/32", "fd88::2/128", "fd88::3/128"]);
    let check = |path: &str, pod: &Pod, result: &Value| {
        Invocation::new(node, path, "CHECK", pod, &ours.config(1)).prev(result).run().result()
    };
    check(&ours.path, &a, &his);
    check(GO, &b, &its);
    ours.del(node, &a, Some(&his));
    go.del(node, &b, Some(&its));
    assert_eq!(guarded.sources("trusted"), NONE);
}
