//! Three nodes, one store, and the plugins of Calico and Podwire. Calico's are the real ones.

use std::time::{Duration, Instant};

use podwire_tests::{calicos, ours, podwire, Invocation, Output, Pod};
use serde_json::{json, Value};

use super::records::Records;
use crate::api_server::Kubernetes;
use crate::stage::{net_conf, Stage, Store, TIMEOUT};

const ETCD: &str = "http://192.168.10.1:2379";
/// A namespace that exists in every API server.
const NAMESPACE: &str = "default";
const NETWORK: &str = "k8s-pod-network";
const POOLS: [(&str, &str); 2] = [("v4", "10.244.0.0/16"), ("v6", "fd44:244::/112")];

/// A set of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Calicos,
    Ours,
}

impl Whose {
    pub fn other(self) -> Whose {
        match self {
            Whose::Calicos => Whose::Ours,
            Whose::Ours => Whose::Calicos,
        }
    }
}

/// The nodes, and the store with everything that Calico's plugins expect in it.
pub struct Cluster {
    pub stage: Stage,
    /// `None` if the records are in etcd.
    kubernetes: Option<Kubernetes>,
    calicos: &'static str,
    /// Whether its containers are Kubernetes pods.
    pub has_pods: bool,
}

/// An attached pod.
#[derive(Debug)]
pub struct Connected {
    pub by: Whose,
    pub number: u8,
    pub pod: Pod,
    pub addresses: Vec<String>,
}

impl Cluster {
    /// Records in etcd. None, with a message, where Calico's plugins cannot be built.
    pub fn in_etcd() -> Option<Cluster> {
        let calicos = calicos()?;
        let stage = Stage::new(Store::Etcd, &net_conf(json!({"Type": "vxlan"})));
        let cluster = Cluster { stage, kubernetes: None, calicos, has_pods: true };
        cluster.put("clusterinformations", "ClusterInformation", "default", &information());
        for number in 1..=3 {
            cluster.put("nodes", "Node", &format!("n{number}"), &json!({}));
        }
        cluster.make_pools();
        Some(cluster)
    }

    /// Records in Calico's custom resources. None, with a message, where there is no API server either.
    pub fn in_kubernetes() -> Option<Cluster> {
        let calicos = calicos()?;
        let stage = Stage::new(Store::Embedded, &net_conf(json!({"Type": "vxlan"})));
        let kubernetes = Kubernetes::start(&stage)?;
        let cluster = Cluster { stage, kubernetes: Some(kubernetes), calicos, has_pods: true };
        cluster.define_custom_resources();
        let path = "/apis/crd.projectcalico.org/v1/clusterinformations";
        let default = json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
            "metadata": {"name": "default"}, "spec": information(),
        });
        cluster.ask("POST", path, &default);
        cluster.make_pools();
        Some(cluster)
    }

    /// Writes an object to etcd, as calicoctl and calico-node do.
    fn put(&self, plural: &str, kind: &str, name: &str, spec: &Value) {
        let object = json!({
            "kind": kind, "apiVersion": "projectcalico.org/v3", "spec": spec,
            "metadata": {"name": name, "uid": "6c1b1c1e-0000-4000-8000-000000000001", "creationTimestamp": "2026-01-01T00:00:00Z"},
        });
        let key = format!("/calico/resources/v3/projectcalico.org/{plural}/{name}");
        self.stage.etcdctl(&format!("put {key} '{object}'"));
    }

    /// Creates an object in the API server, as Calico's manifests do, with Calico's own definitions.
    fn define_custom_resources(&self) {
        let files = std::fs::read_dir(format!("{}/definitions", self.calicos)).expect("definitions");
        for file in files.flatten() {
            let text = std::fs::read_to_string(file.path()).expect("a definition");
            let definition: Value = serde_saphyr::from_str(&text).expect("YAML");
            self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
            let names = &definition["spec"]["names"];
            let path =
                format!("/apis/crd.projectcalico.org/v1/{}", names["plural"].as_str().expect("a plural"));
            self.stage.wait_until(&path, |_| self.try_ask("GET", &path, "").is_some());
        }
    }

    fn make_pools(&self) {
        for (name, cidr) in POOLS {
            self.ipam(&format!("pool {name} {cidr} --vxlan always"));
        }
    }

    /// The flags that select the store.
    fn place(&self) -> Vec<String> {
        let words: &[&str] = match &self.kubernetes {
            Some(kubernetes) => &["--store", "kubernetes", "--kubeconfig", &kubernetes.kubeconfig],
            None => &["--store", ETCD],
        };
        words.iter().map(ToString::to_string).collect()
    }

    /// Runs `podwire ipam …` and returns its output.
    #[track_caller]
    pub fn ipam(&self, words: &str) -> String {
        self.stage.node(1).sh(&format!("{} ipam {words} {}", podwire(), self.place().join(" ")))
    }

    /// Starts a daemon of Podwire on a node: `agent calico` or `ipam serve`.
    pub fn start(&mut self, number: u8, words: &[&str], flags: &[&str]) {
        let (place, name) = (self.place(), format!("n{number}"));
        let more = ["--node", &name, "--warm-addresses", "4"];
        let flags: Vec<&str> =
            place.iter().map(String::as_str).chain(more).chain(flags.iter().copied()).collect();
        self.stage.start(number, words, &flags);
        let warm_pool = format!("podwire-warm-{name}");
        self.records_when("a warm pool", |records| records.handles.contains_key(&warm_pool));
    }

    /// The network config, for both plugins.
    fn config(&self, by: Whose, number: u8) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": NETWORK, "type": "calico", "nodename": format!("n{number}"),
            "nodename_file_optional": true, "log_level": "error",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
        });
        match (&self.kubernetes, by) {
            (Some(kubernetes), _) => {
                config["datastore_type"] = json!("kubernetes");
                config["policy"] = json!({"type": "k8s"});
                config["kubernetes"] = json!({"kubeconfig": kubernetes.kubeconfig});
            }
            (None, Whose::Ours) => config["etcd_endpoints"] = json!(ETCD),
            (None, Whose::Calicos) => {
                config["etcd_endpoints"] = json!(ETCD);
                // Calico's plugin requires the API's address, and sends no requests to it without Kubernetes policies.
                config["kubernetes"] = json!({"k8s_api_root": "http://127.0.0.1:1"});
            }
        }
        config
    }

    /// The directory of the plugins.
    fn folder(&self, whose: Whose) -> String {
        match whose {
            Whose::Calicos => self.calicos.to_owned(),
            Whose::Ours => ours(),
        }
    }

    /// A call of a plugin, with an IPAM plugin, for a pod on its node.
    fn call(&self, verb: &str, (by, ipam): (Whose, Whose), number: u8, pod: &Pod) -> Output {
        let pods = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={}", pod.name);
        let args = if self.has_pods { &pods } else { "" };
        let config = self.config(by, number);
        let call = Invocation::new(self.stage.node(number), &self.folder(by), verb, pod, &config);
        call.env("CNI_ARGS", args).env("CNI_PATH", &self.folder(ipam)).run()
    }

    /// A pod that is not attached yet.
    pub fn pod(&self, number: u8, name: &str) -> Pod {
        if self.kubernetes.is_some() {
            let object = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
                "spec": {"nodeName": format!("n{number}"), "containers": [{"name": "c", "image": "none"}]},
            });
            self.ask("POST", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), &object);
        }
        self.stage.node(number).pod(name)
    }

    /// Attaches it.
    #[track_caller]
    pub fn connect(&self, by: Whose, number: u8, pod: Pod) -> Connected {
        self.connect_with(by, number, pod, by)
    }

    /// Attaches it with this IPAM plugin.
    #[track_caller]
    pub fn connect_with(&self, by: Whose, number: u8, pod: Pod, ipam: Whose) -> Connected {
        let result = self.call("ADD", (by, ipam), number, &pod).result();
        let ips = result["ips"].as_array().expect("ips").iter();
        let addresses: Vec<String> =
            ips.filter_map(|ip| ip["address"].as_str()?.split('/').next().map(str::to_owned)).collect();
        assert_eq!(addresses.len(), POOLS.len(), "{by:?}: {result:#}");
        Connected { by, number, pod, addresses }
    }

    /// A new, attached pod.
    #[track_caller]
    pub fn add(&self, by: Whose, number: u8, name: &str) -> Connected {
        self.connect(by, number, self.pod(number, name))
    }

    /// DEL, by either plugin.
    #[track_caller]
    pub fn del(&self, by: Whose, one: &Connected) {
        self.del_with(by, one, by);
    }

    /// DEL with this IPAM plugin.
    #[track_caller]
    pub fn del_with(&self, by: Whose, one: &Connected, ipam: Whose) {
        let done = self.call("DEL", (by, ipam), one.number, &one.pod);
        assert_eq!(done.status, 0, "DEL by {by:?} of {one:?}: {}{}", done.stdout, done.stderr);
        let (node, name) = (self.stage.node(one.number), &one.pod.name);
        assert!(!node.can(&format!("ip -n {name} link show eth0")), "{name} has its interface");
    }

    /// Deletes the pod's namespace, and the pod in Kubernetes.
    pub fn forget(&self, number: u8, pod: &Pod) {
        self.stage.node(number).remove(pod);
        if self.kubernetes.is_some() {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", pod.name);
            self.ask("DELETE", &path, &json!({"gracePeriodSeconds": 0}));
        }
    }

    /// The records in the store.
    pub fn records(&self) -> Records {
        match &self.kubernetes {
            None => Records::of_etcd(&self.stage.etcdctl("get --prefix /calico/")),
            Some(_) => Records::of_kubernetes(|path| {
                let said = self.try_ask("GET", path, "").unwrap_or_else(|| panic!("GET {path}"));
                serde_json::from_str(&said).expect("JSON")
            }),
        }
    }

    /// Waits until the records are as they should be, and returns them.
    #[track_caller]
    pub fn records_when(&self, what: &str, is_so: impl Fn(&Records) -> bool) -> Records {
        let end = Instant::now() + TIMEOUT;
        loop {
            let records = self.records();
            if is_so(&records) {
                return records;
            }
            assert!(Instant::now() < end, "not within {TIMEOUT:?}: {what}\n{records:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether a node has no pod's veth pair and no route to a pod.
    pub fn is_bare(&self, number: u8) -> bool {
        !self.stage.node(number).can("ip -o link | grep -q ': cali' || ip route | grep -q 'dev cali'")
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) {
        let done = self.try_ask(method, path, &body.to_string());
        assert!(done.is_some(), "{method} {path} {body}");
    }

    fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let said = self.stage.router.output(&["python3", "/run/kube/ask.py", method, path, body], &[]);
        (said.status == 0).then_some(said.stdout)
    }
}

/// The spec of Calico's ClusterInformation, which its plugin reads first.
fn information() -> Value {
    json!({"clusterGUID": "0123456789abcdef0123456789abcdef", "clusterType": "k8s", "calicoVersion": "v3.28.5", "datastoreReady": true})
}
