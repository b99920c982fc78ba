//! A lab of two nodes with agents. The router of the lab is the machine outside of the cluster.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::{Host, Netns};
use podwire_netlink::rt::tc::{self, Qdisc};
use podwire_tests::podwire;
use serde_json::{json, Value};

use crate::case::{subject, Case, Network, Path, Setup};
use crate::traffic::{Ends, Server, PORT};

const HOST_PORT: u16 = 30_080;
const FAST_PATH_TIMEOUT: Duration = Duration::from_secs(60);
/// The addresses of the lab's machines.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 11);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 1);
const UNDERLAY: &str = "192.168.10.0/24";
const CALICO_CONFLIST: &str = "etc/cni/net.d/10-calico.conflist";
/// Policies for other ports than the measured one have ports from here on.
const OTHER_PORTS: usize = 10_000;

/// A running lab with the pods `client` and `server` on one node and `remote` on the other.
pub struct Lab {
    network: Network,
    setup: Setup,
    between_nodes: Path,
    name: String,
    /// Removes the lab, however this program ends: it waits for the end of a pipe.
    cleanup: Child,
    pods: Vec<(Ipv4Addr, PathBuf)>,
}

impl Lab {
    pub fn up(network: Network, setup: Setup, between_nodes: Path) -> Result<Lab> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("datapath-{}-{number}", std::process::id());
        let mut cleanup = Command::new(podwire());
        cleanup.args(["lab", "down", "--after-input", "--name", &name]).stdin(Stdio::piped());
        // Its own process group: Ctrl-C in the terminal must not end it.
        cleanup.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        let cleanup = cleanup.spawn().context("start podwire")?;
        let mut lab = Lab { network, setup, between_nodes, name, cleanup, pods: Vec::new() };
        lab.build().with_context(|| format!("a lab with {}", subject(network, setup)))?;
        Ok(lab)
    }

    fn build(&mut self) -> Result<()> {
        let network = match self.network {
            Network::Ptp => "ptp",
            Network::Calico => "calico",
            _ => "flannel",
        };
        let mut words = vec!["--pods", "0", "--family", "ipv4", "--cni-network", network];
        words.extend(["--backend", self.between_nodes.backend()]);
        let policies_of_lab = self.setup.policies;
        let directory = format!("/run/podwire-bench-datapath/policies-{policies_of_lab}");
        if policies_of_lab > 0 {
            fs::create_dir_all(&directory)?;
            fs::write(format!("{directory}/policies.json"), policies(policies_of_lab).to_string())?;
            words.extend(["--policies", &directory]);
        }
        self.run("up", &words)?;
        if self.network == Network::Calico {
            self.publish_ports("n1")?;
        }
        let port = format!("{HOST_PORT}:{PORT}");
        self.pods = vec![
            self.pod("n1", &["client"])?,
            self.pod("n1", &["server", "--port", &port])?,
            self.pod("n2", &["remote"])?,
        ];
        if policies_of_lab > 0 {
            self.run("apply", &[])?;
        }
        if self.setup.fast_path {
            self.wait_for_fast_path()?;
        }
        Ok(())
    }

    /// Whether another lab differs in its backend only.
    pub fn is_sibling(&self, other: &Lab) -> bool {
        (self.network, self.setup) == (other.network, other.setup)
    }

    /// The paths. The paths on one node do not depend on the backend; they are measured in one lab of a network only.
    pub fn cases(&self, on_one_node: bool) -> Result<Vec<Case>> {
        let open =
            |machine| Ok::<_, anyhow::Error>(Arc::new(Netns::open(self.process(machine)?.join("ns/net"))?));
        let (n1, n2, router) = (open("n1")?, open("n2")?, open("router")?);
        let [(_, client), (server, server_netns), (remote, remote_netns)] = &self.pods[..] else {
            unreachable!("a lab has three pods")
        };
        let client = Arc::new(Netns::open(client)?);
        let to_server = Server::listen(&Netns::open(server_netns)?)?;
        let to_remote = Server::listen(&Netns::open(remote_netns)?)?;
        let to_router = Server::listen(&router)?;
        let case = |path, client: &Arc<Netns>, server: &Arc<Server>, target: (Ipv4Addr, u16)| {
            let is_far = path == self.between_nodes;
            let nodes = std::iter::once(n1.clone()).chain(is_far.then(|| n2.clone())).collect();
            let ends = Ends { client: client.clone(), server: server.clone(), target: target.into(), nodes };
            Case { network: self.network, setup: self.setup, path, ends }
        };
        let mut all = vec![case(self.between_nodes, &client, &to_remote, (*remote, PORT))];
        if on_one_node {
            all.push(case(Path::SameNode, &client, &to_server, (*server, PORT)));
            all.push(case(Path::FromNode, &n1, &to_server, (*server, PORT)));
            all.push(case(Path::Outside, &client, &to_router, (ROUTER, PORT)));
            all.push(case(Path::HostPort, &router, &to_server, (NODE, HOST_PORT)));
        }
        Ok(all)
    }

    /// Runs a pod on a node. Returns its address and its namespace.
    fn pod(&self, node: &str, words: &[&str]) -> Result<(Ipv4Addr, PathBuf)> {
        let program = podwire();
        let all = [&[node, "--", &program, "pod", "run", "--json"], words].concat();
        let pod = &serde_json::from_str::<Value>(&self.run("exec", &all)?)?["pods"][0];
        let address = pod["addresses"][0].as_str().and_then(|text| text.split('/').next());
        let netns = pod["netns"].as_str().context("a pod without a namespace")?;
        // The path has a process id of the node's PID namespace.
        let netns = self.process(node)?.join("root").join(netns.trim_start_matches('/'));
        Ok((address.context("a pod without an address")?.parse()?, netns))
    }

    /// Waits until all pods have the programs of the fast path, which agents attach some seconds after a pod's start.
    fn wait_for_fast_path(&self) -> Result<()> {
        let begin = Instant::now();
        for (node, pods) in [("n1", 2), ("n2", 1)] {
            let mut host = Host::within(Netns::open(self.process(node)?.join("ns/net"))?)?;
            loop {
                let with_programs = |one: &Qdisc| one.kind == "clsact";
                // The uplink has programs too.
                if tc::list_all(&mut host.route)?.iter().filter(|one| with_programs(one)).count() > pods {
                    break;
                }
                ensure!(begin.elapsed() < FAST_PATH_TIMEOUT, "no fast path on {node}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Adds portmap to the conflist of calico mode, as Calico's own installation has it.
    fn publish_ports(&self, node: &str) -> Result<()> {
        let path = self.process(node)?.join("root").join(CALICO_CONFLIST);
        let mut list: Value = serde_json::from_slice(&fs::read(&path)?)?;
        let plugins = list["plugins"].as_array_mut().context("a conflist without plugins")?;
        plugins.push(json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } }));
        Ok(fs::write(path, list.to_string())?)
    }

    /// The directory of the process that holds a machine.
    fn process(&self, machine: &str) -> Result<PathBuf> {
        let state: Value =
            serde_json::from_slice(&fs::read(format!("/run/podwire/lab/{}/lab.json", self.name))?)?;
        let pid = state["machines"][machine]["pid"].as_u64();
        Ok(PathBuf::from(format!("/proc/{}", pid.with_context(|| format!("no machine {machine}"))?)))
    }

    /// Runs `podwire lab VERB`. Returns what it printed.
    fn run(&self, verb: &str, words: &[&str]) -> Result<String> {
        let mut command = Command::new(podwire());
        command.env("PODWIRE_FAST_PATH", if self.setup.fast_path { "on" } else { "off" });
        command.args(["lab", verb, "--name", &self.name]).args(words);
        let output = command.stdin(Stdio::null()).output()?;
        let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        ensure!(output.status.success(), "{verb} {words:?}: {}", printed(&output.stderr));
        Ok(printed(&output.stdout))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        let _ = self.cleanup.wait();
    }
}

/// Policies about all pods, in both directions. Only the last one allows the measured port.
fn policies(count: usize) -> Value {
    let policy = |number: usize| {
        let port = if number == count { usize::from(PORT) } else { OTHER_PORTS + number };
        let peers = json!([{ "podSelector": {} }, { "ipBlock": { "cidr": UNDERLAY } }]);
        let ports = json!([{ "port": port }]);
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": format!("policy-{number}"), "namespace": "default" },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": peers, "ports": ports }], "egress": [{ "to": peers, "ports": ports }] } })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": (1..=count).map(policy).collect::<Vec<_>>() })
}
