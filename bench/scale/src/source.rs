//! The source of the simulated nodes: a real etcd, or the stand-in API server, on the agent's machine.

use std::io::Write;
use std::process::Stdio;
use std::sync::{mpsc, Arc};

use anyhow::{ensure, Context, Result};
use podwire_test_servers::StandInApiServer;
use podwire_tests::{Node, Process};
use serde_json::{json, Value};

/// The pod network. The simulated nodes' subnets are at its beginning; the agent's own subnet is 10.200.0.0/24.
pub const NETWORK: &str =
    r#"{"Network": "10.0.0.0/8", "SubnetLen": 24, "SubnetMin": "10.200.0.0", "Backend": {"Type": "vxlan"}}"#;
const ETCD: &str = "http://127.0.0.1:2379";
const API: &str = "127.0.0.1:6443";

/// A simulated node, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Simulated(pub usize);

impl Simulated {
    fn bytes(self) -> (usize, usize) {
        (self.0 / 256 + 1, self.0 % 256)
    }

    /// The address of one of its pods.
    pub fn pod(self) -> std::net::IpAddr {
        let (a, b) = self.bytes();
        std::net::IpAddr::from([10, a as u8, b as u8, 9])
    }

    fn subnet(self, separator: char) -> String {
        let (a, b) = self.bytes();
        format!("10.{a}.{b}.0{separator}24")
    }

    fn address(self) -> String {
        let (a, b) = self.bytes();
        format!("172.20.{a}.{b}")
    }

    fn vtep(self) -> Value {
        let (a, b) = self.bytes();
        json!({"VNI": 1, "VtepMAC": format!("02:00:00:00:{a:02x}:{b:02x}")})
    }
}

/// The store that the agent watches for nodes.
pub trait Source {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// The agent's flags for this source.
    fn flags(&self) -> Vec<String>;
    /// Adds nodes, all at once.
    fn add(&self, node: &Node, nodes: &[Simulated]) -> Result<()>;
}

/// A real etcd.
pub struct Etcd;

impl Etcd {
    /// Starts it on the machine.
    pub fn start(node: &Node) -> Result<Etcd> {
        let mut command = node.command("etcd");
        command.args(["--data-dir", "/run/etcd", "--unsafe-no-fsync", "--logger", "zap"]);
        command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        command.args(["--max-txn-ops", "20000", "--max-request-bytes", "10485760"]);
        node.accompany(Process::start(command));
        let put = format!("for i in $(seq 100); do ETCDCTL_API=3 etcdctl --endpoints {ETCD} put /coreos.com/network/config '{NETWORK}' && exit; sleep 0.2; done; exit 1");
        ensure!(node.can(&put), "etcd does not accept the config");
        Ok(Etcd)
    }
}

impl Source for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn flags(&self) -> Vec<String> {
        ["--store", "etcd", "--etcd-endpoints", ETCD].map(String::from).into()
    }

    fn add(&self, node: &Node, nodes: &[Simulated]) -> Result<()> {
        // One transaction: no condition, these puts, no alternative.
        let mut transaction = String::from("\n");
        for one in nodes {
            let value = json!({"PublicIP": one.address(), "PublicIPv6": null, "BackendType": "vxlan", "BackendData": one.vtep()});
            let value = json!(value.to_string());
            transaction += &format!("put /coreos.com/network/subnets/{} {value}\n", one.subnet('-'));
        }
        transaction += "\n\n";
        let mut command = node.command("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", ETCD, "txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("etcdctl")?;
        child.stdin.take().context("stdin")?.write_all(transaction.as_bytes())?;
        ensure!(child.wait()?.success(), "etcdctl txn failed");
        Ok(())
    }
}

/// The stand-in of the API server. It is NOT the real one: the agent reads and keeps the same, but a real server answers
/// slower.
pub struct Api(Arc<StandInApiServer>);

impl Api {
    /// Starts it in a thread, in the machine's network namespace. It ends with this program.
    pub fn start(node: &Node) -> Result<Api> {
        let netns = podwire_kernel::Netns::open(format!("/proc/{}/ns/net", node.pid()))?;
        let (sender, receiver) = mpsc::channel();
        let serve = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                let server = Arc::new(StandInApiServer::start_at(API).await);
                let _ = sender.send(server);
                std::future::pending::<()>().await;
            });
        };
        std::thread::spawn(move || netns.run(serve));
        let server: Arc<StandInApiServer> = receiver.recv().context("the API server does not start")?;
        server.put("own", json!({}), &["10.200.0.0/24"]);
        server.set_internal_ip("own", "172.16.0.1");
        node.write("/run/net-conf.json", NETWORK);
        Ok(Api(server))
    }
}

impl Source for Api {
    fn name(&self) -> &'static str {
        "stand-in of the API"
    }

    fn flags(&self) -> Vec<String> {
        let url = format!("http://{API}");
        ["--store", "kubernetes", "--kube-api-url", &url, "--net-config-path", "/run/net-conf.json"]
            .map(String::from)
            .into()
    }

    fn add(&self, _: &Node, nodes: &[Simulated]) -> Result<()> {
        let name = |of: &str| format!("flannel.alpha.coreos.com/{of}");
        for one in nodes {
            let annotations = json!({
                name("kube-subnet-manager"): "true", name("backend-type"): "vxlan",
                name("backend-data"): one.vtep().to_string(), name("public-ip"): one.address(),
            });
            self.0.put(&format!("node-{:05}", one.0), annotations, &[&one.subnet('/')]);
        }
        Ok(())
    }
}
