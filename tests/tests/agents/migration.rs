//! A cluster of flanneld and Go plugins migrates to Podwire node by node, and back, while packets cross it. flanneld is
//! the real one. It and the agent are started with the same flags.

use podwire_tests::{flanneld, go_flannel, ours, podwire, Process, GO};
use serde_json::{json, Value};

use super::api_server::{self, Kubernetes};
use super::pings::{Pings, PodPair};
use super::stage::{Stage, Store};

const ETCD: &str = "http://192.168.10.1:2379";
/// A target outside of the pod network: it sees the node's address and has no route to pods.
const WORLD: (&str, &str) = ("world", "192.168.10.1");
/// The conflist of kube-flannel.
const LIST: &str = r#"{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
  {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;
const LIST_FILE: &str = "/run/cni-conf/10-flannel.conflist";

/// The cluster, with the directories of its programs.
struct Migration {
    stage: Stage,
    /// The API server, if the nodes are not in etcd.
    kubernetes: Option<Kubernetes>,
    /// The flags of both programs.
    flags: Vec<String>,
    flanneld: &'static str,
    /// The directories of the plugins.
    go: [String; 2],
}

/// What must not change when the program on a node is replaced.
#[derive(Debug, PartialEq)]
struct Facts {
    subnet_env: String,
    /// The node's registration: its lease in etcd, or its annotations.
    reported: String,
    /// The VXLAN device's index and hardware address.
    device: String,
}

impl Migration {
    /// Nodes in etcd. None, with a message, where there is no flanneld.
    fn in_etcd(backend: Value, links: [u8; 3]) -> Option<Migration> {
        flanneld()?;
        let stage = Stage::on_links(Store::Etcd, &conf(backend), links);
        Migration::start(stage, None, &["--etcd-endpoints", ETCD])
    }

    /// Nodes in Kubernetes. None, with a message, where there is no API server or no flanneld.
    fn in_kubernetes(backend: Value) -> Option<Migration> {
        flanneld()?;
        let conf = conf(backend);
        let stage = Stage::new(Store::Embedded, &conf);
        let kubernetes = Kubernetes::start(&stage)?;
        for machine in &stage.nodes {
            machine.node.write("/run/test/net-conf.json", &conf.to_string());
        }
        let flags = ["--kube-subnet-mgr", "--kubeconfig-file", &kubernetes.kubeconfig.clone()];
        let file = ["--net-config-path", "/run/test/net-conf.json"];
        Migration::start(stage, Some(kubernetes), &[flags.as_slice(), &file].concat())
    }

    /// Starts flanneld on each node, and attaches two pods with Go plugins.
    fn start(stage: Stage, kubernetes: Option<Kubernetes>, flags: &[&str]) -> Option<Migration> {
        let both = flags.iter().chain(&["--ip-masq", "--healthz-port", "8081"]);
        let flags = both.map(ToString::to_string).collect();
        let go = [go_flannel()?.into(), GO.into()];
        let mut all = Migration { stage, kubernetes, flags, flanneld: flanneld()?, go };
        for number in 1..=3 {
            all.start_flanneld(number);
            all.stage.node(number).write(LIST_FILE, LIST);
            let go = all.go.clone();
            all.attach(number, &format!("pod{number}"), &go);
            all.attach(number, &format!("spare{number}"), &go);
        }
        all.wait_for_routes();
        Some(all)
    }

    /// flanneld reports ready before it has read the other nodes.
    fn wait_for_routes(&self) {
        for number in 1..=3 {
            self.stage.wait_until(&format!("n{number} has both routes"), |stage| {
                stage.node(number).sh("ip route | grep -c '^10.244.*via' || true").trim() == "2"
            });
        }
    }

    fn start_flanneld(&mut self, number: u8) {
        let machine = &mut self.stage.nodes[usize::from(number) - 1];
        let mut command = machine.node.command(self.flanneld);
        command.args(&self.flags).env("NODE_NAME", format!("n{number}"));
        machine.agent = Some(Process::start(command));
        // Two threads write the rules, one for masquerading and one for forwarding. Each logs when it is done, between
        // other log lines.
        self.stage.wait_until(&format!("flanneld on n{number} is ready"), |stage| {
            let said =
                |words: &str| stage.machine(number).agent.as_ref().map_or(0, |one| one.count(&[words]));
            said("Running backend.") == 1 && said("bootstrap done") == 2
        });
    }

    fn start_agent(&mut self, number: u8) {
        let machine = &mut self.stage.nodes[usize::from(number) - 1];
        let mut command = machine.node.command(&podwire());
        command.args(["agent", "flannel"]).args(&self.flags).env("NODE_NAME", format!("n{number}"));
        command.args(["--cni-network", "flannel", "--cni-conflist", LIST_FILE, "--cni-version", "0.3.1"]);
        machine.agent = Some(Process::start(command));
        self.stage.wait_until(&format!("n{number} is ready with both peers"), |stage| {
            let status = stage.status(number);
            status["phase"] == "ready" && status["peers"] == 2
        });
    }

    /// Stops it, as systemd or Kubernetes does.
    fn stop(&mut self, number: u8) {
        self.stage.nodes[usize::from(number) - 1].agent.take().expect("a program").stop();
    }

    /// Replaces flanneld on a node by Podwire's agent.
    fn take_over(&mut self, number: u8) {
        self.stop(number);
        self.start_agent(number);
        let rules = self.rules(number);
        assert!(rules.contains("table inet podwire_overlay") && !rules.contains("FLANNEL"), "{rules}");
    }

    /// Replaces Podwire's agent on a node by flanneld.
    fn give_back(&mut self, number: u8) {
        self.stop(number);
        self.start_flanneld(number);
        self.stage.node(number).write(LIST_FILE, LIST);
        self.stage.node(number).sh(&format!("{} agent flannel --retire", podwire()));
        let rules = self.rules(number);
        assert!(!rules.contains("podwire") && rules.contains("FLANNEL-POSTRTG"), "{rules}");
        let ours = self.stage.node(number).sh("ip route show proto 112; ip link show | grep podwire || true");
        assert_eq!(ours, "");
    }

    fn rules(&self, number: u8) -> String {
        self.stage.node(number).sh("nft list ruleset")
    }

    fn facts(&self, number: u8) -> Facts {
        let node = self.stage.node(number);
        let env = node.sh("cat /run/flannel/subnet.env");
        Facts {
            reported: match &self.kubernetes {
                Some(_) => api_server::annotations(&self.stage, number).to_string(),
                None => self.lease(&env),
            },
            device: node.sh("ip -o link show flannel.1 | sed 's/:.*ether / /; s/ brd.*//' || true"),
            subnet_env: env,
        }
    }

    /// The value under the key of the subnet in `subnet.env`.
    fn lease(&self, env: &str) -> String {
        let own = env.lines().find_map(|line| line.strip_prefix("FLANNEL_SUBNET=")).expect("a range");
        let key = format!("/coreos.com/network/subnets/{}", own.replace(".1/", ".0-"));
        let said = self.stage.etcdctl(&format!("get {key}"));
        assert!(said.contains("PublicIP"), "{key}: {said}");
        said
    }

    fn attach(&mut self, number: u8, pod: &str, plugins: &[String]) {
        self.stage.node(number).pod(pod);
        self.plugins(number, "add", pod, plugins);
        self.stage.nodes[usize::from(number) - 1].pods.push(pod.into());
    }

    /// Detaches the pod and releases its address.
    fn detach(&mut self, number: u8, pod: &str, plugins: &[String]) {
        let address = self.stage.address(number, pod);
        let kept = format!("test -e /var/lib/cni/networks/cbr0/{address}");
        assert!(self.stage.node(number).can(&kept), "{pod}");
        self.plugins(number, "del", pod, plugins);
        assert!(!self.stage.node(number).can(&kept), "{pod}");
        assert!(!self.stage.node(number).can(&format!("ip -n {pod} link show eth0")), "{pod}");
        self.stage.node(number).sh(&format!("ip netns delete {pod}"));
        self.stage.nodes[usize::from(number) - 1].pods.retain(|one| one != pod);
    }

    fn plugins(&self, number: u8, verb: &str, pod: &str, plugins: &[String]) {
        let folders: Vec<String> = plugins.iter().map(|folder| format!("--plugin-dir {folder}")).collect();
        let (tool, folders) = (podwire(), folders.join(" "));
        let script = format!("{tool} cni {verb} cbr0 {pod} --conf-dir /run/cni-conf {folders}");
        self.stage.node(number).sh(&script);
    }

    /// Pings from every node's first pod to every other node's, and to other targets.
    fn pings(&self, others: &[(&str, &str)]) -> Pings {
        let pods: Vec<(u8, String)> = (1..=3).map(|number| (number, format!("pod{number}"))).collect();
        let mut targets: Vec<(&str, String)> =
            pods.iter().map(|(number, pod)| (pod.as_str(), self.stage.address(*number, pod))).collect();
        targets.extend(others.iter().map(|(name, address)| (*name, address.to_string())));
        let pairs = pods.iter().flat_map(|(number, pod)| {
            let others = targets.iter().filter(move |(name, _)| name != pod);
            others.map(move |(to, address)| PodPair { node: *number, pod, to, address })
        });
        Pings::start(&self.stage, pairs)
    }
}

fn conf(backend: Value) -> Value {
    json!({"Network": "10.244.0.0/16", "Backend": backend})
}

/// Sends a request to the program of the node.
fn asked(path: &str) -> String {
    format!("python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/{path}', timeout=60).read().decode())\" 2>/dev/null")
}

fn migrates_and_returns(mut cluster: Migration) {
    let (ours, go) = ([ours()], cluster.go.clone());
    let before: Vec<Facts> = (1..=3).map(|number| cluster.facts(number)).collect();
    let pings = cluster.pings(&[WORLD]);
    for number in 1..=3 {
        cluster.take_over(number);
        assert_eq!(cluster.facts(number), before[usize::from(number) - 1]);
        // Pods of both kinds of plugins on one node. One kind detaches pods of the other.
        cluster.attach(number, &format!("new{number}"), &ours);
        cluster.detach(number, &format!("spare{number}"), &ours);
        cluster.stage.assert_model_holds_in(1);
    }
    for number in [2, 1, 3] {
        cluster.give_back(number);
        assert_eq!(cluster.facts(number), before[usize::from(number) - 1]);
        cluster.detach(number, &format!("new{number}"), &go);
        cluster.attach(number, &format!("late{number}"), &go);
        cluster.stage.assert_model_holds_in(1);
    }
    assert_eq!(pings.stop(&cluster.stage), [""; 0]);
}

#[test]
fn a_vxlan_of_flanneld_migrates_node_by_node_and_back_without_packet_loss() {
    let Some(cluster) = Migration::in_etcd(json!({"Type": "vxlan"}), [10, 10, 20]) else { return };
    migrates_and_returns(cluster);
}

#[test]
fn host_gw_routes_of_flanneld_migrate_node_by_node_and_back_without_packet_loss() {
    let Some(cluster) = Migration::in_etcd(json!({"Type": "host-gw"}), [10, 10, 10]) else { return };
    migrates_and_returns(cluster);
}

#[test]
fn flanneld_in_kubernetes_migrates_node_by_node_and_back_without_packet_loss() {
    let Some(cluster) = Migration::in_kubernetes(json!({"Type": "vxlan"})) else { return };
    migrates_and_returns(cluster);
}

#[test]
fn in_a_mixed_cluster_restarts_change_nothing_and_a_removed_node_loses_its_routes() {
    let Some(mut cluster) = Migration::in_etcd(json!({"Type": "host-gw"}), [10, 10, 10]) else { return };
    cluster.take_over(1);
    let changes = |cluster: &Migration| {
        let metrics = cluster.stage.node(1).sh(&asked("metrics"));
        metrics.lines().find(|line| line.contains("kernel_changes_total ")).expect("a number").to_string()
    };
    let (before, env) = (changes(&cluster), cluster.facts(2));
    // Not to the outside: a flanneld that starts flushes its chains for a moment, and then masquerades nothing.
    let pings = cluster.pings(&[]);
    cluster.stop(2);
    cluster.start_flanneld(2);
    cluster.wait_for_routes();
    assert_eq!((changes(&cluster), cluster.facts(2)), (before, env));
    cluster.stop(1);
    cluster.start_agent(1);
    assert_eq!(pings.stop(&cluster.stage), [""; 0]);
    // flanneld's route is now the agent's, and is removed with its node.
    let env = cluster.stage.node(3).sh("cat /run/flannel/subnet.env");
    let own = env.lines().find_map(|line| line.strip_prefix("FLANNEL_SUBNET=")).expect("a range");
    let range = own.replace(".1/", ".0/");
    assert!(cluster.stage.node(1).can(&format!("ip route show proto 112 | grep -q '^{range}'")));
    cluster.stop(3);
    let key = range.replace('/', "-");
    cluster.stage.etcdctl(&format!("del /coreos.com/network/subnets/{key}"));
    cluster.stage.wait_until("n1 forgets n3", |stage| {
        !stage.node(1).can(&format!("ip route show | grep -q '^{range}'"))
    });
}
