//! A real kube-apiserver with its own etcd.
//!
//! Three users exist, each with its name as its token: `admin` may do everything, `podwire` what a test grants,
//! `stranger` nothing. All methods are synchronous, and may be called from async code too: the servers are other
//! processes.

mod calico;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use podwire_kubernetes::ClientOptions;
use serde_json::{json, Value};

use crate::process::{free_port, openssl, spawn_logged, ChildGuard, TempDir};
use crate::EtcdServer;

/// The time limit of every wait, for a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
/// The time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// The directory with etcd, kube-apiserver and `more` programs, which scripts/kubernetes-binaries builds once and
/// keeps. The error says why they cannot be built here.
pub fn kubernetes_programs(more: &[&str]) -> Result<PathBuf, String> {
    if std::env::var_os("PODWIRE_TEST_ALL").is_none() {
        return Err("built from Go modules: make test-all".into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubernetes-binaries");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&script);
        command.args(arguments).args(["etcd", "kube-apiserver"]).args(more).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("{}: {error}", script.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            Ok(printed)
        } else {
            Err(printed)
        }
    };
    run(&["--can-run"])?;
    let printed = run(&[]).unwrap_or_else(|why| panic!("scripts/kubernetes-binaries: {why}"));
    Ok(printed.lines().last().unwrap_or_default().into())
}

/// A running API server.
pub struct KubeApiServer {
    server: Option<ChildGuard>,
    etcd: EtcdServer,
    programs: PathBuf,
    dir: TempDir,
    port: u16,
    runtime: tokio::runtime::Runtime,
    admin: kube::Client,
}

impl KubeApiServer {
    /// Starts etcd and kube-apiserver, and waits until it serves.
    pub fn start(programs: &Path) -> KubeApiServer {
        let (dir, port) = (TempDir::new("kube-apiserver"), free_port());
        let users =
            "admin,admin,admin,\"system:masters\"\npodwire,podwire,podwire\nstranger,stranger,stranger\n";
        std::fs::write(dir.path().join("users.csv"), users).unwrap();
        openssl(dir.path(), "genrsa -out accounts.key 2048");
        let etcd = EtcdServer::start_program(&programs.join("etcd"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = ClientOptions::from_kubeconfig(Some(kubeconfig(dir.path(), "admin", port)));
        let admin = on_own_thread(|| runtime.block_on(options.client()).unwrap());
        let mut server =
            KubeApiServer { server: None, etcd, programs: programs.into(), dir, port, runtime, admin };
        server.serve();
        server
    }

    /// Starts kube-apiserver (again) on the same port with the same data, and waits until it serves.
    pub fn serve(&mut self) {
        // Objects are stored as JSON, so that a test can edit them in etcd.
        let (dir, etcd, port) = (self.dir.path().display(), self.etcd.url(), self.port);
        let arguments = format!(
            "--etcd-servers={etcd} --secure-port={port} --bind-address=127.0.0.1 --cert-dir={dir}/certs \
             --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=RBAC --token-auth-file={dir}/users.csv \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file={dir}/accounts.key \
             --service-account-signing-key-file={dir}/accounts.key --storage-media-type=application/json \
             --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --profiling=false"
        );
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        let log = self.dir.path().join("kube-apiserver.log");
        self.server = Some(spawn_logged(command.args(arguments.split_whitespace()), &log));
        // The server writes its default roles shortly after it begins to serve.
        let role = format!("{RBAC}/clusterroles/system:node");
        self.until("the API server serves", || self.request("GET", &role, None).is_ok());
    }

    /// Kills kube-apiserver. etcd goes on.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// The programs' directory.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The directory for logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its etcd, which tests may use as a store too.
    pub fn etcd(&self) -> &EtcdServer {
        &self.etcd
    }

    /// The kubeconfig file of `admin`, `podwire` or `stranger`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        kubeconfig(self.dir.path(), user, self.port)
    }

    /// Sends a request as `admin`.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let body = body.map(ToString::to_string).unwrap_or_default().into_bytes();
        self.send(request.body(body).unwrap())
    }

    /// Applies a JSON merge patch as `admin`.
    pub fn patch(&self, path: &str, patch: &Value) {
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        self.send(request.body(patch.to_string().into_bytes()).unwrap()).unwrap();
    }

    /// Applies a JSON merge patch as the service account `namespace:name`, with a token of a pod on this node, if it is
    /// one of a pod.
    pub fn patch_as(
        &self,
        account: &str,
        node: Option<&str>,
        path: &str,
        patch: &Value,
    ) -> Result<Value, kube::Error> {
        let mut request = http::Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .header("impersonate-user", format!("system:serviceaccount:{account}"));
        if let Some(node) = node {
            request = request.header("impersonate-extra-authentication.kubernetes.io%2fnode-name", node);
        }
        self.send(request.body(patch.to_string().into_bytes()).unwrap())
    }

    fn send(&self, request: http::Request<Vec<u8>>) -> Result<Value, kube::Error> {
        let response = self.admin.request(request);
        let limited = async { tokio::time::timeout(REQUEST_TIMEOUT, response).await };
        // kube has no variant for a timeout.
        let timed_out = |_| Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        on_own_thread(|| self.runtime.block_on(limited)).unwrap_or_else(timed_out)
    }

    /// Waits until a condition holds.
    pub fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < WAIT_TIMEOUT, "not within {WAIT_TIMEOUT:?}: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Creates a cluster role with these rules and binds it to `podwire`. It takes effect a moment later; see
    /// [`may`](KubeApiServer::may).
    pub fn grant(&self, role: &str, rules: &Value) {
        let object = json!({"metadata": {"name": role}, "rules": rules});
        self.request("POST", &format!("{RBAC}/clusterroles"), Some(&object)).unwrap();
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "podwire"}],
        });
        self.request("POST", &format!("{RBAC}/clusterrolebindings"), Some(&binding)).unwrap();
    }

    /// Grants `podwire` the rights that docs/ipam.md lists for agents, and waits until they take effect.
    pub fn grant_ipam_rights(&self) {
        let page = include_str!("../../../docs/ipam.md");
        let block = json_blocks(page).next().expect("a block of JSON in docs/ipam.md");
        self.grant("podwire", &serde_json::from_str(block).expect("JSON"));
        self.until("the user has its rights", || {
            let block = json!({"group": "crd.projectcalico.org", "resource": "ipamblocks", "verb": "delete"});
            self.may("resourceAttributes", block)
                && self.may("nonResourceAttributes", json!({"path": "/apis/x", "verb": "get"}))
        });
    }

    /// The rules that docs/controller.md lists for the controller.
    pub fn controller_rules() -> Value {
        let page = include_str!("../../../docs/controller.md");
        let rules =
            json_blocks(page).flat_map(|block| serde_json::from_str::<Vec<Value>>(block).expect("JSON"));
        Value::Array(rules.collect())
    }

    /// Replaces the rules of a cluster role.
    pub fn set_rules(&self, role: &str, rules: &Value) {
        self.patch(&format!("{RBAC}/clusterroles/{role}"), &json!({"rules": rules}));
    }

    /// Whether `podwire` has a right: `what` is `resourceAttributes` or `nonResourceAttributes` of a
    /// SubjectAccessReview.
    pub fn may(&self, what: &str, attributes: Value) -> bool {
        let spec = json!({"user": "podwire", "groups": ["system:authenticated"], what: attributes});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let review = self.request("POST", path, Some(&json!({"metadata": {}, "spec": spec})));
        review.is_ok_and(|review| review["status"]["allowed"] == true)
    }

    /// The requests about Calico's objects since the server was started, counted by verb and plural.
    pub fn calico_requests(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for line in self.request_counters() {
            let label = |name: &str| line.split(&format!("{name}=\"")).nth(1)?.split('"').next();
            if let (Some(verb), Some(plural), Some(count)) = (label("verb"), label("resource"), value(&line))
            {
                if label("group").is_some_and(|group| group.ends_with("projectcalico.org")) {
                    *all.entry(format!("{verb} {plural}")).or_default() += count as u64;
                }
            }
        }
        all
    }

    /// The number of requests with this verb about a resource of the core group.
    pub fn core_requests(&self, verb: &str, resource: &str) -> u64 {
        let labels =
            [format!("verb=\"{verb}\""), format!("resource=\"{resource}\""), "group=\"\"".to_owned()];
        let lines = self.request_counters().into_iter();
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| value(&line)).sum::<f64>() as u64
    }

    fn request_counters(&self) -> Vec<String> {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = on_own_thread(|| self.runtime.block_on(self.admin.request_text(request))).unwrap();
        let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        lines.map(String::from).collect()
    }

    /// Creates a pod on a node, and its namespace if it does not exist.
    pub fn create_pod(&self, namespace: &str, name: &str, node: &str, annotations: Value) -> Value {
        let namespaces = "/api/v1/namespaces";
        if self.request("GET", &format!("{namespaces}/{namespace}"), None).is_err() {
            self.request("POST", namespaces, Some(&json!({"metadata": {"name": namespace}}))).unwrap();
            let account = json!({"metadata": {"name": "default"}});
            let accounts = format!("{namespaces}/{namespace}/serviceaccounts");
            self.request("POST", &accounts, Some(&account)).unwrap();
        }
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "none", "ports": [{"name": "http", "containerPort": 80}]}],
            },
        });
        self.request("POST", &format!("{namespaces}/{namespace}/pods"), Some(&pod)).unwrap()
    }

    /// Deletes a pod without a grace period, as kubelet does after its containers have ended, and waits for it.
    pub fn delete_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.request("DELETE", &path, Some(&json!({"gracePeriodSeconds": 0}))).unwrap();
        self.until("the pod is deleted", || self.request("GET", &path, None).is_err());
    }

    /// Defines Calico's custom resources of an API group, such as `crd.projectcalico.org/v1`, and waits until they are
    /// served.
    pub fn define_calico_resources(&self, group: &str) {
        let resources = calico::resources(group);
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for resource in &resources {
            self.request("POST", path, Some(&resource.definition(group))).unwrap();
        }
        for resource in resources {
            let path = format!("/apis/{group}/{}", resource.plural);
            self.until(&format!("{path} is served"), || self.request("GET", &path, None).is_ok());
        }
    }
}

/// The JSON code blocks of a Markdown page.
fn json_blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next())
}

/// The value at the end of a metric's line.
fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

/// A runtime cannot block inside another one: callers may be async tests.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// Writes a user's kubeconfig. It does not verify the certificate, which the server signs itself.
fn kubeconfig(dir: &Path, user: &str, port: u16) -> PathBuf {
    let path = dir.join(format!("{user}.conf"));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true,
        }}],
        "users": [{"name": user, "user": {"token": user}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    });
    // Renamed into place: another process may read it now.
    let new = path.with_extension("new");
    std::fs::write(&new, config.to_string()).unwrap();
    std::fs::rename(&new, &path).unwrap();
    path
}
