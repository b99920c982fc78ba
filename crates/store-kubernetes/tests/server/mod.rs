//! A real kube-apiserver and its etcd, on loopback ports that are free, in a folder that goes with them, with Calico's custom resources as
//! far as block IPAM needs them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use podwire_store_kubernetes::ApiGroup;
use serde_json::{json, Value};

/// How long anything may take on a busy machine before it counts as not happening.
const PATIENCE: Duration = Duration::from_secs(180);

/// The folder with the programs of Kubernetes, which the project's script builds once and keeps; or why there is none.
pub fn programs() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubernetes-binaries");
    let run = |arguments: &[&str]| {
        let output = Command::new(&script)
            .args(arguments)
            .args(["etcd", "kube-apiserver"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("{}: {error}", script.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            Ok(printed)
        } else {
            Err(printed)
        }
    };
    run(&["--can-run"])?;
    let folder = run(&[]).unwrap_or_else(|why| panic!("scripts/kubernetes-binaries: {why}"));
    Ok(folder.lines().last().unwrap_or_default().into())
}

/// A running API server.
pub struct Server {
    programs: PathBuf,
    folder: PathBuf,
    etcd: Child,
    server: Option<Child>,
    ports: (u16, u16),
    runtime: tokio::runtime::Runtime,
    admin: kube::Client,
}

impl Server {
    /// Starts it, with a user that may do what docs/ipam.md tells.
    pub fn start(programs: PathBuf) -> Server {
        let folder = std::env::temp_dir().join(format!("podwire-store-kubernetes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let users =
            "admin,admin,admin,\"system:masters\"\npodwire,podwire,podwire\nstranger,stranger,stranger\n";
        std::fs::write(folder.join("users.csv"), users).unwrap();
        let made = Command::new("openssl")
            .args(["genrsa", "-out", "accounts.key", "2048"])
            .current_dir(&folder)
            .output();
        assert!(made.expect("openssl").status.success());
        let [for_etcd, peers, port] = free_ports();
        let etcd = etcd(&programs, &folder, (for_etcd, peers));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let admin = kubeconfig(&folder, "admin", port);
        let admin = runtime
            .block_on(podwire_kubernetes::ClientOptions::from_kubeconfig(Some(admin.into())).client())
            .unwrap();
        let ports = (for_etcd, port);
        let mut server = Server { programs, folder, etcd, server: None, ports, runtime, admin };
        server.serve();
        server.allow();
        server
    }

    /// Starts it (again), on the same port and with the same data, and waits until it serves.
    pub fn serve(&mut self) {
        let folder = self.folder.display();
        let arguments = format!(
            "--etcd-servers=http://127.0.0.1:{} --secure-port={} --bind-address=127.0.0.1 --cert-dir={folder}/certs \
             --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=RBAC --token-auth-file={folder}/users.csv \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file={folder}/accounts.key \
             --service-account-signing-key-file={folder}/accounts.key --advertise-address=127.0.0.1 \
             --endpoint-reconciler-type=none --profiling=false",
            self.ports.0, self.ports.1
        );
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        let log = self.folder.join("kube-apiserver.log");
        self.server = Some(spawn(command.args(arguments.split_whitespace()), &log));
        // Who may do what is written down a moment after it serves.
        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery";
        self.until("it serves", || self.ask("GET", role, None).is_ok());
    }

    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// How a user reaches it: `podwire` may do what docs/ipam.md tells, `stranger` nothing.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        kubeconfig(&self.folder, user, self.ports.1)
    }

    /// A request of the administrator.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let body = body.map(ToString::to_string).unwrap_or_default().into_bytes();
        let answer = self.admin.request(request.body(body).unwrap());
        let patient = async { tokio::time::timeout(Duration::from_secs(20), answer).await };
        self.runtime.block_on(patient).unwrap_or_else(|_| Err(kube::Error::LinesCodecMaxLineLengthExceeded))
    }

    /// How many requests there were about Calico's objects since it was started, by verb and plural.
    #[allow(dead_code)] // not every user of this file counts
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = self.runtime.block_on(self.admin.request_text(request)).unwrap();
        let mut all = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let label = |name: &str| line.split(&format!("{name}=\"")).nth(1)?.split('"').next();
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
            if let (Some(verb), Some(plural), Some(count)) = (label("verb"), label("resource"), count) {
                if label("group").is_some_and(|group| group.ends_with("projectcalico.org")) {
                    *all.entry(format!("{verb} {plural}")).or_default() += count as u64;
                }
            }
        }
        all
    }

    /// How many requests there were with this verb about a resource of Kubernetes itself.
    #[allow(dead_code)] // not every user of this file counts
    pub fn count(&self, verb: &str, resource: &str) -> u64 {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = self.runtime.block_on(self.admin.request_text(request)).unwrap();
        let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let meant = [format!("verb=\"{verb}\""), format!("resource=\"{resource}\""), "group=\"\"".to_owned()];
        let lines = lines.filter(|line| meant.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    /// A pod on a node, and its namespace if it is not there yet.
    #[allow(dead_code)]
    pub fn run_pod(&self, namespace: &str, name: &str, node: &str, annotations: Value) -> Value {
        let spaces = "/api/v1/namespaces";
        if self.ask("GET", &format!("{spaces}/{namespace}"), None).is_err() {
            self.ask("POST", spaces, Some(&json!({"metadata": {"name": namespace}}))).unwrap();
            let account = json!({"metadata": {"name": "default"}});
            self.ask("POST", &format!("{spaces}/{namespace}/serviceaccounts"), Some(&account)).unwrap();
        }
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "none", "ports": [{"name": "http", "containerPort": 80}]}],
            },
        });
        self.ask("POST", &format!("{spaces}/{namespace}/pods"), Some(&pod)).unwrap()
    }

    /// Removes a pod, as kubelet does when its containers have ended.
    #[allow(dead_code)]
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let at_once = json!({"gracePeriodSeconds": 0});
        self.ask("DELETE", &path, Some(&at_once)).unwrap();
        self.until("the pod is gone", || self.ask("GET", &path, None).is_err());
    }

    /// Changes an object.
    #[allow(dead_code)]
    pub fn patch(&self, path: &str, patch: &Value) {
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(patch.to_string().into_bytes()).unwrap();
        self.runtime.block_on(self.admin.request::<Value>(request)).unwrap();
    }

    /// Defines Calico's custom resources of a group, and waits until they are served.
    pub fn define(&self, group: ApiGroup) {
        let (name, version) = group.name().split_once('/').unwrap();
        for (kind, plural, spec) in kinds(group) {
            let schema = json!({
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"spec": spec},
            });
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{name}")},
                "spec": {
                    "group": name, "scope": "Cluster",
                    "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
                    "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
                },
            });
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            self.ask("POST", path, Some(&definition)).unwrap();
        }
        for (_, plural, _) in kinds(group) {
            let path = format!("/apis/{group}/{plural}");
            self.until(&format!("{path} is served"), || self.ask("GET", &path, None).is_ok());
        }
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn allow(&self) {
        let group = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"metadata": {"name": "podwire"}, "rules": rules()});
        self.ask("POST", &format!("{group}/clusterroles"), Some(&role)).unwrap();
        let binding = json!({
            "metadata": {"name": "podwire"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "podwire"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "podwire"}],
        });
        self.ask("POST", &format!("{group}/clusterrolebindings"), Some(&binding)).unwrap();
        // The server follows its own rules a moment later.
        self.until("the user has its rights", || {
            let group = json!({"group": "crd.projectcalico.org", "resource": "ipamblocks", "verb": "delete"});
            self.may("resourceAttributes", group)
                && self.may("nonResourceAttributes", json!({"path": "/apis/x", "verb": "get"}))
        });
    }

    fn may(&self, what: &str, attributes: Value) -> bool {
        let spec = json!({"user": "podwire", "groups": ["system:authenticated"], what: attributes});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = self.ask("POST", path, Some(&json!({"metadata": {}, "spec": spec})));
        answer.is_ok_and(|review| review["status"]["allowed"] == true)
    }
}

/// The rules that docs/ipam.md tells: its block of JSON.
fn rules() -> Value {
    let page = include_str!("../../../../docs/ipam.md");
    let block = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    serde_json::from_str(block.expect("a block of JSON")).expect("JSON")
}

/// The kinds of a group with what Calico's definitions demand of a `spec`; what they do not name is kept, except in the older group's
/// settings, which drop it as Calico's own definitions do.
fn kinds(group: ApiGroup) -> Vec<(&'static str, &'static str, Value)> {
    let spec = |required: &[&str], properties: Value| {
        json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "required": required, "properties": properties,
        })
    };
    let (text, number, truth) =
        (json!({"type": "string"}), json!({"type": "integer"}), json!({"type": "boolean"}));
    let numbers = json!({"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}});
    let (mark, config) = match group {
        ApiGroup::V1 => (&text, ("IPAMConfig", "ipamconfigs")),
        ApiGroup::V3 => (&truth, ("IPAMConfiguration", "ipamconfigurations")),
    };
    let block = json!({
        "cidr": text, "affinity": text, "affinityClaimTime": {"type": "string", "format": "date-time"},
        "allocations": {"type": "array", "items": {"type": "integer", "nullable": true}},
        "unallocated": {"type": "array", "items": number},
        "attributes": {"type": "array", "items": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "handle_id": text, "secondary": {"type": "object", "additionalProperties": text},
            },
        }},
        "sequenceNumber": {"type": "integer", "format": "int64"}, "sequenceNumberForAllocation": numbers,
        "deleted": truth, "strictAffinity": truth,
    });
    let affinity = json!({"cidr": text, "deleted": mark, "node": text, "state": text, "type": text});
    let handle = json!({"block": numbers, "deleted": truth, "handleID": text});
    let fields = json!({
        "autoAllocateBlocks": truth, "strictAffinity": truth, "maxBlocksPerHost": number, "number": number,
    });
    let mut settings = spec(&["autoAllocateBlocks", "strictAffinity"], fields);
    if group == ApiGroup::V1 {
        settings.as_object_mut().unwrap().remove("x-kubernetes-preserve-unknown-fields");
    }
    let block_needs =
        ["allocations", "attributes", "cidr", "sequenceNumber", "strictAffinity", "unallocated"];
    vec![
        ("IPAMBlock", "ipamblocks", spec(&block_needs, block)),
        ("BlockAffinity", "blockaffinities", spec(&["cidr", "deleted", "node", "state"], affinity)),
        ("IPAMHandle", "ipamhandles", spec(&["block", "handleID"], handle)),
        (config.0, config.1, settings),
        ("IPPool", "ippools", spec(&["cidr"], json!({"cidr": text, "blockSize": number, "disabled": truth}))),
        (
            "IPReservation",
            "ipreservations",
            spec(&[], json!({"reservedCIDRs": {"type": "array", "items": text}})),
        ),
    ]
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        if std::thread::panicking() {
            eprintln!("logs are kept in {}", self.folder.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn etcd(programs: &Path, folder: &Path, (port, peers): (u16, u16)) -> Child {
    let (url, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let mut command = Command::new(programs.join("etcd"));
    command.arg("--data-dir").arg(folder.join("etcd")).args(["--unsafe-no-fsync", "--log-level=error"]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    spawn(&mut command, &folder.join("etcd.log"))
}

/// Starts a program whose words go to a file.
fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let words = log.try_clone().unwrap();
    command
        .stdin(Stdio::null())
        .stdout(words)
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// A user's token is its name. The certificate is one that the server made for itself.
fn kubeconfig(folder: &Path, user: &str, port: u16) -> PathBuf {
    let path = folder.join(format!("{user}.conf"));
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
    // Whole or not at all: somebody else may be reading it.
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, config.to_string()).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    path
}

fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
