//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler on a separate stage.

use podwire_runtime_tests::{Daemon, Stage};
use serde_json::{json, Value};

use crate::{helm, programs, Ranges};

/// The address of the control plane.
pub const ADDRESS: &str = "192.168.99.1";
/// The pod network and the Service network: the chart's defaults.
pub const PODS: &str = "10.244.0.0/16";
const SERVICES: &str = "10.96.0.0/12";
const FOLDER: &str = "/etc/kubernetes";

/// Creates a certificate for the API server, from a new CA, and the key of service account tokens.
const CERTIFICATES: &str = r#"set -e
mkdir -p /etc/kubernetes && cd /etc/kubernetes
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 30 -subj /CN=podwire-test -out ca.crt \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
openssl ecparam -name prime256v1 -genkey -noout -out server.key
openssl req -new -key server.key -subj /CN=kube-apiserver -out server.csr
printf 'keyUsage=digitalSignature\nextendedKeyUsage=serverAuth\nsubjectAltName=%s\n' \
  DNS:kubernetes.default.svc,IP:127.0.0.1,IP:192.168.99.1,IP:10.96.0.1 >server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt -extfile server.ext
openssl genrsa -out accounts.key 2048
openssl rsa -in accounts.key -pubout -out accounts.pub
base64 -w0 ca.crt >ca.base64"#;

/// The control plane, with the link to its nodes.
#[derive(Debug)]
pub struct ControlPlane {
    pub stage: Stage,
    daemons: Vec<Daemon>,
    /// `None` while it is stopped.
    server: Option<Daemon>,
    ca: String,
}

/// The users in the API server's format: token, name, id, group. A user's token is its name.
fn users() -> String {
    let user = |name: &str| format!("{name},{name},{name}");
    let mut users = vec![format!("{},system:masters", user("admin"))];
    users.extend(
        ["kube-controller-manager", "kube-scheduler", "kube-proxy"]
            .map(|name| user(&format!("system:{name}"))),
    );
    users.extend((1..=9).map(|number| format!("{},system:nodes", user(&format!("system:node:n{number}")))));
    users.join("\n") + "\n"
}

impl ControlPlane {
    /// Starts everything except the controllers, which need the API server.
    pub fn start() -> ControlPlane {
        let stage = Stage::new(podwire_runtime_tests::Plugins::Ours);
        stage.sh(&format!(
            "ip link add lan type bridge && ip link set lan up && ip address add {ADDRESS}/24 dev lan"
        ));
        stage.sh(CERTIFICATES);
        stage.write(&format!("{FOLDER}/users.csv"), &users());
        let ca = stage.sh(&format!("cat {FOLDER}/ca.base64"));
        let mut control = ControlPlane { stage, daemons: Vec::new(), server: None, ca };
        let etcd = "--data-dir=/var/lib/etcd --unsafe-no-fsync --log-level=warn \
            --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
            --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
            --initial-cluster=default=http://127.0.0.1:2380";
        control.run("etcd", etcd);
        control.start_server();
        control
    }

    /// Starts the API server.
    pub fn start_server(&mut self) {
        let server = format!(
            "--etcd-servers=http://127.0.0.1:2379 --advertise-address={ADDRESS} --secure-port=6443 \
             --service-cluster-ip-range={SERVICES} --allow-privileged=true \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
             --token-auth-file={FOLDER}/users.csv --tls-cert-file={FOLDER}/server.crt --tls-private-key-file={FOLDER}/server.key \
             --service-account-issuer=https://kubernetes.default.svc --service-account-key-file={FOLDER}/accounts.pub \
             --service-account-signing-key-file={FOLDER}/accounts.key --profiling=false"
        );
        self.server = Some(self.stage.daemon(&["sh", "-c", &logged("kube-apiserver", &server)]));
    }

    /// Kills the API server.
    pub fn kill_server(&mut self) {
        self.server.take().expect("the API server").kill(&self.stage);
    }

    /// Starts the controllers. They assign pod CIDRs unless Podwire's controller does.
    pub fn go_on(&mut self, ranges: Ranges) {
        let allocate = ranges == Ranges::KubeControllerManager;
        let manager = format!(
            "--kubeconfig={} --leader-elect=false --use-service-account-credentials=true \
             --root-ca-file={FOLDER}/ca.crt --service-account-private-key-file={FOLDER}/accounts.key \
             --allocate-node-cidrs={allocate} --cluster-cidr={PODS} --service-cluster-ip-range={SERVICES} \
             --flex-volume-plugin-dir=/var/lib/flex --profiling=false",
            self.identify("kube-controller-manager")
        );
        self.run("kube-controller-manager", &manager);
        let scheduler = format!(
            "--kubeconfig={} --leader-elect=false --profiling=false",
            self.identify("kube-scheduler")
        );
        self.run("kube-scheduler", &scheduler);
    }

    /// Writes the kubeconfig of a program of the control plane, and returns its path.
    fn identify(&self, name: &str) -> String {
        let path = format!("{FOLDER}/{name}.conf");
        self.stage.write(&path, &self.kubeconfig(&format!("system:{name}")).to_string());
        path
    }

    /// Runs helm on the control plane's stage.
    #[track_caller]
    pub fn helm(&self, words: &str) -> String {
        self.stage.sh(&format!(
            "HOME=/run/helm {} {words} --namespace kube-system --kube-apiserver https://{ADDRESS}:6443 --kube-token admin \
             --kube-ca-file {FOLDER}/ca.crt",
            helm()
        ))
    }

    fn run(&mut self, name: &str, arguments: &str) {
        self.daemons.push(self.stage.daemon(&["sh", "-c", &logged(name, arguments)]));
    }

    /// The kubeconfig of a user.
    pub fn kubeconfig(&self, user: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{ADDRESS}:6443"), "certificate-authority-data": self.ca,
            }}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        })
    }
}

/// A script that executes a program with its output in a log file.
pub fn logged(name: &str, arguments: &str) -> String {
    format!("ulimit -n 20000; exec {}/{name} {arguments} >/var/log/{name}.log 2>&1", programs())
}
