//! A real API server on the router, with a Node object for each node that has a pod CIDR, as kube-controller-manager
//! assigns it.

use std::time::Duration;

use podwire_tests::{kubernetes_programs, Process};
use serde_json::{json, Value};

use super::stage::Stage;

/// The server's URL for the nodes.
const SERVER: &str = "https://192.168.10.1:6443";
/// The timeout of the server's start, which takes long on a busy machine.
const START: Duration = Duration::from_secs(120);
/// The only user. Its token is its name.
const USER: &str = "admin,admin,admin,\"system:masters\"";
const ASK: &str = "import ssl, sys, urllib.request as u
method, path, body = sys.argv[1:]
question = u.Request('https://192.168.10.1:6443' + path, data=body.encode() or None, method=method,
                     headers={'Authorization': 'Bearer admin', 'Content-Type': 'application/json'})
print(u.urlopen(question, timeout=60, context=ssl._create_unverified_context()).read().decode())";

/// The servers. They end with the test.
pub struct Kubernetes {
    programs: &'static str,
    _etcd: Process,
    /// `None` while the API server is stopped.
    server: Option<Process>,
    /// The path of the kubeconfig on every node.
    pub kubeconfig: String,
}

impl Kubernetes {
    /// Starts the servers on the router, and creates the nodes. None, with a message, where the programs are not
    /// installed.
    pub fn start(stage: &Stage) -> Option<Kubernetes> {
        let programs = kubernetes_programs()?;
        let router = &stage.router;
        router.sh("mkdir -p /run/kube && cd /run/kube && openssl genrsa -out accounts.key 2048 2>/dev/null");
        router.write("/run/kube/users.csv", USER);
        router.write("/run/kube/ask.py", ASK);
        let mut etcd = router.command(&format!("{programs}/etcd"));
        etcd.args(["--data-dir", "/run/kube/etcd", "--unsafe-no-fsync", "--log-level", "warn"]);
        let kubeconfig = "/run/test/kubeconfig".to_string();
        let mut servers = Kubernetes { programs, _etcd: Process::start(etcd), server: None, kubeconfig };
        servers.start_server(stage);
        for machine in &stage.nodes {
            let name = format!("n{}", machine.number);
            let range = format!("10.244.{}.0/24", machine.number);
            // kubelet writes this annotation. Without any annotation flanneld panics.
            let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
            let node = json!({"apiVersion": "v1", "kind": "Node",
                              "metadata": {"name": name, "annotations": annotations},
                              "spec": {"podCIDR": range, "podCIDRs": [range]}});
            try_ask(stage, "POST", "/api/v1/nodes", &node.to_string()).expect("a Node");
            machine.node.write(&servers.kubeconfig, &credentials().to_string());
        }
        Some(servers)
    }

    /// Starts the API server, and waits until it serves.
    pub fn start_server(&mut self, stage: &Stage) {
        let mut server = stage.router.command(&format!("{}/kube-apiserver", self.programs));
        server.args(["--etcd-servers", "http://127.0.0.1:2379", "--advertise-address", "192.168.10.1"]);
        server.args(["--cert-dir", "/run/kube/certificates", "--token-auth-file", "/run/kube/users.csv"]);
        server.args(["--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16"]);
        server.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        // No controller creates service accounts for pods here.
        server.args(["--disable-admission-plugins", "ServiceAccount"]);
        for flag in ["--service-account-key-file", "--service-account-signing-key-file"] {
            server.args([flag, "/run/kube/accounts.key"]);
        }
        self.server = Some(Process::start(server));
        let serves = |stage: &Stage| try_ask(stage, "GET", "/readyz", "").is_some();
        stage.wait_for(START, "the API server serves", serves);
    }

    /// Kills the API server.
    pub fn kill_server(&mut self) {
        self.server = None;
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub fn ask(&self, stage: &Stage, method: &str, path: &str, body: &Value) {
        let done = try_ask(stage, method, path, &body.to_string());
        assert!(done.is_some(), "{method} {path}");
    }
}

/// The annotations of a Node.
pub fn annotations(stage: &Stage, number: u8) -> Value {
    let said = try_ask(stage, "GET", &format!("/api/v1/nodes/n{number}"), "").expect("the Node");
    let mut node: Value = serde_json::from_str(&said).expect("JSON");
    node["metadata"]["annotations"].take()
}

fn try_ask(stage: &Stage, method: &str, path: &str, body: &str) -> Option<String> {
    let words = ["python3", "/run/kube/ask.py", method, path, body];
    let said = stage.router.output(&words, &[]);
    (said.status == 0).then_some(said.stdout)
}

fn credentials() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": SERVER, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    })
}
