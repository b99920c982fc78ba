//! Controllers as processes of their own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use podwire_controller::{ClusterCidrs, LeaderElection, LeakCollection, NodeCidrMasks, Settings};
use podwire_test_servers::{free_port, spawn_logged, ChildGuard};
use serde_json::Value;

use crate::cluster::{eventually, Cluster};

/// What makes this program a controller.
pub const WORD: &str = "be-a-controller";
/// The name of one that needs no lease.
pub const ALONE: &str = "alone";
/// How long the others wait for a leader.
pub const LEASE: Duration = Duration::from_secs(15);

/// After what time a leaked address is released.
pub const GRACE: Duration = Duration::from_secs(3);

fn addresses(url: String) -> LeakCollection {
    let open = move || {
        let store = podwire_store_etcd::EtcdStore::connect(std::slice::from_ref(&url), None)?;
        Ok(Box::new(store) as Box<dyn podwire_block_ipam::store::Store>)
    };
    LeakCollection { open: Arc::new(open), grace: GRACE }
}

/// The controller: its name, kubeconfig, cluster's networks, services, port, and the store of blocks if there is one.
pub fn main(args: &[String]) {
    let [name, kubeconfig, cluster, services, port, store] = args else { panic!("{args:?}") };
    tracing_subscriber::fmt().with_ansi(false).init();
    let leadership = LeaderElection {
        identity: name.clone(),
        lease: LEASE,
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_millis(300),
        ..LeaderElection::default()
    };
    let settings = Settings {
        cluster_cidrs: Some(ClusterCidrs::new(cluster, NodeCidrMasks::default(), services).unwrap()),
        leak_collection: (!store.is_empty()).then(|| addresses(store.clone())),
        leader_election: (name != ALONE).then(|| leadership.checked().unwrap()),
        health_address: Some(format!("127.0.0.1:{port}").parse().unwrap()),
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

/// A running one.
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

    /// Ends it as kubelet does; it must end by itself, without complaint.
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

    /// Asks it over HTTP: the code and the text. Code 0 if it does not serve yet.
    pub fn get(&self, path: &str) -> (u16, String) {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().unwrap_or_default();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        (code, answer.split_once("\r\n\r\n").map(|(_, text)| text.to_owned()).unwrap_or_default())
    }

    /// One number of `/metrics`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").1;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").1).unwrap_or_default()
    }

    /// The names of nodes in quarantine.
    pub fn quarantined(&self) -> Vec<String> {
        let status = self.status();
        let pairs = status["quarantined"].as_array().cloned().unwrap_or_default();
        pairs.iter().filter_map(|pair| pair[0].as_str().map(String::from)).collect()
    }

    pub async fn is_ready(&self) {
        eventually("the controller is ready", || async { self.get("/readyz").0 == 200 }).await;
    }
}
