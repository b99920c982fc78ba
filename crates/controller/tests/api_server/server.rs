//! A real kube-apiserver and its etcd, on loopback ports that are free, in a folder that goes with them.

use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::Client;
use serde_json::{json, Value};

/// How long anything may take on a busy machine before it counts as not happening.
const PATIENCE: Duration = Duration::from_secs(120);

/// The folder with the programs of Kubernetes, which the project's script builds once and keeps; or why there is none.
pub fn programs() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubernetes-binaries");
    let needed = ["etcd", "kube-apiserver", "kube-controller-manager"];
    let run = |arguments: &[&str]| {
        let output = Command::new(&script).args(arguments).args(needed).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{}: {error}", script.display()))?;
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
    etcd_port: u16,
    port: u16,
    /// A client that may do everything.
    pub client: Client,
}

impl Server {
    pub async fn start(programs: PathBuf) -> Server {
        let folder = std::env::temp_dir().join(format!("podwire-controller-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(
            folder.join("users.csv"),
            "admin,admin,admin,\"system:masters\"\npodwire,podwire,podwire\n",
        )
        .unwrap();
        let made = Command::new("openssl")
            .args(["genrsa", "-out", "accounts.key", "2048"])
            .current_dir(&folder)
            .output();
        assert!(made.expect("openssl").status.success());
        let (etcd_port, peers, port) = (free_port(), free_port(), free_port());
        let etcd = etcd(&programs, &folder, etcd_port, peers);
        let client = client(&kubeconfig(&folder, "admin", port)).await;
        let mut server = Server { programs, folder, etcd, server: None, etcd_port, port, client };
        server.serve();
        let api = server.client.clone();
        // Who may do what is written down a moment after it serves.
        eventually("the API server serves", || async {
            Api::<ClusterRole>::all(api.clone()).get("system:node").await.is_ok()
        })
        .await;
        server.allow().await;
        server
    }

    /// Starts it (again), on the same port and with the same data.
    pub fn serve(&mut self) {
        let folder = self.folder.display();
        let arguments = format!(
            "--etcd-servers=http://127.0.0.1:{} --secure-port={} --bind-address=127.0.0.1 --cert-dir={folder}/certs \
             --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=RBAC --token-auth-file={folder}/users.csv \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file={folder}/accounts.key \
             --service-account-signing-key-file={folder}/accounts.key --storage-media-type=application/json \
             --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --profiling=false",
            self.etcd_port, self.port
        );
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        self.server =
            Some(spawn(command.args(arguments.split_whitespace()), &self.folder.join("kube-apiserver.log")));
    }

    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// kube-controller-manager with nothing but its NodeIpamController.
    pub fn controller_manager(&self, cluster: &str) -> Killed {
        let kubeconfig = kubeconfig(&self.folder, "admin", self.port);
        let mut command = Command::new(self.programs.join("kube-controller-manager"));
        command.args(["--controllers=node-ipam-controller", "--allocate-node-cidrs", "--leader-elect=false"]);
        command.args(["--secure-port=0", "--cluster-cidr", cluster, "--kubeconfig"]).arg(kubeconfig);
        Killed(spawn(&mut command, &self.folder.join("kube-controller-manager.log")))
    }

    /// How the controller reaches it: with no more rights than it needs.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(&self.folder, "podwire", self.port)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where etcd is: it may keep blocks, too.
    pub fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    /// etcd itself, for what no API server would write.
    pub async fn etcd(&self) -> etcd_client::Client {
        etcd_client::Client::connect([format!("127.0.0.1:{}", self.etcd_port)], None).await.unwrap()
    }

    /// The rights of docs/controller.md, for the user that controllers are here.
    async fn allow(&self) {
        let role: ClusterRole = serde_json::from_value(json!({
            "metadata": {"name": "podwire-controller"}, "rules": rules(),
        }))
        .unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "podwire-controller"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "podwire-controller"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "podwire"}],
        }))
        .unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &role).await.unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    }

    /// Takes the right to change nodes away, or gives it back.
    pub async fn let_controllers_write(&self, allowed: bool) {
        let mut rules = rules();
        if !allowed {
            rules[0]["verbs"].as_array_mut().expect("verbs").retain(|verb| verb != "patch");
        }
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"rules": rules}));
        roles.patch("podwire-controller", &PatchParams::default(), &patch).await.unwrap();
        // The server follows its own rules a moment later.
        eventually("the right is another", || async { self.may_write().await == allowed }).await;
    }

    async fn may_write(&self) -> bool {
        let question: SubjectAccessReview = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"user": "podwire", "resourceAttributes": {"verb": "patch", "resource": "nodes"}},
        }))
        .unwrap();
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &question).await.unwrap();
        answer.status.is_some_and(|status| status.allowed)
    }
}

/// The rules that docs/controller.md tells: its blocks of JSON.
fn rules() -> Value {
    let page = include_str!("../../../../docs/controller.md");
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let rules = blocks.flat_map(|block| serde_json::from_str::<Vec<Value>>(block).expect("JSON"));
    Value::Array(rules.collect())
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

/// A process that ends with this.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn etcd(programs: &Path, folder: &Path, port: u16, peers: u16) -> Child {
    let (data, url, peer) =
        (folder.join("etcd"), format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let mut command = Command::new(programs.join("etcd"));
    command.arg("--data-dir").arg(data).args(["--unsafe-no-fsync", "--log-level=error"]);
    command.args([
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
        "--listen-peer-urls",
        &peer,
    ]);
    command.args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("default={peer}")]);
    spawn(&mut command, &folder.join("etcd.log"))
}

/// Starts a program whose words go to a file.
pub fn spawn(command: &mut Command, log: &Path) -> Child {
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

async fn client(kubeconfig: &Path) -> Client {
    podwire_kubernetes::ClientOptions::from_kubeconfig(Some(kubeconfig.into())).client().await.unwrap()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until something is so.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
