//! A node with a real kube-apiserver and its etcd, which also holds Calico's records, and with the block allocator of
//! the node.

use std::time::{Duration, Instant};

use podwire_tests::{kubernetes_programs, ours, podwire, Invocation, Node, Output, Pod, Process};
use serde_json::{json, Value};

const API: &str = "https://127.0.0.1:6443";
pub const ETCD: &str = "http://127.0.0.1:2379";
pub const KUBECONFIG: &str = "/run/kube/kubeconfig";
pub const STATE: &str = "/var/lib/podwire/addresses";
/// The only user. Its token is its name.
const USER: &str = "admin,admin,admin,\"system:masters\"";
const ASK: &str = "import ssl, sys, urllib.request as u
method, path, body = sys.argv[1:]
question = u.Request('https://127.0.0.1:6443' + path, data=body.encode() or None, method=method, headers={
    'Authorization': 'Bearer admin', 'Content-Type': 'application/merge-patch+json' if method == 'PATCH' else 'application/json'})
print(u.urlopen(question, timeout=60, context=ssl._create_unverified_context()).read().decode())";
/// The value of a key in etcd, through its JSON gateway.
const LOOK: &str = "import base64, json, sys, urllib.request as u
key = base64.b64encode(sys.argv[1].encode()).decode()
found = json.load(u.urlopen('http://127.0.0.1:2379/v3/kv/range', data=json.dumps({'key': key}).encode(), timeout=60))
print(''.join(base64.b64decode(one['value']).decode() for one in found.get('kvs', [])))";

/// A request to the block allocator of the node.
const SEND_REQUEST: &str = "import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect('/run/podwire/addresses.sock')
server.sendall(sys.argv[1].encode() + b'\\n')
print(server.makefile().readline())";

pub struct Cluster {
    pub node: Node,
    programs: &'static str,
    etcd: Option<Process>,
    server: Option<Process>,
    allocator: Option<Process>,
}

impl Cluster {
    /// Starts everything. None, with a message, where the programs are not installed.
    pub fn start() -> Option<Cluster> {
        let programs = kubernetes_programs()?;
        let node = Node::new();
        node.sh("mkdir -p /run/kube && cd /run/kube && openssl genrsa -out accounts.key 2048 2>/dev/null");
        node.write("/run/kube/users.csv", USER);
        node.write("/run/kube/ask.py", ASK);
        node.write("/run/kube/look.py", LOOK);
        node.write("/run/kube/send_request.py", SEND_REQUEST);
        node.write(KUBECONFIG, &credentials().to_string());
        let mut cluster = Cluster { node, programs, etcd: None, server: None, allocator: None };
        cluster.start_servers();
        let range = json!(["10.9.0.0/24", "fd09::/64"]);
        let own = json!({"metadata": {"name": "node1"}, "spec": {"podCIDR": range[0], "podCIDRs": range}});
        cluster.ask("POST", "/api/v1/nodes", &own);
        for (name, cidr) in [("v4", "10.244.0.0/24"), ("v6", "fd44::/112")] {
            cluster.node.sh(&format!("{} ipam pool {name} {cidr} --store {ETCD}", podwire()));
        }
        // A pool for pods that request it by name.
        let special = "ipam pool special 10.77.0.0/24 --nodes 'has(nothing)'";
        cluster.node.sh(&format!("{} {special} --store {ETCD}", podwire()));
        Some(cluster)
    }

    fn start_servers(&mut self) {
        let mut etcd = self.node.command(&format!("{}/etcd", self.programs));
        etcd.args(["--data-dir", "/run/kube/etcd", "--unsafe-no-fsync", "--log-level", "warn"]);
        self.etcd = Some(Process::start(etcd));
        let mut server = self.node.command(&format!("{}/kube-apiserver", self.programs));
        server.args([
            "--etcd-servers",
            ETCD,
            "--advertise-address",
            "127.0.0.1",
            "--bind-address",
            "127.0.0.1",
        ]);
        server.args(["--cert-dir", "/run/kube/certificates", "--token-auth-file", "/run/kube/users.csv"]);
        server.args(["--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16"]);
        server.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        // No controller creates service accounts for pods here.
        server.args(["--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none"]);
        for flag in ["--service-account-key-file", "--service-account-signing-key-file"] {
            server.args([flag, "/run/kube/accounts.key"]);
        }
        self.server = Some(Process::start(server));
        self.eventually("the API server serves", |cluster| {
            cluster.try_ask("GET", "/readyz", "").is_some()
                && cluster.try_ask("GET", "/api/v1/namespaces/default", "").is_some()
        });
    }

    /// Runs `meanwhile` while neither Kubernetes nor Calico's datastore responds: both are stopped, and their sockets
    /// stay.
    pub fn suspend(&self, what: impl FnOnce(&Cluster)) {
        let servers: Vec<u32> = [&self.server, &self.etcd].into_iter().flatten().map(Process::id).collect();
        let signal = |name: &str| {
            for server in &servers {
                self.node.sh(&format!("kill -{name} {server}"));
            }
        };
        signal("STOP");
        assert!(!self.node.can("timeout 2 python3 /run/kube/ask.py GET /readyz ''"), "it answers");
        what(self);
        signal("CONT");
    }

    /// The block allocator of the node, with a warm pool, following the node's pods.
    pub fn serve(&mut self) {
        self.serve_from(ETCD);
        self.eventually("a warm pool", |cluster| cluster.in_use() >= 8);
    }

    /// The block allocator of the node, with this store.
    pub fn serve_from(&mut self, store: &str) {
        let mut command = self.node.command(&podwire());
        command.args(["ipam", "serve", "--store", store, "--kubeconfig", KUBECONFIG]);
        command.args(["--node", "node1", "--warm-addresses", "4"]);
        self.allocator = Some(Process::start(command));
        self.eventually("the socket", |cluster| cluster.node.can("test -S /run/podwire/addresses.sock"));
    }

    /// Calico's custom resources, as far as blocks need them, without validation.
    pub fn define_custom_resources(&self) {
        let kinds = [
            "IPAMBlock",
            "BlockAffinity",
            "IPAMHandle",
            "IPAMConfig",
            "IPPool",
            "IPReservation",
            "ClusterInformation",
        ];
        let plural = |kind: &str| match kind {
            "BlockAffinity" => "blockaffinities".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let group = "crd.projectcalico.org";
        for kind in kinds {
            let names = json!({"kind": kind, "plural": plural(kind), "singular": kind.to_lowercase()});
            let schema =
                json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
            let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
            let spec = json!({"group": group, "scope": "Cluster", "names": names, "versions": [version]});
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{}.{group}", plural(kind))}, "spec": spec,
            });
            self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
        }
        for kind in kinds {
            let path = format!("/apis/{group}/v1/{}", plural(kind));
            self.eventually(&path, |cluster| cluster.try_ask("GET", &path, "").is_some());
        }
    }

    pub fn eventually(&self, what: &str, is_so: impl Fn(&Cluster) -> bool) {
        let until = Instant::now() + Duration::from_secs(300);
        while !is_so(self) {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The number of addresses that are assigned or in the warm pool.
    pub fn in_use(&self) -> u64 {
        let said = self.node.json(&format!("{} --json ipam show --store {ETCD}", podwire()));
        let number = |pool: &Value| pool["inUse"].as_str().and_then(|text| text.parse::<u64>().ok());
        said["pools"].as_array().expect("pools").iter().filter_map(number).sum()
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let said = self.try_ask(method, path, &body.to_string());
        let said = said.unwrap_or_else(|| panic!("{method} {path} {body}"));
        serde_json::from_str(&said).expect("JSON")
    }

    fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let said = self.node.output(&["python3", "/run/kube/ask.py", method, path, body], &[]);
        (said.status == 0).then_some(said.stdout)
    }

    /// How often a pod was read from the API server.
    fn reads_of_pods(&self) -> f64 {
        let metrics = self.try_ask("GET", "/metrics", "").expect("metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let lines = lines.filter(|line| line.contains("resource=\"pods\"") && line.contains("verb=\"GET\""));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The pod's endpoint in Calico's datastore.
    pub fn endpoint(&self, pod: &str) -> Option<Value> {
        let root = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node1-k8s";
        let said = self.node.output(&["python3", "/run/kube/look.py", &format!("{root}-{pod}-eth0")], &[]);
        assert_eq!(said.status, 0, "{}", said.stderr);
        serde_json::from_str(&said.stdout).ok()
    }

    /// A pod in Kubernetes, on this node, that is not attached yet.
    pub fn pod(&self, name: &str, annotations: Value) -> Member<'_> {
        let object = json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {
                "nodeName": "node1",
                "containers": [{"name": "c", "image": "none", "ports": [{"name": "http", "containerPort": 80}]}],
            },
        });
        let made = self.ask("POST", "/api/v1/namespaces/default/pods", &object);
        let uid = made["metadata"]["uid"].as_str().expect("uid").to_owned();
        Member { cluster: self, pod: self.node.pod(name), name: name.into(), uid }
    }
}

/// Creates a pod in Kubernetes.
pub struct Member<'a> {
    cluster: &'a Cluster,
    pod: Pod,
    name: String,
    uid: String,
}

impl<'a> Member<'a> {
    /// The same pod in another sandbox.
    pub fn in_sandbox(&self, pod: Pod) -> Member<'a> {
        Member { cluster: self.cluster, pod, name: self.name.clone(), uid: self.uid.clone() }
    }

    /// Runs a verb of the network in Calico's documentation, with the changes of a row.
    pub fn call(&self, verb: &str, change: &Value, prev: Option<&Value>) -> Output {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "etcd_endpoints": ETCD,
            "nodename": "node1", "mtu": 1400, "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": KUBECONFIG},
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
        });
        for (key, value) in change.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={};K8S_POD_UID={}",
            self.name, self.uid
        );
        let call =
            Invocation::new(&self.cluster.node, &ours(), verb, &self.pod, &config).env("CNI_ARGS", &args);
        prev.map_or(call.clone(), |prev| call.prev(prev)).run()
    }

    pub fn add(&self, change: &Value) -> Value {
        self.call("ADD", change, None).result()
    }

    pub fn del(&self, change: &Value, prev: &Value) {
        let done = self.call("DEL", change, Some(prev));
        assert_eq!(done.status, 0, "{}{}", done.stdout, done.stderr);
    }

    /// Whether the block allocator has the pod, so that it need not request it from the API server.
    pub fn is_known(&self) -> bool {
        let before = self.cluster.reads_of_pods();
        let request = json!({"request": "pod", "namespace": "default", "name": self.name, "uid": self.uid});
        let said =
            self.cluster.node.output(&["python3", "/run/kube/send_request.py", &request.to_string()], &[]);
        assert!(said.stdout.contains(&self.uid), "{}{}", said.stdout, said.stderr);
        self.cluster.reads_of_pods() == before
    }

    /// Waits until the store has the pod's endpoint, and returns it.
    pub fn endpoint(&self) -> Value {
        self.cluster.eventually("the pod's endpoint", |cluster| cluster.endpoint(&self.name).is_some());
        self.cluster.endpoint(&self.name).expect("the pod's endpoint")
    }
}

fn credentials() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": API, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    })
}
