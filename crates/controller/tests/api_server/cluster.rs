//! The API server, with a client and with the rights of controllers.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kube::Client;
use podwire_kubernetes::ClientOptions;
use podwire_test_servers::{spawn_logged, ChildGuard, KubeApiServer};
use serde_json::json;

/// The time limit of every wait, for a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

const ROLE: &str = "podwire-controller";

pub struct Cluster {
    pub server: KubeApiServer,
    /// A client that may do everything.
    pub client: Client,
}

impl Cluster {
    /// Starts an API server, and grants the user `podwire` the rights of docs/controller.md.
    pub async fn start(programs: &Path) -> Cluster {
        let server = KubeApiServer::start(programs);
        server.grant(ROLE, &KubeApiServer::controller_rules());
        let options = ClientOptions::from_kubeconfig(Some(server.kubeconfig("admin")));
        let client = options.client().await.unwrap();
        Cluster { server, client }
    }

    /// Starts kube-controller-manager with only its NodeIpamController.
    pub fn controller_manager(&self, cluster_cidr: &str) -> ChildGuard {
        let mut command = Command::new(self.server.programs().join("kube-controller-manager"));
        command.args(["--controllers=node-ipam-controller", "--allocate-node-cidrs", "--leader-elect=false"]);
        command.args(["--secure-port=0", "--cluster-cidr", cluster_cidr]);
        command.arg("--kubeconfig").arg(self.server.kubeconfig("admin"));
        spawn_logged(&mut command, &self.server.dir().join("kube-controller-manager.log"))
    }

    /// The controllers' kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig("podwire")
    }

    /// Revokes or restores the right to patch nodes, and waits until that takes effect.
    pub fn allow_patch(&self, allowed: bool) {
        let mut rules = KubeApiServer::controller_rules();
        if !allowed {
            rules[0]["verbs"].as_array_mut().expect("verbs").retain(|verb| verb != "patch");
        }
        self.server.set_rules(ROLE, &rules);
        let patch_nodes = || json!({"verb": "patch", "resource": "nodes"});
        self.server.until("the right has changed", || {
            self.server.may("resourceAttributes", patch_nodes()) == allowed
        });
    }
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < WAIT_TIMEOUT, "not within {WAIT_TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
