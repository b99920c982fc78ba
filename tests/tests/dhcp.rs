//! Addresses from a DHCP server: dnsmasq behind a bridge, the daemon, the plugin, and pods that come and go.

use podwire_tests::{assert_same, ours, podwire, Chain, Invocation, Node, Pod, Process};
use serde_json::{json, Value};

const RANGE: &str = "--dhcp-range=10.66.0.50,10.66.0.99,255.255.255.0,2m";
const RANGE6: &str = "--dhcp-range=fd66::50,fd66::99,64,2m";
/// A lease that is renewed after five seconds, the shortest that dnsmasq allows.
const SOON: &str = "--dhcp-option=option:T1,5 --dhcp-option=option:T2,100";
/// A lease of eight seconds for the client. dnsmasq itself keeps it for two minutes.
const SHORT: &str = "--dhcp-option-force=51,8";

/// The bridge plugin with addresses from the server behind `lan0`.
fn bridge(ipam: Value) -> Value {
    let mut config = json!({"type": "bridge", "bridge": "lan0", "ipam": {"type": "dhcp"}});
    for (key, value) in ipam.as_object().into_iter().flatten() {
        config["ipam"][key] = value.clone();
    }
    config
}

fn chain(ipam: Value) -> Chain {
    Chain::new(&ours(), "lan", &[bridge(ipam)])
}

/// A node with a server, the daemon, and the network.
fn with_server(options: &str) -> (Node, Process, Process, Chain) {
    let node = Node::new();
    node.lan();
    let server = node.dhcp_server(options);
    let daemon = node.dhcp_daemon("");
    (node, server, daemon, chain(json!({})))
}

/// The addresses of the pod's interface that are not link-local.
fn addresses(node: &Node, pod: &Pod, ifname: &str) -> Vec<String> {
    let links = node.json(&format!("ip -n {} -j address show dev {ifname}", pod.name));
    let all = links[0]["addr_info"].as_array().cloned().unwrap_or_default();
    let global = all.iter().filter(|one| one["scope"] == "global");
    global.map(|one| format!("{}/{}", one["local"].as_str().unwrap(), one["prefixlen"])).collect()
}

fn mtu(node: &Node, pod: &Pod) -> Value {
    node.json(&format!("ip -n {} -j link show dev eth0", pod.name))[0]["mtu"].clone()
}

/// The pod's routes, without the kernel's: destination, gateway, metric.
fn routes(node: &Node, pod: &Pod) -> Vec<String> {
    let all = node.json(&format!("ip -n {} -j route", pod.name));
    let made = all.as_array().unwrap().iter().filter(|route| route["protocol"] != "kernel");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let mut all: Vec<_> = made
        .map(|route| format!("{} {} {}", text(&route["dst"]), text(&route["gateway"]), route["metric"]))
        .collect();
    all.sort();
    all
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result}")).to_string()
}

#[test]
fn a_pod_gets_an_address_with_its_options_and_releases_it() {
    let options = "--dhcp-option=3,10.66.0.1 --dhcp-option=6,10.66.0.53,10.66.0.54 --domain=pods.test \
                   --dhcp-option=119,one.test,two.test --dhcp-option=26,1400";
    let (node, mut server, _daemon, chain) = with_server(&format!("{RANGE} {options}"));
    let pod = node.pod("blue");
    let before = node.state(&pod);
    let result = chain.add(&node, &pod);
    let ip = address(&result);
    assert!(ip.starts_with("10.66.0.") && ip.ends_with("/24"), "{result}");
    assert_eq!(result["ips"][0]["gateway"], "10.66.0.1");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.66.0.1"}]));
    let dns = json!({"nameservers": ["10.66.0.53", "10.66.0.54"], "domain": "pods.test", "search": ["one.test", "two.test"]});
    assert_eq!(result["dns"], dns);
    assert_eq!(addresses(&node, &pod, "eth0"), std::slice::from_ref(&ip));
    assert_eq!(
        (mtu(&node, &pod), routes(&node, &pod)),
        (json!(1400), vec!["default 10.66.0.1 null".to_string()])
    );
    // The identifier is that of the Go plugin: a zero and container/network/interface.
    let id = "00:62:6c:75:65:2f:6c:61:6e:2f:65:74:68:30";
    node.expect_leases(1);
    let leases = node.leases();
    assert!(
        leases.len() == 1 && leases[0].ends_with(id) && leases[0].contains(ip.trim_end_matches("/24")),
        "{leases:?}"
    );
    node.sh(&format!("nsenter --net={} ping -c1 -W5 10.66.0.1", pod.netns));
    chain.check(&node, &pod, &result).unwrap();
    chain.del(&node, &pod, Some(&result));
    server.expect(&["DHCPRELEASE", ip.trim_end_matches("/24")]);
    node.expect_leases(0);
    assert_same(&before, &node.state(&pod), "after DEL");
    assert_eq!(node.sh("find /var/lib/podwire/dhcp -name '*.json'"), "");
    chain.del(&node, &pod, None);
}

#[test]
fn classless_routes_replace_static_routes_and_the_router() {
    let options = "--dhcp-option=3,10.66.0.1 --dhcp-option=33,172.16.0.0,10.66.0.9 \
                   --dhcp-option=121,192.0.2.0/24,10.66.0.7,198.51.100.0/25,0.0.0.0";
    let (node, _server, _daemon, _) = with_server(&format!("{RANGE} {options}"));
    let pod = node.pod("blue");
    let chain = chain(json!({"priority": 77}));
    let result = chain.add(&node, &pod);
    assert_eq!(result["ips"][0]["gateway"], Value::Null);
    assert_eq!(routes(&node, &pod), ["192.0.2.0/24 10.66.0.7 77", "198.51.100.0/25 null 77"]);
    chain.check(&node, &pod, &result).unwrap();
}

#[test]
fn static_routes_are_added_to_the_router() {
    let options = "--dhcp-option=3,10.66.0.1 --dhcp-option=33,172.16.0.0,10.66.0.9";
    let (node, _server, _daemon, chain) = with_server(&format!("{RANGE} {options}"));
    let pod = node.pod("blue");
    chain.add(&node, &pod);
    assert_eq!(routes(&node, &pod), ["172.16.0.0/16 10.66.0.9 null", "default 10.66.0.1 null"]);
}

#[test]
fn options_of_the_config_and_of_the_arguments_are_sent() {
    let (node, mut server, _daemon, _) = with_server(RANGE);
    let pod = node.pod("blue");
    let provide = json!([{"option": "host-name", "fromArg": "K8S_POD_NAME"},
        {"option": "vendor-class-identifier", "value": "podwire"}]);
    let request = json!([{"skipDefault": true}, {"option": "subnet-mask"}, {"option": "42"}]);
    let config = chain(json!({"provide": provide, "request": request})).config(0);
    let call = Invocation::new(&node, &ours(), "ADD", &pod, &config);
    call.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web-0").run().result();
    server.expect(&["vendor class: podwire"]);
    server.expect(&["client provides name: web-0"]);
    server.expect(&["requested options: 1:netmask, 42:ntp-server"]);
    node.expect_leases(1);
    assert!(node.leases()[0].contains(" web-0 "), "{:?}", node.leases());
}

#[test]
fn a_restarted_daemon_continues_with_its_leases() {
    let (node, mut server, daemon, chain) = with_server(&format!("{RANGE} {SOON}"));
    let pod = node.pod("blue");
    let result = chain.add(&node, &pod);
    let files = "find /var/lib/podwire/dhcp/leases -name '*.json' -printf '%m\\n'";
    assert_eq!(node.sh(files), "600\n");
    daemon.stop();
    assert_eq!(node.sh(files), "600\n", "a lease outlives the daemon");
    assert_eq!(addresses(&node, &pod, "eth0"), [address(&result)]);
    let before = server.count(&["DHCPDISCOVER"]);
    let mut daemon = node.dhcp_daemon("");
    assert_eq!(daemon.count(&["event=resumed", "owner=lan/blue/eth0"]), 1);
    chain.check(&node, &pod, &result).unwrap();
    server.expect(&["DHCPREQUEST", "10.66.0."]);
    daemon.expect(&["event=renewed", "owner=lan/blue/eth0"]);
    assert_eq!(server.count(&["DHCPDISCOVER"]), before, "the lease was not asked for again");
    chain.del(&node, &pod, Some(&result));
    server.expect(&["DHCPRELEASE"]);
}

#[test]
fn a_renewal_updates_the_pod() {
    let (node, server, daemon, _) = with_server(&format!("{RANGE} {SOON} --dhcp-option=3,10.66.0.1"));
    let pod = node.pod("blue");
    let chain = chain(json!({"priority": 50}));
    let result = chain.add(&node, &pod);
    assert_eq!(routes(&node, &pod), ["default 10.66.0.1 50"]);
    // A renewal while no server runs would be repeated only after a minute.
    daemon.stop();
    server.stop();
    let _server =
        node.dhcp_server(&format!("{RANGE} {SOON} --dhcp-option=3,10.66.0.2 --dhcp-option=26,1300"));
    let mut daemon = node.dhcp_daemon("");
    daemon.expect(&["event=renewed"]);
    assert_eq!(mtu(&node, &pod), 1300);
    assert_eq!(routes(&node, &pod), ["default 10.66.0.2 50"]);
    assert_eq!(addresses(&node, &pod, "eth0"), [address(&result)]);
}

#[test]
fn a_refused_renewal_leads_to_another_address() {
    let (node, server, daemon, chain) = with_server(&format!("{RANGE} {SOON}"));
    let pod = node.pod("blue");
    let old = address(&chain.add(&node, &pod));
    server.stop();
    daemon.stop();
    node.sh("rm /run/test/dnsmasq.leases");
    node.sh("ip -n server address flush dev eth0 && ip -n server address add 10.66.0.1/25 dev eth0");
    let mut server =
        node.dhcp_server("--dhcp-range=10.66.0.100,10.66.0.120,255.255.255.128,2m --dhcp-option=3,10.66.0.1");
    let mut daemon = node.dhcp_daemon("");
    server.expect(&["DHCPNAK"]);
    daemon.expect(&["event=lost", &old]);
    let line = daemon.expect(&["event=bound"]);
    let now = addresses(&node, &pod, "eth0");
    assert!(now.len() == 1 && now[0].ends_with("/25") && line.contains(&now[0]), "{now:?} {line}");
    assert_eq!(routes(&node, &pod), ["default 10.66.0.1 null"]);
    node.sh(&format!("nsenter --net={} ping -c1 -W5 10.66.0.1", pod.netns));
}

#[test]
fn an_expired_address_is_removed_and_requested_again() {
    let (node, server, mut daemon, chain) =
        with_server(&format!("{RANGE} {SHORT} --dhcp-option=3,10.66.0.1"));
    let pod = node.pod("blue");
    let ip = address(&chain.add(&node, &pod));
    server.stop();
    daemon.expect(&["event=lost", &ip]);
    assert_eq!(addresses(&node, &pod, "eth0"), [""; 0]);
    assert_eq!(routes(&node, &pod), [""; 0]);
    let _server = node.dhcp_server(&format!("{RANGE} --dhcp-option=3,10.66.0.1"));
    daemon.expect(&["event=bound", &ip]);
    node.sh(&format!("nsenter --net={} ping -c1 -W5 10.66.0.1", pod.netns));
    assert_eq!(addresses(&node, &pod, "eth0"), [ip]);
    assert_eq!(routes(&node, &pod), ["default 10.66.0.1 null"]);
}

#[test]
fn without_a_server_an_add_fails_in_time_and_leaves_nothing() {
    let node = Node::new();
    node.lan();
    let _daemon = node.dhcp_daemon("--resend-timeout 1500ms");
    let chain = chain(json!({}));
    let pod = node.pod("blue");
    let before = node.state(&pod);
    let failed = chain.try_add(&node, &pod).unwrap_err();
    let (code, text) = failed.error();
    assert_eq!((code, text.as_str()), (11, "error calling DHCP.Allocate: no more tries"));
    let hint = serde_json::from_str::<Value>(&failed.stdout).expect("JSON")["hint"].to_string();
    assert!(hint.contains("no DHCP server answered within 1.5 s"), "{hint}");
    assert_same(&before, &node.state(&pod), "after ADD");
    assert_eq!(node.sh("find /var/lib/podwire/dhcp -name '*.json'"), "");
}

#[test]
fn a_plugin_that_was_killed_leaves_no_lease() {
    let node = Node::new();
    node.lan();
    let mut daemon = node.dhcp_daemon("--resend-timeout 30s");
    let pod = node.pod("blue");
    node.sh(&format!(
        "ip link add v0 type veth peer name eth0 netns {} && ip link set v0 master lan0 up",
        pod.name
    ));
    let config = json!({"cniVersion": "1.0.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let call = Invocation::new(&node, &ours(), "ADD", &pod, &config);
    let output = call.run_behind(&["timeout", "-s", "KILL", "5"]);
    assert_ne!(output.status, 0);
    daemon.expect(&["event=abandoned", "owner=lan/blue/eth0"]);
}

#[test]
fn a_release_while_the_daemon_is_down_is_done_when_it_starts() {
    let (node, mut server, daemon, chain) = with_server(RANGE);
    // The node is on the network too: without the pod's interface, the daemon can still release the lease from there.
    node.sh("ip address add 10.66.0.2/24 dev lan0");
    let (blue, red) = (node.pod("blue"), node.pod("red"));
    let results = [chain.add(&node, &blue), chain.add(&node, &red)];
    node.expect_leases(2);
    daemon.stop();
    chain.del(&node, &blue, Some(&results[0]));
    chain.del(&node, &blue, None);
    chain.gc(&node, &[]);
    assert_eq!(node.sh("ls /var/lib/podwire/dhcp/leases"), "");
    assert_eq!(node.sh("ls /var/lib/podwire/dhcp/released | wc -l"), "2\n");
    let _daemon = node.dhcp_daemon("");
    server.expect(&["DHCPRELEASE"]);
    server.expect(&["DHCPRELEASE"]);
    node.expect_leases(0);
    assert_eq!(node.sh("ls /var/lib/podwire/dhcp/released"), "");
}

#[test]
fn a_note_is_seen_by_a_daemon_that_runs() {
    let (node, mut server, mut daemon, chain) = with_server(RANGE);
    let pod = node.pod("blue");
    chain.add(&node, &pod);
    node.sh("mv /var/lib/podwire/dhcp/leases/*.json /var/lib/podwire/dhcp/released/");
    daemon.expect(&["event=released", "owner=lan/blue/eth0"]);
    server.expect(&["DHCPRELEASE"]);
}

#[test]
fn gc_gives_the_leases_of_others_back() {
    let (node, mut server, mut daemon, chain) = with_server(RANGE);
    let (blue, red, other) = (node.pod("blue"), node.pod("red"), node.pod("other"));
    chain.add(&node, &blue);
    let kept = chain.add(&node, &red);
    Chain { name: "wan".into(), ..chain.clone() }.add(&node, &other);
    // GC removes the veth pairs before the leases, so the test calls the daemon directly.
    let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"},
        "cni.dev/valid-attachments": [{"containerID": "red", "ifname": "eth0"}]});
    let no_pod = Pod { name: String::new(), netns: String::new() };
    Invocation::new(&node, &ours(), "GC", &no_pod, &config).run().result();
    daemon.expect(&["event=released", "owner=lan/blue/eth0"]);
    server.expect(&["DHCPRELEASE"]);
    node.expect_leases(2);
    chain.check(&node, &red, &kept).unwrap();
}

#[test]
fn a_pod_may_have_two_leases() {
    let (node, mut server, mut daemon, chain) = with_server(&format!("{RANGE} {SOON}"));
    let pod = node.pod("blue");
    let first = chain.add(&node, &pod);
    let config = chain.config(0);
    let call = |verb: &str| Invocation::new(&node, &ours(), verb, &pod, &config).env("CNI_IFNAME", "net1");
    let second = call("ADD").run().result();
    assert_ne!(address(&first), address(&second));
    assert_eq!(addresses(&node, &pod, "net1"), [address(&second)]);
    daemon.expect(&["event=renewed", "owner=lan/blue/eth0"]);
    daemon.expect(&["event=renewed", "owner=lan/blue/net1"]);
    call("DEL").run().result();
    server.expect(&["DHCPRELEASE", address(&second).trim_end_matches("/24")]);
    chain.check(&node, &pod, &first).unwrap();
    node.expect_leases(1);
}

#[test]
fn ipv6_and_both_families() {
    let dns = "--dhcp-option=option6:dns-server,[fd66::53] --dhcp-option=option6:domain-search,six.test";
    let (node, mut server, daemon, _) = with_server(&format!("{RANGE} {RANGE6} {dns}"));
    let (six, both) = (node.pod("six"), node.pod("both"));
    let (only, dual) = (chain(json!({"family": "ipv6"})), chain(json!({"family": "dual"})));
    let result = only.add(&node, &six);
    assert!(address(&result).starts_with("fd66::") && address(&result).ends_with("/128"), "{result}");
    assert_eq!(result["dns"], json!({"nameservers": ["fd66::53"], "search": ["six.test"]}));
    assert_eq!(addresses(&node, &six, "eth0"), [address(&result)]);
    only.check(&node, &six, &result).unwrap();
    let result2 = dual.add(&node, &both);
    assert_eq!(result2["ips"].as_array().unwrap().len(), 2, "{result2}");
    assert_eq!(addresses(&node, &both, "eth0").len(), 2);
    node.expect_leases(3);
    daemon.stop();
    let daemon = node.dhcp_daemon("");
    assert_eq!(daemon.count(&["event=resumed"]), 2);
    only.del(&node, &six, Some(&result));
    server.expect(&["DHCPRELEASE", "00:04:"]);
    dual.del(&node, &both, Some(&result2));
    server.expect(&["DHCPRELEASE"]);
    server.expect(&["DHCPRELEASE"]);
    node.expect_leases(0);
}

#[test]
fn check_reports_a_missing_lease() {
    let (node, _server, daemon, chain) = with_server(RANGE);
    let pod = node.pod("blue");
    let result = chain.add(&node, &pod);
    daemon.stop();
    let (code, text) = chain.check(&node, &pod, &result).unwrap_err().error();
    assert!(code == 11 && text.contains("error dialing DHCP daemon"), "{code} {text}");
    node.sh("rm /var/lib/podwire/dhcp/leases/*");
    let _daemon = node.dhcp_daemon("");
    let (_, text) = chain.check(&node, &pod, &result).unwrap_err().error();
    assert!(text.contains("the DHCP lease of eth0 is not valid"), "{text}");
    // The same client gets the same address, so nothing changes in the pod.
    let repaired = node.output(&[&podwire(), "cni", "audit", "--fix", "--plugin-dir", &chain.path], &[]);
    assert_eq!(repaired.status, 0, "{}{}", repaired.stdout, repaired.stderr);
    chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
    node.expect_leases(1);
}

#[test]
fn the_lease_of_a_deleted_pod_is_released() {
    let (node, _server, daemon, chain) = with_server(&format!("{RANGE} {SOON}"));
    let pod = node.pod("blue");
    chain.add(&node, &pod);
    node.remove(&pod);
    let mut daemon = daemon;
    daemon.expect(&["event=forgotten", "owner=lan/blue/eth0"]);
    assert_eq!(node.sh("ls /var/lib/podwire/dhcp/leases"), "");
}

#[test]
fn status_reports_whether_the_daemon_runs() {
    let node = Node::new();
    let no_pod = Pod { name: String::new(), netns: String::new() };
    let status = |ipam: Value| {
        let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": ipam});
        Invocation::new(&node, &ours(), "STATUS", &no_pod, &config).run()
    };
    let (code, text) = status(json!({"type": "dhcp"})).error();
    assert!(
        code == 50
            && text.starts_with(
                "error dialing DHCP daemon: dial unix /run/cni/dhcp.sock: connect: no such file"
            ),
        "{code} {text}"
    );
    let other = json!({"type": "dhcp", "daemonSocketPath": "/run/test/dhcp.sock"});
    let daemon = node.dhcp_daemon("--socket-path /run/test/dhcp.sock --pid-file /run/test/pid");
    assert_eq!(node.sh("cat /run/test/pid"), daemon.id().to_string());
    assert_eq!(status(other.clone()).status, 0);
    let second = node.output(&[&podwire(), "dhcp", "daemon", "--socket-path", "/run/test/two"], &[]);
    assert!(second.status == 1 && second.stderr.contains("another DHCP daemon"), "{}", second.stderr);
    daemon.stop();
    assert_eq!(status(other).error().0, 50);
    assert_eq!(node.sh("ls /run/test"), "");
}

/// As with systemd: the socket exists before the daemon, which gets it as descriptor 3.
const ACTIVATE: &str = "import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind('/run/test/activated.sock')
listener.listen()
os.dup2(os.dup(listener.fileno()), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[1], sys.argv[1:])";

/// Units start the daemon by its own program, and those for the Go plugin by the plugin's.
#[test]
fn a_socket_that_was_passed_on_is_used() {
    for started_as in [vec![podwire(), "dhcp".into(), "daemon".into()], vec![plugin(), "daemon".into()]] {
        let node = Node::new();
        let mut command = node.command("python3");
        command.args(["-c", ACTIVATE]).args(&started_as);
        let mut daemon = Process::start(command);
        daemon.expect(&["event=ready"]);
        let ipam = json!({"type": "dhcp", "daemonSocketPath": "/run/test/activated.sock"});
        let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": ipam});
        let no_pod = Pod { name: String::new(), netns: String::new() };
        Invocation::new(&node, &ours(), "STATUS", &no_pod, &config).run().result();
        daemon.stop();
        node.sh("test -S /run/test/activated.sock && ! test -e /run/cni/dhcp.sock");
    }
}

/// The path of the plugin.
fn plugin() -> String {
    format!("{}/dhcp", ours())
}

/// All flags of Go's daemon, with one dash, as the units of the field have them.
#[test]
fn the_plugin_called_with_daemon_is_the_daemon() {
    let node = Node::new();
    node.lan();
    let _server = node.dhcp_server(RANGE);
    let flags = "daemon -pidfile=/run/test/pid -hostprefix= -socketpath /run/test/dhcp.sock -timeout 5s -resendmax=1m2s \
                 -resendtimeout 30s -broadcast";
    let mut command = node.command(&plugin());
    command.args(flags.split_whitespace());
    let mut daemon = Process::start(command);
    daemon.expect(&["event=ready", "/run/test/dhcp.sock"]);
    assert_eq!(
        node.sh("cat /run/test/pid"),
        daemon.id().to_string(),
        "the process is the one that was started"
    );
    let chain = chain(json!({"daemonSocketPath": "/run/test/dhcp.sock"}));
    let pod = node.pod("blue");
    let result = chain.add(&node, &pod);
    assert!(address(&result).starts_with("10.66.0."), "{result}");
    chain.del(&node, &pod, Some(&result));
    daemon.stop();
    for (flag, mistake) in [
        ("-nonsense", "flag provided but not defined: -nonsense\nUsage of daemon:\n"),
        ("-broadcast=yes", "invalid boolean value \"yes\" for -broadcast: parse error\nUsage of daemon:\n"),
        ("-timeout=5", "invalid value \"5\" for flag -timeout: parse error\nUsage of daemon:\n"),
    ] {
        let answer = node.output(&[&plugin(), "daemon", flag], &[]);
        assert!(answer.status == 2 && answer.stderr.starts_with(mistake), "{flag}: {}", answer.stderr);
    }
}

/// A server that starts after 12 s: until then three requests were lost, and Go's daemon goes on for 208 s.
#[test]
fn an_add_waits_for_a_late_server() {
    let node = Node::new();
    node.lan();
    let _daemon = node.dhcp_daemon("");
    let (chain, pod) = (chain(json!({})), node.pod("blue"));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(12));
            node.dhcp_server(RANGE)
        });
        let result = chain.add(&node, &pod);
        assert!(address(&result).starts_with("10.66.0."), "{result}");
        late.join().expect("a server");
    });
}
