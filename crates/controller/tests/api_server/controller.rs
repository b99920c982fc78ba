//! Controllers as separate processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use podwire_controller::{ClusterCidrs, LeaderElection, LeakCollection, NodeCidrMasks, Settings};
use podwire_test_servers::{free_port, spawn_logged, ChildGuard};
use serde_json::Value;

use crate::cluster::{eventually, Cluster};

/// The first argument that makes this program a controller.
pub const WORD: &str = "be-a-controller";
/// The name of a controller without leader election.
pub const ALONE: &str = "alone";
/// The lease duration.
pub const LEASE: Duration = Duration::from_secs(15);

/// The grace period of leaked addresses.
pub const GRACE: Duration = Duration::from_secs(3);

fn leak_collection(url: String) -> LeakCollection {
    let open = move || {
        let store = podwire_store_etcd::EtcdStore::connect(std::slice::from_ref(&url), None)?;
        Ok(Box::new(store) as Box<dyn podwire_block_ipam::store::Store>)
    };
    LeakCollection { open: Arc::new(open), grace: GRACE }
}

/// Runs a controller. Arguments: name, kubeconfig, cluster CIDR, service range, health port, and the URL of the block
/// store or "".
pub fn main(args: &[String]) {
    let [name, kubeconfig, cluster, services, port, store] = args else { panic!("{args:?}") };
    tracing_subscriber::fmt().with_ansi(false).init();
    let election = LeaderElection {
        identity: name.clone(),
        lease_duration: LEASE,
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_millis(300),
        ..LeaderElection::default()
    };
    let settings = Settings {
        cluster_cidrs: Some(ClusterCidrs::new(cluster, NodeCidrMasks::default(), services).unwrap()),
        leak_collection: (!store.is_empty()).then(|| leak_collection(store.clone())),
        leader_election: (name != ALONE).then(|| election.validate().unwrap()),
        health: Some(podwire_http_server::Listen { ip: None, port: port.parse().unwrap() }),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = podwire_kubernetes::ClientOptions::from_kubeconfig(Some(kubeconfig.into()))
            .client()
            .await
            .unwrap();
        podwire_controller::run(settings, client).await.unwrap();
    });
}

/// A running controller.
pub struct Controller {
    process: ChildGuard,
    port: u16,
}

impl Controller {
    pub fn start(cluster: &Cluster, name: &str, cluster_cidr: &str, services: &str) -> Controller {
        Controller::start_with(cluster, name, [cluster_cidr, services, ""])
    }

    pub fn start_with(
        cluster: &Cluster,
        name: &str,
        [cluster_cidr, services, store]: [&str; 3],
    ) -> Controller {
        let port = free_port();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([WORD, name]).arg(cluster.kubeconfig()).args([
            cluster_cidr,
            services,
            &port.to_string(),
            store,
        ]);
        let process = spawn_logged(&mut command, &cluster.server.dir().join(format!("{name}.log")));
        Controller { process, port }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.process.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Ends it with SIGTERM, as kubelet does. It must exit with success.
    pub async fn terminate(mut self) {
        self.signal("TERM");
        let process = std::cell::RefCell::new(&mut self.process.0);
        let mut status = None;
        eventually("the controller ends", || {
            status = process.borrow_mut().try_wait().unwrap();
            let ended = status.is_some();
            async move { ended }
        })
        .await;
        assert!(status.unwrap().success(), "{status:?}");
    }

    /// Sends an HTTP request. Returns the status code and the body; the code is 0 if the controller does not serve yet.
    pub fn get(&self, path: &str) -> (u16, String) {
        let request = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            Ok(response)
        };
        let response = request().unwrap_or_default();
        let code = response.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        (code, response.split_once("\r\n\r\n").map(|(_, text)| text.to_owned()).unwrap_or_default())
    }

    /// A value of `/metrics`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").1;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").1).unwrap_or_default()
    }

    /// The names of quarantined nodes.
    pub fn quarantined(&self) -> Vec<String> {
        let status = self.status();
        let pairs = status["quarantined"].as_array().cloned().unwrap_or_default();
        pairs.iter().filter_map(|pair| pair[0].as_str().map(String::from)).collect()
    }

    pub async fn is_ready(&self) {
        eventually("the controller is ready", || async { self.get("/readyz").0 == 200 }).await;
    }
}
