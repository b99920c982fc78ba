//! A cluster on one machine: two nodes on one link, a third behind a router, each with its agent and its pods.
//!
//! ```text
//!  n1 192.168.10.11 ─┐
//!                    ├─ lan10 ─ router ─ lan20 ─ n3 192.168.20.13
//!  n2 192.168.10.12 ─┘            │
//!                                etcd
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwire_tests::{lost_packets, ours, podwire, Node, Process};
use podwire_verify::{Endpoint, Kind, Options, Outcome, Report};
use serde_json::{json, Value};

use crate::api::Api;

/// The source of the agents' nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Embedded,
    Etcd,
    /// The stand-in of the API server.
    Kubernetes,
}

/// The machines and the router between them.
pub struct Stage {
    pub router: Node,
    pub nodes: Vec<Machine>,
    pub store: Store,
    /// A directory that all machines share.
    pub folder: PathBuf,
    pub etcd: Option<Process>,
    pub api: Option<Api>,
}

/// A node and its agent.
pub struct Machine {
    pub number: u8,
    /// The number of its link.
    lan: u8,
    pub node: Node,
    pub agent: Option<Process>,
    pub pods: Vec<String>,
}

const NO_DAD: &str =
    "echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad";
/// The timeout of waiting. A repair takes two seconds on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The last subnets are not assigned: tests use them.
pub fn net_conf(backend: Value) -> Value {
    json!({
        "Network": "10.244.0.0/16", "SubnetMax": "10.244.249.0",
        "EnableIPv6": true, "IPv6Network": "fd00:244::/48", "IPv6SubnetLen": 64,
        "Backend": backend,
    })
}

impl Stage {
    /// Three nodes without agents.
    pub fn new(store: Store, conf: &Value) -> Stage {
        Stage::on_links(store, conf, [10, 10, 20])
    }

    /// The same, with these links of the nodes.
    pub fn on_links(store: Store, conf: &Value, links: [u8; 3]) -> Stage {
        let router = Node::new();
        router.sh(NO_DAD);
        router.sh("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
        for lan in [10, 20] {
            router.sh(&format!(
                "ip link add lan{lan} type bridge && ip link set lan{lan} up \
                 && ip address add 192.168.{lan}.1/24 dev lan{lan} && ip address add fd{lan}::1/64 dev lan{lan} nodad"
            ));
        }
        let nodes = (1..).zip(links).map(|(number, lan)| Machine::new(&router, number, lan)).collect();
        let folder =
            std::env::temp_dir().join(format!("podwire-agents-{}-{}", std::process::id(), router.pid()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("net-conf.json"), conf.to_string()).expect("the config");
        let api = (store == Store::Kubernetes).then(|| Api::start(router.pid(), "192.168.10.1:6443"));
        let mut stage = Stage { router, nodes, store, folder, etcd: None, api };
        if store == Store::Etcd {
            stage.start_etcd();
            let put = format!("ETCDCTL_API=3 etcdctl --endpoints http://192.168.10.1:2379 put /coreos.com/network/config '{conf}'");
            stage.wait_until("etcd takes the config", |stage| stage.router.can(&put));
        }
        stage
    }

    /// The same with ready agents, and a pod on each node.
    pub fn ready(store: Store, backend: Value) -> Stage {
        let mut stage = Stage::new(store, &net_conf(backend));
        (1..=3).for_each(|number| stage.start_agent(number, &[]));
        (1..=3).for_each(|number| stage.wait_ready(number));
        (1..=3).for_each(|number| stage.add_pod(number, &format!("pod{number}")));
        // Nodes that this backend cannot reach count as peers too.
        stage.wait_until("all agents have all peers", |stage| {
            (1..=3).all(|number| stage.status(number)["peers"] == 2)
        });
        stage
    }

    pub fn start_etcd(&mut self) {
        let mut command = self.router.command("etcd");
        command.args(["--data-dir", self.folder.join("etcd").to_str().expect("a path"), "--unsafe-no-fsync"]);
        command.args([
            "--listen-client-urls",
            "http://192.168.10.1:2379",
            "--advertise-client-urls",
            "http://192.168.10.1:2379",
        ]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--logger", "zap"]);
        self.etcd = Some(Process::start(command));
    }

    pub fn machine(&self, number: u8) -> &Machine {
        &self.nodes[usize::from(number) - 1]
    }

    pub fn node(&self, number: u8) -> &Node {
        &self.machine(number).node
    }

    pub fn start_agent(&mut self, number: u8, flags: &[&str]) {
        self.start_agent_behind(number, &[], flags);
    }

    /// The same, with a program that executes its arguments, such as setpriv.
    pub fn start_agent_behind(&mut self, number: u8, wrapper: &[&str], flags: &[&str]) {
        let folder = self.folder.clone();
        let store = match self.store {
            Store::Embedded => format!("embedded:{}", folder.join("cluster.db").display()),
            Store::Etcd => "etcd".to_string(),
            Store::Kubernetes => "kubernetes".to_string(),
        };
        let machine = &mut self.nodes[usize::from(number) - 1];
        let program = podwire();
        let words: Vec<&str> = wrapper.iter().copied().chain([program.as_str()]).collect();
        let mut command = machine.node.command(words[0]);
        command.args(&words[1..]).args([
            "agent",
            "flannel",
            "--store",
            &store,
            "--node-name",
            &format!("n{number}"),
            "--ip-masq",
        ]);
        command.args(["--net-config-path", folder.join("net-conf.json").to_str().expect("a path")]);
        command.args(["--healthz-port", "8081"]);
        if !flags.contains(&"--etcd-endpoints") {
            command.args(["--etcd-endpoints", "http://192.168.10.1:2379"]);
        }
        if self.store == Store::Kubernetes {
            command.args(["--kube-api-url", "http://192.168.10.1:6443"]);
        }
        if !flags.contains(&"--cni-network") {
            command.args(["--cni-network", "flannel"]);
        }
        command.args(["--cni-conflist", "/run/cni-conf/10-podwire.conflist"]).args(flags);
        machine.agent = Some(Process::start(command));
    }

    /// Starts another command of `podwire` in place of the agent.
    pub fn start(&mut self, number: u8, words: &[&str], flags: &[&str]) {
        self.start_behind(number, &[], words, flags);
    }

    /// The same, with a program that executes its arguments.
    pub fn start_behind(&mut self, number: u8, wrapper: &[&str], words: &[&str], flags: &[&str]) {
        let machine = &mut self.nodes[usize::from(number) - 1];
        let program = podwire();
        let all = [wrapper, &[&program], words, flags].concat();
        let mut command = machine.node.command(all[0]);
        command.args(&all[1..]);
        machine.agent = Some(Process::start(command));
    }

    /// Kills the agent (SIGKILL).
    pub fn kill_agent(&mut self, number: u8) {
        self.nodes[usize::from(number) - 1].agent = None;
    }

    /// The agent's `/status`; `null` if it does not answer.
    pub fn status(&self, number: u8) -> Value {
        let script = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/status', timeout=60).read().decode())\" 2>/dev/null";
        let said = self.node(number).try_sh(script);
        serde_json::from_slice(&said.stdout).unwrap_or_default()
    }

    /// The agent's metrics.
    pub fn metrics(&self, number: u8) -> String {
        let script = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/metrics', timeout=60).read().decode())\"";
        self.node(number).sh(script)
    }

    /// Runs etcdctl on the router.
    #[track_caller]
    pub fn etcdctl(&self, words: &str) -> String {
        let timeouts = "--dial-timeout=20s --command-timeout=60s";
        self.router
            .sh(&format!("ETCDCTL_API=3 etcdctl --endpoints http://192.168.10.1:2379 {timeouts} {words}"))
    }

    #[track_caller]
    pub fn wait_ready(&self, number: u8) {
        self.wait_until(&format!("n{number} is ready"), |stage| stage.status(number)["phase"] == "ready");
    }

    /// Waits for a change that the kernel or an agent makes.
    #[track_caller]
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Stage) -> bool) {
        self.wait_for(TIMEOUT, what, is_so);
    }

    /// The same with another timeout.
    #[track_caller]
    pub fn wait_for(&self, timeout: Duration, what: &str, is_so: impl Fn(&Stage) -> bool) {
        let end = Instant::now() + timeout;
        while !is_so(self) {
            if Instant::now() > end {
                let all: Vec<_> = (1..=3).map(|number| self.status(number).to_string()).collect();
                panic!("not within {timeout:?}: {what}\n{}", all.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Attaches a pod on a node with the conflist that the agent wrote.
    pub fn add_pod(&mut self, number: u8, name: &str) {
        let machine = &mut self.nodes[usize::from(number) - 1];
        machine.node.pod(name);
        let words =
            [&podwire(), "cni", "add", "cbr0", name, "--plugin-dir", &ours(), "--conf-dir", "/run/cni-conf"];
        let words: Vec<&str> = words.iter().map(|word| word.as_ref()).collect();
        let added = machine.node.output(&words, &[]);
        assert_eq!(added.status, 0, "{name}: {}", added.stderr);
        machine.pods.push(name.into());
    }

    /// Lets a node and its pods answer `podwire verify --with FILE` on another node, which gets the file
    /// `/run/test/answer.json`. They answer as long as the process runs.
    pub fn answer(&self, number: u8, other: u8) -> Process {
        let printed = "/run/test/answer.json";
        let answer = format!("exec {} verify --answer 600s --name n{number} > {printed}", podwire());
        let mut command = self.node(number).command("sh");
        command.args(["-c", &answer]);
        let answering = Process::start(command);
        self.wait_until(&format!("n{number} prints its addresses"), |stage| {
            stage.node(number).can(&format!("tail -1 {printed} | grep -q '^}}'"))
        });
        self.node(other).write(printed, &self.node(number).sh(&format!("cat {printed}")));
        answering
    }

    /// The packets of `podwire verify` on a node to itself and to the node that answers.
    pub fn verify_with_answer(&self, number: u8, timeout: &str) -> Vec<Value> {
        let (podwire, name) = (podwire(), format!("n{number}"));
        let words =
            ["verify", "--with", "/run/test/answer.json", "--name", &name, "--timeout", timeout, "--json"];
        let said = self.node(number).output(&[&[podwire.as_str()][..], &words].concat(), &[]);
        let report: Value = serde_json::from_str(&said.stdout).expect("a report");
        report["probes"].as_array().expect("probes").clone()
    }

    /// Sends packets from every pod to every pod and node (`podwire verify`).
    pub fn verify(&self) -> Report {
        let mut places = Vec::new();
        for machine in &self.nodes {
            let root = format!("/proc/{}", machine.node.pid());
            for pod in &machine.pods {
                let path = format!("{root}/root/run/netns/{pod}");
                places.push(Endpoint::pod(pod, path, &[]).expect("the pod"));
            }
            let netns = podwire_kernel::Netns::open(format!("{root}/ns/net")).expect("the node");
            let lan = machine.lan;
            let own = [format!("192.168.{lan}.1{}", machine.number), format!("fd{lan}::1{}", machine.number)];
            let own = own.iter().map(|ip| ip.parse().expect("an address")).collect();
            places.push(Endpoint::node(format!("n{}", machine.number), netns, own).expect("the node"));
        }
        podwire_verify::verify(&places, Options { timeout: Duration::from_secs(10), ..Options::default() })
            .expect("packets")
    }

    /// Checks that pods reach pods, and nodes reach pods, with their own addresses.
    #[track_caller]
    pub fn assert_model_holds(&self) {
        self.assert_model_holds_in(2);
    }

    /// The same where pods have addresses of this many families.
    #[track_caller]
    pub fn assert_model_holds_in(&self, families: usize) {
        let report = self.verify();
        let is_node = |place: usize| report.endpoints[place].kind == Kind::Node;
        let promised = |one: &&Outcome| {
            let why = one.result.as_ref().err().map_or("", |why| why);
            // Outside of the pod network a pod has its node's address: it is masqueraded.
            let outside = is_node(one.to) && why.contains("NAT changed it");
            // A peer on the link is reached through the node's interface, whose MTU is larger than the pods'.
            let wider = is_node(one.from) && why.contains("has MTU 1500");
            !outside && !wider
        };
        let mut said: Vec<_> = report.failures().filter(promised).map(|one| report.sentence(one)).collect();
        said.extend(report.missing.iter().map(ToString::to_string));
        if !said.is_empty() {
            said.extend(report.disturbance.clone());
        }
        assert!(said.is_empty(), "{} of {} failed:\n{}", said.len(), report.outcomes.len(), said.join("\n"));
        let pods = report.endpoints.iter().filter(|one| one.kind == Kind::Pod).count();
        let least = pods * (pods - 1) * 4 * families;
        assert!(pods >= 3 && report.outcomes.len() >= least, "{}", report.outcomes.len());
    }

    /// The address of a pod.
    pub fn address(&self, number: u8, pod: &str) -> String {
        let script = format!("ip -n {pod} -4 -o address show eth0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/'");
        self.node(number).sh(&script).trim().into()
    }

    /// The IPv6 address of a pod.
    pub fn address6(&self, number: u8, pod: &str) -> String {
        let script =
            format!("ip -n {pod} -6 -o address show eth0 scope global | sed 's/.*inet6 \\([0-9a-f:]*\\).*/\\1/' | head -1");
        self.node(number).sh(&script).trim().into()
    }

    /// Pings from one node's pod to another's while `meanwhile` runs. Returns the lost packets.
    pub fn lost_while(&mut self, from: u8, to: u8, meanwhile: impl FnOnce(&mut Stage)) -> Vec<u32> {
        let target = self.address(to, &format!("pod{to}"));
        let script =
            format!("exec ip netns exec pod{from} ping -i 0.05 -W 2 -c 100000 {target} > /run/test/ping");
        let mut command = self.node(from).command("sh");
        command.args(["-c", &script]);
        let mut ping = command.spawn().expect("ping");
        self.wait_until("the first answer", |stage| {
            stage.node(from).can("grep -q icmp_seq=5 /run/test/ping")
        });
        meanwhile(self);
        // Wait for the last responses.
        std::thread::sleep(Duration::from_secs(1));
        let stopped = std::process::Command::new("kill").args(["-INT", &ping.id().to_string()]).status();
        assert!(stopped.expect("kill").success());
        drop(ping.wait());
        lost_packets(&self.node(from).sh("cat /run/test/ping"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Machine {
    fn new(router: &Node, number: u8, lan: u8) -> Machine {
        let node = Node::new();
        node.sh(NO_DAD);
        router.sh(&format!(
            "ip link add p{number} type veth peer name eth0 netns {pid} && ip link set p{number} master lan{lan} up",
            pid = node.pid()
        ));
        node.sh(&format!(
            "ip address add 192.168.{lan}.1{number}/24 dev eth0 && ip address add fd{lan}::1{number}/64 dev eth0 nodad \
             && ip link set eth0 up && ip route add default via 192.168.{lan}.1 && ip route add default via fd{lan}::1"
        ));
        Machine { number, lan, node, agent: None, pods: Vec::new() }
    }
}
