//! The agent and the pods that plugins attach: connections of an address end with its pod, pods from before policies are
//! guarded, a changed MAC address is known, and the log says why a pod has no policies. Needs root and the same tools as
//! `packets`.

mod testbed;

use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use podwire_agent_ipc::policy::{HostInterface, Interface, Request};
use podwire_agent_ipc::{client, Owner};
use podwire_netlink::nft::Family;
use podwire_netlink::{ct, sys, Socket};
use podwire_policy_agent::{Kind, PolicyAgent, PolicyAgentOptions, PolicyStatus, Update};
use serde_json::{json, Value};
use testbed::{network_policy, on_node, run, snapshot, Endpoint};

const WAIT: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;

/// An agent that serves plugins at its own socket.
struct Agent {
    agent: PolicyAgent,
    socket: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Agent {
    fn start(objects: &[Value]) -> Agent {
        Agent::start_with(objects, PolicyAgentOptions::default())
    }

    fn start_with(objects: &[Value], options: PolicyAgentOptions) -> Agent {
        let options = PolicyAgentOptions { node_name: "node".into(), ..options };
        let agent = PolicyAgent::start(options).unwrap();
        let number = std::thread::current().id();
        let name = format!("podwire-attached-{}-{number:?}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        podwire_policy_agent::serve_plugins(&socket, agent.clone()).unwrap();
        agent.set_networks(vec!["10.1.0.0/16".parse().unwrap()], Vec::new()).unwrap();
        Kind::ALL.into_iter().for_each(|kind| agent.update(Update::Listed(kind, snapshot(objects))).unwrap());
        Agent { agent, socket }
    }

    fn request(&self, request: &Request) {
        let response = client::request(&self.socket, request, WAIT).unwrap();
        assert!(response.enforced, "{request:?}: {}", response.reason);
    }

    fn attach(&self, interface: Interface) {
        let interface = Box::new(interface);
        self.request(&Request::Attach { interface, timeout_ms: WAIT.as_millis() as u64 });
    }

    fn detach(&self, name: &str) {
        self.request(&Request::Detach { owner: Owner::new("net", name, "eth0") });
    }

    fn wait_until(&self, what: &str, is_done: impl Fn(&PolicyStatus) -> bool) {
        let begin = Instant::now();
        while !is_done(&self.agent.status()) {
            assert!(begin.elapsed() < WAIT, "{what}: {:?}", self.agent.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn interface(name: &str, device: &str, endpoint: &Endpoint) -> Interface {
    let port = HostInterface {
        name: device.into(),
        is_bridge_port: true,
        bridge: "br0".into(),
        pod_mac: mac(endpoint),
        ..HostInterface::default()
    };
    Interface {
        owner: Owner::new("net", name, "eth0"),
        namespace: "x".into(),
        pod: name.into(),
        addresses: vec![endpoint.ip4.parse().unwrap(), endpoint.ip6.parse().unwrap()],
        host_interface: Some(port),
        ..Interface::default()
    }
}

/// The pod `new` may receive nothing; `a` and `old` have no policies.
fn objects() -> Vec<Value> {
    let pod = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "x", "name": name, "labels": { "app": name } } })
    };
    let closed = json!({ "podSelector": { "matchLabels": { "app": "new" } }, "policyTypes": ["Ingress"] });
    vec![pod("a"), pod("old"), pod("new"), network_policy("closed", closed)]
}

/// A UDP flow from one endpoint to both addresses of another.
struct Flow([UdpSocket; 2]);

impl Flow {
    fn open(from: &Endpoint, to: &Endpoint) -> Flow {
        let ends = [(&from.ip4, &to.ip4), (&from.ip6, &to.ip6)];
        Flow(from.run_inside(|| {
            ends.map(|(from, to)| {
                let socket = UdpSocket::bind((from.as_str(), PORT)).unwrap();
                socket.connect((to.as_str(), PORT)).unwrap();
                socket
            })
        }))
    }

    /// Whether each family gets an answer. A datagram can be lost while an address is resolved, so each is repeated.
    fn is_answered(&self, timeout: Duration) -> [bool; 2] {
        self.0.each_ref().map(|socket| {
            let begin = Instant::now();
            socket.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
            while begin.elapsed() < timeout {
                let _ = socket.send(b"?");
                if socket.recv(&mut [0; 9]).is_ok() {
                    return true;
                }
            }
            false
        })
    }
}

/// The conntrack entries of an endpoint.
fn connections_of(endpoint: &[IpAddr]) -> usize {
    let mut socket = Socket::netfilter().unwrap();
    let of = |one: &ct::Connection| one.addresses().any(|ip| endpoint.contains(&ip));
    [Family::Ip, Family::Ip6].map(|family| ct::list(&mut socket, family, of).unwrap().len()).iter().sum()
}

/// The next pod with an address has another MAC address.
fn forget_neighbours(endpoint: &Endpoint) {
    endpoint.sh("ip neigh flush dev eth0; ip -6 neigh flush dev eth0");
}

/// Removes the pod at once: a process that ends leaves its namespace to the kernel.
fn delete(endpoint: Endpoint, device: &str) {
    run(&format!("ip link del {device}; ip neigh flush dev br0; ip -6 neigh flush dev br0"));
    drop(endpoint);
}

#[test]
fn a_pod_inherits_no_connection_of_its_address() {
    on_node(|_| {
        own_run_directory();
        let a = Endpoint::bridged(10);
        let agent = Agent::start(&objects());
        agent.attach(interface("a", "veth10", &a));
        // The first release is swept at once, the next ones are not: a sweep follows the last one after seconds.
        for round in ["swept", "reused before the sweep", "reused once more"] {
            let old = Endpoint::bridged(11);
            forget_neighbours(&a);
            agent.attach(interface("old", "veth11", &old));
            old.serve(&[PORT]);
            let flow = Flow::open(&a, &old);
            assert_eq!(flow.is_answered(WAIT), [true; 2], "{round}");
            let addresses: [IpAddr; 2] = [old.ip4.parse().unwrap(), old.ip6.parse().unwrap()];
            delete(old, "veth11");
            agent.detach("old");
            if round == "swept" {
                agent.wait_until("connections are forgotten", |_| connections_of(&addresses) == 0);
            }
            let new = Endpoint::bridged(11);
            forget_neighbours(&a);
            new.serve(&[PORT]);
            agent.attach(interface("new", "veth11", &new));
            assert_eq!(flow.is_answered(Duration::from_secs(1)), [false; 2], "{round}");
            delete(new, "veth11");
            agent.detach("new");
        }
    });
}

#[test]
fn a_pod_that_the_source_never_lists_stops_no_sweep() {
    on_node(|_| {
        own_run_directory();
        let [a, old, lost] = [10, 11, 12].map(Endpoint::bridged);
        let options = PolicyAgentOptions { lists_pods: true, ..PolicyAgentOptions::default() };
        let agent = Agent::start_with(&objects(), options);
        let interface_of_lost = Box::new(interface("lost", "veth12", &lost));
        let request = Request::Attach { interface: interface_of_lost, timeout_ms: 100 };
        let response = client::request(&agent.socket, &request, WAIT).unwrap();
        assert!(!response.enforced && response.reason.contains("does not list pod x/lost"), "{response:?}");
        agent.attach(interface("a", "veth10", &a));
        agent.attach(interface("old", "veth11", &old));
        old.serve(&[PORT]);
        assert_eq!(Flow::open(&a, &old).is_answered(WAIT), [true; 2]);
        let addresses: [IpAddr; 2] = [old.ip4.parse().unwrap(), old.ip6.parse().unwrap()];
        delete(old, "veth11");
        agent.detach("old");
        agent.wait_until("connections are forgotten", |_| connections_of(&addresses) == 0);
    });
}

#[test]
fn a_pod_inherits_no_connection_from_before_the_agent() {
    on_node(|_| {
        own_run_directory();
        let (a, old) = (Endpoint::bridged(10), Endpoint::bridged(11));
        old.serve(&[PORT]);
        // As the rules of an earlier agent, this makes the kernel track connections.
        run("nft add table inet t; nft add chain inet t f { type filter hook forward priority 0 \\; }; \
             nft add rule inet t f ct state established accept");
        let flow = Flow::open(&a, &old);
        assert_eq!(flow.is_answered(WAIT), [true; 2]);
        delete(old, "veth11");
        let agent = Agent::start(&objects());
        agent.attach(interface("a", "veth10", &a));
        let new = Endpoint::bridged(11);
        forget_neighbours(&a);
        new.serve(&[PORT]);
        agent.attach(interface("new", "veth11", &new));
        assert_eq!(flow.is_answered(Duration::from_secs(1)), [false; 2]);
    });
}

/// A ledger file, as a plugin writes it.
fn record(endpoint: &Endpoint, name: &str, (plugin, device): (&str, &str), mac: &str, config: Value) {
    let directory = Path::new("/run/podwire/ledger/net");
    std::fs::create_dir_all(directory).unwrap();
    let entry = json!({ "plugin": plugin, "network": "net", "container": name, "ifname": "eth0", "netns": "",
        "args": format!("K8S_POD_NAMESPACE=x;K8S_POD_NAME={name}"), "path": "", "config": config });
    let (four, six) = (format!("{}/16", endpoint.ip4), format!("{}/64", endpoint.ip6));
    let result = json!({ "cniVersion": "1.0.0",
        "interfaces": [{ "name": "br0" }, { "name": device },
            { "name": "eth0", "mac": mac, "sandbox": "/run/netns/x" }],
        "ips": [{ "address": four, "interface": 2 }, { "address": six, "interface": 2 }] });
    let text = format!("{entry}\n{}\n", json!({ "result": result }));
    std::fs::write(directory.join(format!("{name}:eth0:{plugin}")), text).unwrap();
}

/// The agent reads the ledger of the machine otherwise.
fn own_run_directory() {
    sys::unshare_mounts().unwrap();
    sys::mount_tmpfs(Path::new("/run")).unwrap();
}

fn mac(endpoint: &Endpoint) -> String {
    let link = endpoint.sh("ip -o link show dev eth0");
    link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
}

#[test]
fn pods_from_before_policies_are_guarded_or_reported() {
    on_node(|_| {
        own_run_directory();
        run("ip link set br0 type bridge nf_call_iptables 0 nf_call_ip6tables 0");
        let [a, new, lost, other] = [10, 11, 12, 13].map(Endpoint::bridged);
        let config = json!({ "type": "bridge", "name": "net" });
        record(&a, "a", ("bridge", "veth10"), &mac(&a), config.clone());
        record(&new, "new", ("bridge", "veth11"), &mac(&new), config.clone());
        // Another implementation enforces the policies of this network.
        let foreign = json!({ "type": "bridge", "name": "net", "policy": { "type": "other" } });
        record(&other, "other", ("bridge", "veth13"), &mac(&other), foreign);
        let listed = |name: &str, endpoint: &Endpoint| {
            json!({ "apiVersion": "v1", "kind": "Pod",
                "metadata": { "namespace": "x", "name": name, "labels": { "app": name } },
                "spec": { "nodeName": "node" },
                "status": { "podIPs": [{ "ip": endpoint.ip4 }, { "ip": endpoint.ip6 }] } })
        };
        let mut objects = objects();
        // Another plugin attached `lost`; a pod of another node and one of the node's network need nothing here.
        objects.push(listed("lost", &lost));
        let mut elsewhere = listed("elsewhere", &lost);
        elsewhere["spec"]["nodeName"] = json!("far");
        let mut host = listed("host", &lost);
        host["spec"]["hostNetwork"] = json!(true);
        objects.extend([elsewhere, host]);
        let agent = Agent::start(&objects);
        agent.wait_until("policies are enforced", |status| status.enforced && status.interfaces == 2);
        assert_eq!(agent.agent.status().unguarded, ["x/lost"]);
        new.serve(&[PORT]);
        let flow = Flow::open(&a, &new);
        assert_eq!(flow.is_answered(Duration::from_secs(1)), [false; 2], "the ingress policy");
        drop(flow);
        // The addresses that a pod sends from are checked too.
        lost.serve(&[PORT]);
        assert_eq!(Flow::open(&a, &lost).is_answered(WAIT), [true; 2]);
        a.sh("ip addr add 10.1.0.99/16 dev eth0");
        let forged = a.run_inside(|| {
            let socket = UdpSocket::bind("10.1.0.99:0").unwrap();
            socket.connect(("10.1.0.12", PORT)).unwrap();
            socket
        });
        assert_eq!(
            Flow([forged.try_clone().unwrap(), forged]).is_answered(Duration::from_secs(1)),
            [false; 2]
        );
        // A pod that is attached again is no longer reported.
        agent.attach(interface("lost", "veth12", &lost));
        agent.wait_until("it is guarded", |status| status.unguarded.is_empty());
    });
}

/// The plugin tuning changes the MAC address after bridge has attached the pod.
#[test]
fn a_pod_sends_with_the_mac_address_that_tuning_gave_it() {
    on_node(|_| {
        own_run_directory();
        let (a, b) = (Endpoint::bridged(10), Endpoint::bridged(11));
        b.serve(&[PORT]);
        let mut attached = interface("a", "veth10", &a);
        let agent = Agent::start(&objects());
        agent.attach(attached.clone());
        agent.attach(interface("old", "veth11", &b));
        let tuned = "02:00:5e:10:20:30";
        a.sh(&format!("ip link set eth0 address {tuned}"));
        assert_eq!(Flow::open(&a, &b).is_answered(Duration::from_secs(1)), [false; 2], "not its own");
        attached.set_mac(tuned);
        agent.attach(attached);
        assert_eq!(Flow::open(&a, &b).is_answered(WAIT), [true; 2]);
    });
}

#[test]
fn an_agent_that_starts_knows_the_mac_address_that_tuning_gave() {
    on_node(|_| {
        own_run_directory();
        let (a, b) = (Endpoint::bridged(10), Endpoint::bridged(11));
        b.serve(&[PORT]);
        let (first, tuned) = (mac(&a), "02:00:5e:10:20:30");
        a.sh(&format!("ip link set eth0 address {tuned}"));
        let config = json!({ "type": "bridge", "name": "net", "policy": { "type": "k8s" } });
        record(&b, "old", ("bridge", "veth11"), &mac(&b), config.clone());
        record(&a, "a", ("bridge", "veth10"), &first, config);
        record(&a, "a", ("tuning", "veth10"), tuned, json!({ "type": "tuning", "name": "net" }));
        let agent = Agent::start(&objects());
        agent.wait_until("policies are enforced", |status| status.enforced && status.interfaces == 2);
        assert_eq!(Flow::open(&a, &b).is_answered(WAIT), [true; 2]);
        a.sh("ip link set eth0 address 02:00:5e:10:20:31");
        assert_eq!(Flow::open(&a, &b).is_answered(Duration::from_secs(1)), [false; 2], "not its own");
    });
}

/// The log of all agents of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Deleted with grace 0, a pod still runs until the kubelet has stopped it.
#[test]
fn the_log_says_that_a_pod_that_still_runs_is_gone_from_the_api() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| LogWriter).init();
    let logged = |words: &str| String::from_utf8_lossy(&LOG.lock().unwrap()).contains(words);
    on_node(move |_| {
        own_run_directory();
        let (a, deleted) = (Endpoint::bridged(10), Endpoint::bridged(11));
        deleted.serve(&[PORT]);
        let mut objects = objects();
        objects.push(json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "x", "name": "deleted" } }));
        let options = PolicyAgentOptions { lists_pods: true, ..PolicyAgentOptions::default() };
        let agent = Agent::start_with(&objects, options);
        agent.attach(interface("a", "veth10", &a));
        agent.attach(interface("deleted", "veth11", &deleted));
        assert_eq!(Flow::open(&a, &deleted).is_answered(WAIT), [true; 2]);
        agent.agent.update(Update::Deleted(Kind::Pod, "x/deleted".into())).unwrap();
        let begin = Instant::now();
        while !logged("from=x/a to=x/deleted") {
            let log = || String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
            assert!(begin.elapsed() < WAIT, "no packet was dropped and logged: {}", log());
            // From another port: the first connection stays open.
            let send = || UdpSocket::bind("0.0.0.0:0")?.send_to(b"?", (deleted.ip4.as_str(), PORT));
            a.run_inside(send).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(logged("direction=ingress reason=x/deleted is gone from the API and still runs"));
        assert!(!logged("the policies of x/deleted are not known yet"));
    });
}
