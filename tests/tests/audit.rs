//! `podwire cni audit` finds every planted fault, and `--fix` repairs it without a lost packet of a running pod.
//! `podwire cni reload` restores flushed rules.

use podwire_tests::{assert_same, lost_packets, ours, podwire, Node, Output};
use serde_json::{json, Value};

/// The script that plants a fault on the node: `victim` is an attached pod, $end the node's end of its veth pair, $ip
/// its address, $ledger the directory of its network's ledger files; `long_ago FILE` makes a file old. Then the texts
/// that the audit must print.
struct Row {
    plant: &'static str,
    says: &'static [&'static str],
    /// Whether `--fix` can repair it.
    repairs: bool,
}

const fn row(plant: &'static str, says: &'static [&'static str]) -> Row {
    Row { plant, says, repairs: true }
}

const fn beyond_repair(plant: &'static str, says: &'static [&'static str]) -> Row {
    Row { plant, says, repairs: false }
}

const TOOLS: &str = r#"set -e
index=$(ip -n victim -o link show eth0 | sed 's/.*@if\([0-9]*\):.*/\1/')
end=$(ip -o link | sed -n "s/^$index: \([^@:]*\).*/\1/p")
ip=$(ip -n victim -4 -o address show eth0 | sed 's/.*inet \([0-9.]*\).*/\1/')
ledger=/run/podwire/ledger/pods
long_ago() { touch -d '1 hour ago' "$@"; }
in_pod() { ip netns exec victim "$@"; }
"#;

const ROWS: &[Row] = &[
    // Attachments of removed pods.
    row("ip netns delete victim", &["the pod is gone", "the objects of bridge", "the record"]),
    row("ip netns delete victim; rm /var/lib/cni/results/pods-victim-eth0", &["the pod is gone", "the objects of portmap"]),
    row("ip netns delete victim; rm -r $ledger/victim:*", &["the pod is gone", "the record"]),
    // The path is the node's own namespace, as when another process has reused the PID in the path.
    row("ip netns delete victim; : > /run/netns/victim; mount --bind /proc/self/ns/net /run/netns/victim",
        &["the pod is gone", "the objects of bridge", "the record"]),
    row("ip netns delete victim; : > /run/netns/victim; mount --bind /proc/self/ns/net /run/netns/victim
         rm -r $ledger/victim:*", &["the pod is gone", "the record"]),
    row("for file in $ledger/victim:eth0:bridge; do sed -i '$d' $file; done", &["an ADD did not finish"]),
    row(": > $ledger/ghost:eth0:bridge", &["is empty: an ADD was killed"]),
    row("echo '{\"kind' > /var/lib/cni/results/pods-ghost-eth0; long_ago /var/lib/cni/results/pods-ghost-eth0",
        &["pods-ghost-eth0"]),
    // Orphans.
    row("cd /var/lib/cni/networks/pods; printf 'ghost\\r\\neth0' > 10.7.0.200; long_ago 10.7.0.200",
        &["address 10.7.0.200 is reserved for an unknown container"]),
    row("cd /var/lib/cni/networks/pods; printf ghost > 10.7.0.201; long_ago 10.7.0.201",
        &["address 10.7.0.201 is reserved for an unknown container"]),
    row("mkdir -p /var/lib/cni/networks/former; cd /var/lib/cni/networks/former; printf 'ghost\\r\\neth0' > 10.9.0.2
         long_ago 10.9.0.2", &["former/ghost/eth0", "10.9.0.2 is reserved for an unknown container"]),
    row("nft add element inet podwire_masq net4_10.7.0.0_24 '{ 10.7.0.200 comment \"pods/ghost/eth0\" }'",
        &["masquerading without a known owner"]),
    row("nft add element inet podwire_firewall pods4 '{ 10.7.0.200 comment \"pods/ghost/eth0\" }'",
        &["forwarding without a known owner"]),
    row("nft add element inet podwire_ports ports4 '{ tcp . 7777 comment \"pods/ghost/eth0\" : 10.7.0.200 . 80 }'",
        &["host ports without a known owner"]),
    row("nft add element bridge podwire_spoof guarded '{ \"ghost0\" comment \"pods/ghost/eth0\" }'",
        &["spoof guard without a known owner"]),
    row("ip link add bwpghost type ifb; ip link set bwpghost alias pods/ghost/eth0",
        &["ifb bwpghost has no known owner"]),
    row("chain=CNI-$(printf podsghost | sha512sum | cut -c1-24)
         iptables -t nat -N $chain; iptables -t nat -A $chain -d 10.7.0.0/24 -j ACCEPT
         iptables -t nat -A POSTROUTING -s 10.7.0.200 -m comment --comment 'name: \"pods\" id: \"ghost\"' -j $chain",
        &["pods/ghost", "iptables rules of the Go plugins"]),
    row("mkdir -p /run/cni/tuning; echo '{\"mtu\": 1500}' > /run/cni/tuning/ghost_eth0.json
         long_ago /run/cni/tuning/ghost_eth0.json", &["backup of tuning for an unknown container"]),
    row("mkdir -p /var/lib/cni/flannel; echo '{}' > /var/lib/cni/flannel/ghost; long_ago /var/lib/cni/flannel/ghost",
        &["delegate config of flannel for an unknown container"]),
    beyond_repair("ip link add vethghost type veth peer name other; ip link set vethghost alias pods/ghost/eth0",
        &["veth vethghost has no known owner"]),
    // Missing objects of attached pods.
    row("nft delete element inet podwire_masq net4_10.7.0.0_24 \"{ $ip }\"", &["is not masqueraded any more"]),
    row("nft flush map inet podwire_ports ports4", &["host port"]),
    row("nft delete element inet podwire_firewall pods4 \"{ $ip }\"", &["are not let through any more"]),
    row("nft delete table bridge podwire_spoof", &["(macspoofchk)"]),
    row("nft flush ruleset", &["is not masqueraded", "host port", "not let through", "macspoofchk"]),
    row("tc qdisc delete dev $end root", &["limits"]),
    row("ip link delete $(ip -o link show type ifb | sed -n '/victim/s/^[0-9]*: \\(bwp[^:@]*\\).*/\\1/p')", &["bwp"]),
    row("ip -n victim address delete $ip/24 dev eth0", &["lacks address", "route to 0.0.0.0/0"]),
    row("ip -n victim route delete default", &["route to 0.0.0.0/0 is missing"]),
    row("ip -n victim link set eth0 down", &["interface eth0 is down"]),
    row("ip link set $end nomaster", &["is not a port of bridge"]),
    row("ip link set $end type bridge_slave hairpin off", &["lost hairpinMode"]),
    row("ip link set $end down", &["is down"]),
    row("in_pod sysctl -qw net.ipv4.conf.eth0.arp_filter=0", &["arp_filter"]),
    row("rm /var/lib/cni/networks/pods/$ip", &["Failed to find address", "is missing"]),
    row("ip address delete 10.7.0.1/24 dev br0", &["gateway's address 10.7.0.1"]),
    row("ip -n routed route delete default", &["routed/eth0", "route to 0.0.0.0/0 is missing"]),
    row("ip route delete 10.8.0.2", &["the node has no route to 10.8.0.2"]),
    beyond_repair("ip -n victim link delete eth0", &["the pod has no interface eth0"]),
];

fn network(name: &str, plugins: Value) -> String {
    json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins}).to_string()
}

fn run(node: &Node, words: &[&str]) -> Output {
    let (program, plugins) = (podwire(), ours());
    let mut all = vec![program.as_str(), "cni"];
    all.extend(words);
    if words[0] != "reload" {
        all.extend(["--conf-dir", "/run/test/net.d", "--plugin-dir", &plugins]);
    }
    node.output(&all, &[])
}

fn must(node: &Node, words: &[&str]) -> String {
    let output = run(node, words);
    assert_eq!(output.status, 0, "{words:?}: {}{}", output.stdout, output.stderr);
    output.stdout
}

/// A node with two pods that ping each other all the time, one of them on ptp, and a victim.
fn node() -> Node {
    let node = Node::new();
    let pool =
        |subnet: &str| json!({"type": "host-local", "subnet": subnet, "routes": [{"dst": "0.0.0.0/0"}]});
    let bridge = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                        "macspoofchk": true, "ipam": pool("10.7.0.0/24")});
    let rest = json!([bridge, {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"}, {"type": "bandwidth", "ingressRate": 80000000, "ingressBurst": 8000000,
                               "egressRate": 80000000, "egressBurst": 8000000},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}]);
    node.write("/run/test/net.d/10-pods.conflist", &network("pods", rest));
    let veth = json!([{"type": "ptp", "ipMasq": true, "ipam": pool("10.8.0.0/24")}]);
    node.write("/run/test/net.d/20-ptp.conflist", &network("ptp", veth));
    for name in ["ping", "pong", "routed"] {
        node.pod(name);
        must(&node, &["add", if name == "routed" { "ptp" } else { "pods" }, name, "--container", name]);
    }
    attach_victim(&node);
    node
}

fn attach_victim(node: &Node) {
    node.sh("ip netns add victim 2>/dev/null || true");
    must(node, &["add", "pods", "victim", "--container", "victim", "--publish", "8080:80"]);
}

#[test]
fn every_planted_fault_is_found_and_repaired_and_running_pods_are_unaffected() {
    let node = node();
    assert_eq!(must(&node, &["audit"]), "no faults: ledger, records, pools and kernel agree\n");
    // Pings of another pod, during all repairs.
    node.sh("other=$(ip -n pong -4 -o address show eth0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/')
             ip netns exec ping ping -i 0.05 $other > /run/test/pings 2>&1 & echo $! > /run/test/pinger");
    let mut failed = Vec::new();
    for row in ROWS {
        if let Err(why) = audit(&node, row) {
            failed.push(format!("{}\n  {why}", row.plant));
        }
        // Replace the victim.
        run(&node, &["del", "pods", "victim"]);
        node.sh("ip netns delete victim 2>/dev/null; ip link delete vethghost 2>/dev/null; true");
        attach_victim(&node);
    }
    // Wait for the last responses.
    node.sh("sleep 1; pinger=$(cat /run/test/pinger); kill -INT $pinger; while kill -0 $pinger 2>/dev/null; do :; done");
    let lost = lost_packets(&node.sh("cat /run/test/pings"));
    assert!(failed.is_empty(), "{} of {} rows:\n{}", failed.len(), ROWS.len(), failed.join("\n"));
    assert!(lost.is_empty(), "{lost:?}");
}

/// Plants the fault, audits, repairs, and audits again.
fn audit(node: &Node, row: &Row) -> Result<(), String> {
    let planted = node.try_sh(&format!("{TOOLS}{}", row.plant));
    if !planted.status.success() {
        return Err(format!("cannot be planted: {}", String::from_utf8_lossy(&planted.stderr)));
    }
    let found = run(node, &["audit", "--json"]);
    if found.status != 1 {
        return Err(format!("not found: {}{}", found.stdout, found.stderr));
    }
    if let Some(missing) = row.says.iter().find(|words| !found.stdout.contains(**words)) {
        return Err(format!("does not say {missing:?}: {}", found.stdout));
    }
    let fixed = run(node, &["audit", "--fix"]);
    if row.repairs != (fixed.status == 0) {
        return Err(format!("--fix ends with {}: {}{}", fixed.status, fixed.stdout, fixed.stderr));
    }
    let after = run(node, &["audit"]);
    if row.repairs != (after.status == 0) {
        Err(format!("after --fix: {}{}", after.stdout, after.stderr))
    } else {
        Ok(())
    }
}

/// DEL removes everything of the first attachment; the pod itself stays.
#[test]
fn a_pod_whose_second_add_completed_is_not_reported() {
    let node = node();
    node.sh("file=/run/podwire/ledger/pods/victim:eth0:bridge
             both=$(head -n 1 $file; cat $file); printf '%s\\n' \"$both\" > $file");
    assert_eq!(must(&node, &["audit", "--fix"]), "no faults: ledger, records, pools and kernel agree\n");
    must(&node, &["check", "pods", "victim"]);
    // The same without a cached result.
    node.sh("rm /var/lib/cni/results/pods-victim-eth0");
    assert_eq!(must(&node, &["audit", "--fix"]), "no faults: ledger, records, pools and kernel agree\n");
}

/// Podwire's nftables objects.
fn rules(node: &Node) -> String {
    let kept = node.leftovers();
    kept.lines().filter(|line| line.contains("podwire_")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn reload_restores_flushed_rules() {
    let node = node();
    let before = rules(&node);
    assert!(before.contains("podwire_masq") && before.contains("podwire_ports"), "{before}");
    node.sh("nft flush ruleset");
    assert_eq!(rules(&node), "");
    let said = must(&node, &["reload"]);
    assert!(said.starts_with("restored "), "{said}");
    assert_same(&before, &rules(&node), "after the reload");
    assert_eq!(must(&node, &["reload"]), "no rule is missing\n");
    must(&node, &["audit"]);
}

#[test]
fn the_audit_does_not_affect_a_pod_that_is_being_attached() {
    let node = node();
    // An ADD that is slow in the middle and holds its lock.
    node.pod("slow");
    let program = podwire();
    node.sh(&format!(
        "strace -f -o /dev/null -e inject=sendto:delay_enter=3000000:when=4 {program} cni add pods slow \
         --container slow --conf-dir /run/test/net.d --plugin-dir {} > /run/test/slow 2>&1 & echo $! > /run/test/slow.pid
         until ls /run/podwire/ledger/pods/slow:* > /dev/null 2>&1; do kill -0 $(cat /run/test/slow.pid); done",
        ours()
    ));
    must(&node, &["audit", "--fix"]);
    must(&node, &["gc", "pods"]);
    node.sh("while kill -0 $(cat /run/test/slow.pid) 2> /dev/null; do :; done");
    must(&node, &["check", "pods", "slow"]);
    must(&node, &["audit"]);
}

#[test]
fn a_pod_that_is_attached_during_the_audit_is_not_affected() {
    let node = node();
    node.pod("new");
    let place = format!("--conf-dir /run/test/net.d --plugin-dir {}", ours());
    // Opening this record, a FIFO, waits for a writer.
    node.sh(&format!(
        "mkfifo /var/lib/cni/results/pods-slow-eth0
         {0} cni audit --fix {place} > /run/test/audit 2>&1 & audit=$!
         exec 3> /var/lib/cni/results/pods-slow-eth0
         rm /var/lib/cni/results/pods-slow-eth0
         {0} cni add pods new --container new --publish 9999:90 {place} > /run/test/new
         exec 3>&-; wait $audit || true",
        podwire()
    ));
    must(&node, &["check", "pods", "new"]);
    must(&node, &["audit"]);
}

/// podman and containerd write their record last, and podman's networks have version 0.4.0, which has no GC.
#[test]
fn a_pod_that_only_the_plugins_know_of_is_swept_unless_it_is_kept() {
    let node = node();
    let pool = json!({"type": "host-local", "subnet": "10.9.0.0/24"});
    let plugins = json!([{"type": "bridge", "bridge": "br9", "isGateway": true, "ipMasq": true, "ipam": pool},
        {"type": "portmap", "capabilities": {"portMappings": true}}]);
    let old = json!({"cniVersion": "0.4.0", "name": "old", "plugins": plugins});
    node.write("/run/test/net.d/30-old.conflist", &old.to_string());
    let attach = |name: &str| must(&node, &["add", "old", name, "--container", name, "--publish", "9090:90"]);
    for name in ["stays", "lost"] {
        node.pod(name);
    }
    must(&node, &["add", "old", "stays", "--container", "stays"]);
    must(&node, &["add", "old", "stays", "--container", "stays", "--ifname", "eth1"]);
    let before = node.leftovers();
    attach("lost");
    node.sh("rm /var/lib/cni/results/old-lost-eth0");

    assert_eq!(must(&node, &["gc", "old"]), "nothing is stale\n", "its namespace is there");
    let all = ["gc", "old", "--all", "--keep", "stays"];
    assert_eq!(must(&node, &[&all[..], &["--dry-run"]].concat()), "would remove lost eth0\n");
    assert_eq!(must(&node, &all), "removed lost eth0\n");
    assert_same(&before, &node.leftovers(), "after the sweep");
    must(&node, &["check", "old", "stays"]);
    must(&node, &["check", "old", "stays", "--ifname", "eth1"]);

    // The port and the name are free again. Without the namespace, the pod is removed without --all.
    attach("lost");
    node.sh("rm /var/lib/cni/results/old-lost-eth0 && ip netns delete lost");
    assert_eq!(must(&node, &["gc", "old"]), "removed lost eth0\n");
    assert_same(&before, &node.leftovers(), "after the second sweep");
}

/// Networks with one subnet and separate pools: `one` and `two` with rules for each pod, `plain` without. An administrator
/// has given all bridges the gateway's address, which ADD would refuse.
fn overlapping() -> Node {
    let node = same_subnet();
    for bridge in ["br2", "br3"] {
        node.sh(&format!("ip link add {bridge} type bridge; ip address add 10.11.0.1/24 dev {bridge}; ip link set {bridge} up"));
    }
    node
}

/// The networks of [`overlapping`], with a pod of `one`, before any other bridge exists.
fn same_subnet() -> Node {
    let node = node();
    let pool = json!({"type": "host-local", "subnet": "10.11.0.0/24"});
    let bridge = |bridge: &str, masquerade: bool| json!({"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": masquerade, "ipam": pool});
    node.write(
        "/run/test/net.d/40-one.conflist",
        &network("one", json!([bridge("br1", true), {"type": "firewall"}])),
    );
    node.write("/run/test/net.d/50-two.conflist", &network("two", json!([bridge("br2", true)])));
    node.write("/run/test/net.d/60-plain.conflist", &network("plain", json!([bridge("br3", false)])));
    for name in ["first", "second", "third"] {
        node.pod(name);
    }
    must(&node, &["add", "one", "first", "--container", "first"]);
    node
}

/// The status and all that a command says.
fn outcome(node: &Node, words: &[&str]) -> (i32, String) {
    let output = run(node, words);
    (output.status, format!("{}{}", output.stdout, output.stderr))
}

#[test]
fn a_bridge_with_a_subnet_of_another_bridge_takes_no_pods() {
    let node = same_subnet();
    let why = "subnet 10.11.0.0/24 overlaps with 10.11.0.1/24 of br1, the gateway of another network";
    for words in [&["status", "plain"][..], &["add", "plain", "third", "--container", "third"]] {
        let (status, said) = outcome(&node, words);
        assert!(
            status == 1 && said.contains(why) && said.contains("ip link delete br1"),
            "{words:?}: {said}"
        );
    }
    assert_eq!(
        node.sh("ip -o address show dev br3 scope global; ls /var/lib/cni/networks/plain | grep ^10 || true"),
        ""
    );

    // Parts of it, and subnets that contain it, as long as there are pods.
    for subnet in ["10.11.0.128/25", "10.11.0.0/16"] {
        let pool = json!({"type": "host-local", "subnet": subnet});
        let plugin = json!({"type": "bridge", "bridge": "br4", "isGateway": true, "ipam": pool});
        node.write("/run/test/net.d/80-part.conflist", &network("part", json!([plugin])));
        let (status, said) = outcome(&node, &["add", "part", "third", "--container", "third"]);
        assert!(status == 1 && said.contains("of br1, the gateway of another network"), "{subnet}: {said}");
        node.sh("rm -r /var/lib/cni/networks/part");
    }
    // Bridges without a gateway do not meet on the node.
    let pool = json!({"type": "host-local", "subnet": "10.11.0.0/24"});
    node.write(
        "/run/test/net.d/80-part.conflist",
        &network("part", json!([{"type": "bridge", "bridge": "br4", "ipam": pool}])),
    );
    must(&node, &["status", "part"]);
    must(&node, &["add", "part", "third", "--container", "third"]);
    must(&node, &["del", "part", "third", "--container", "third"]);
    node.sh("ip link delete br4");

    // The way out that the error names.
    must(&node, &["del", "one", "first", "--container", "first"]);
    assert_eq!(outcome(&node, &["status", "plain"]).0, 1, "the node still sends the packets to br1");
    node.sh("ip link delete br1");
    must(&node, &["status", "plain"]);
    must(&node, &["add", "plain", "third", "--container", "third"]);
    must(&node, &["status", "plain"]);
    let (status, said) = outcome(&node, &["status", "one"]);
    assert!(status == 1 && said.contains("of br3, the gateway of another network"), "{said}");
}

#[test]
fn add_refuses_an_address_of_another_running_pod() {
    let node = overlapping();
    let before = rules(&node);
    let refused = run(&node, &["add", "two", "second", "--container", "second"]);
    let why = "address 10.11.0.2 belongs to one/first/eth0, which is running";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}{}", refused.stdout, refused.stderr);
    assert_same(&before, &rules(&node), "after the refused ADD");
    must(&node, &["check", "one", "first"]);
    assert!(
        must(&node, &["add", "two", "second", "--container", "second"]).contains("10.11.0.3"),
        "the next address"
    );
    must(&node, &["audit"]);

    // The route of a pod of ptp.
    let pool = json!({"type": "host-local", "subnet": "10.8.0.0/24"});
    node.write(
        "/run/test/net.d/70-other.conflist",
        &network("other", json!([{"type": "ptp", "ipam": pool}])),
    );
    let refused = run(&node, &["add", "other", "third", "--container", "third"]);
    let why = "address 10.8.0.2 belongs to ptp/routed/eth0, which is running";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}{}", refused.stdout, refused.stderr);
    must(&node, &["check", "ptp", "routed"]);

    // Pools of networks without rules and routes of pods, on one bridge.
    for name in ["left", "right"] {
        let plugin = json!({"type": "bridge", "bridge": "shared", "ipam": {"type": "host-local", "subnet": "10.12.0.0/24"}});
        node.write(&format!("/run/test/net.d/80-{name}.conflist"), &network(name, json!([plugin])));
    }
    must(&node, &["add", "left", "second", "--container", "second", "--ifname", "eth1"]);
    let refused = run(&node, &["add", "right", "third", "--container", "third"]);
    let why = "address 10.12.0.2 belongs to left/second/eth1, which is running";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}{}", refused.stdout, refused.stderr);
    assert_eq!(node.sh("ls /var/lib/cni/networks/right | grep ^10 || true"), "", "the lease is released");
    must(&node, &["del", "left", "second", "--container", "second", "--ifname", "eth1"]);

    // A pod that is gone is no obstacle.
    node.sh("ip netns delete first; rm /var/lib/cni/networks/two/last_reserved_ip.0");
    node.pod("fourth");
    assert!(must(&node, &["add", "two", "fourth", "--container", "fourth"]).contains("10.11.0.2/24"));
}

#[test]
fn the_audit_reports_overlapping_networks_and_takes_nothing_from_either_pod() {
    let node = overlapping();
    // ADD compares the pools of one directory.
    let pool = json!({"type": "host-local", "subnet": "10.11.0.0/24", "dataDir": "/var/lib/cni/elsewhere"});
    let plain = json!({"type": "bridge", "bridge": "br3", "isGateway": true, "ipam": pool});
    node.write("/run/test/net.d/60-plain.conflist", &network("plain", json!([plain])));
    let warning = "60-plain.conflist:1: plugins[0].ipam.subnet: the addresses overlap with those of network \"one\" in \
                   /run/test/net.d/40-one.conflist: pods of both can get the same address";
    let added = must(&node, &["add", "plain", "third", "--container", "third"]);
    assert!(added.contains("10.11.0.2/24") && added.contains(warning), "{added}");
    assert!(must(&node, &["status", "plain"]).contains(warning));

    let conflict = "address 10.11.0.2 belongs to plain/third/eth0 too: the networks one and plain overlap";
    let found = run(&node, &["audit"]);
    assert!(found.status == 1 && found.stdout.contains(conflict), "{}{}", found.stdout, found.stderr);
    // Of a pod in conflict nothing is repaired; of another pod everything is.
    node.sh("nft delete element inet podwire_firewall pods4 '{ 10.11.0.2 }'; ip -n ping link set eth0 down");
    let before = node.leftovers();
    let fixed = run(&node, &["audit", "--fix"]);
    assert!(fixed.status == 1 && fixed.stdout.contains(conflict), "{}", fixed.stdout);
    let repaired: Vec<&str> = fixed.stdout.lines().filter(|line| line.contains(" repaired ")).collect();
    assert!(
        !repaired.is_empty() && repaired.iter().all(|line| line.contains("pods/ping/eth0")),
        "{}",
        fixed.stdout
    );
    assert_same(&before, &node.leftovers(), "after --fix");

    must(&node, &["del", "plain", "third", "--container", "third"]);
    assert_eq!(run(&node, &["audit", "--fix"]).status, 0);
    must(&node, &["audit"]);
}

#[test]
fn a_repair_takes_no_rule_from_another_running_pod() {
    let node = overlapping();
    // `second` has the same address by hand, and its rules.
    must(&node, &["add", "two", "second", "--container", "second", "--arg", "IP=10.11.0.9"]);
    node.sh(
        "nft delete element inet podwire_masq net4_10.11.0.0_24 '{ 10.11.0.2 }'
             nft add element inet podwire_masq net4_10.11.0.0_24 '{ 10.11.0.2 comment \"two/second/eth0\" }'",
    );
    let before = rules(&node);
    let conflict = "address 10.11.0.2 belongs to two/second/eth0 too: two networks overlap";
    for words in [&["check", "one", "first"][..], &["check", "one", "first", "--repair"], &["audit", "--fix"]]
    {
        let output = run(&node, words);
        let said = format!("{}{}", output.stdout, output.stderr);
        assert!(output.status == 1 && said.contains(conflict), "{words:?}: {said}");
        assert_same(&before, &rules(&node), "after the repair");
    }
}
