//! A client of the API server with an administrator's rights. It sends one request after the other.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use podwire_kernel::Netns;
use serde_json::{json, Value};
use tokio::runtime::Runtime;

/// How long requests are retried while the server is down or busy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The resources whose rights are checked: those that the components need, and those that no account should have.
const KINDS: &[(&str, &str)] = &[
    ("", "nodes"),
    ("", "nodes/status"),
    ("", "nodes/proxy"),
    ("", "pods"),
    ("", "pods/status"),
    ("", "namespaces"),
    ("networking.k8s.io", "networkpolicies"),
    ("", "pods/exec"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "serviceaccounts/token"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    ("apps", "daemonsets"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("crd.projectcalico.org", "ippools"),
    ("crd.projectcalico.org", "ipreservations"),
    ("crd.projectcalico.org", "ipamconfigs"),
    ("crd.projectcalico.org", "ipamblocks"),
    ("crd.projectcalico.org", "blockaffinities"),
    ("crd.projectcalico.org", "ipamhandles"),
    ("crd.projectcalico.org", "clusterinformations"),
    ("crd.projectcalico.org", "bgppeers"),
];

/// A connection to an API server in another network namespace.
pub struct Kube {
    netns: Netns,
    client: Client,
    runtime: Runtime,
}

impl Kube {
    /// Reads a kubeconfig. All requests are sent from this network namespace.
    pub fn new(netns: &Path, kubeconfig: &Value) -> Kube {
        let netns = Netns::open(netns).expect("a network namespace");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
        let config: Kubeconfig = serde_json::from_value(kubeconfig.clone()).expect("a kubeconfig");
        let client = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
            Client::try_from(config.expect("credentials")).expect("a client")
        });
        Kube { netns, client, runtime }
    }

    fn ask_once<T>(&self, question: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
        self.netns.run(|| self.runtime.block_on(question)).expect("the namespace")
    }

    /// Retries while the server does not answer or is overloaded. An error about the request itself is returned.
    fn ask<T, A: Future<Output = kube::Result<T>>>(&self, question: impl Fn() -> A) -> kube::Result<T> {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.ask_once(question()) {
                Err(kube::Error::Api(said)) if (400..500).contains(&said.code) && said.code != 429 => {
                    return Err(kube::Error::Api(said))
                }
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(200)),
                answer => return answer,
            }
        }
    }

    /// Whether the server is ready and has created its default roles.
    pub fn is_up(&self) -> bool {
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"});
        self.ask_once(self.kind(&binding).get("system:kube-scheduler")).is_ok()
    }

    /// The API of an object's kind, in its namespace if it has one.
    fn kind(&self, object: &Value) -> Api<DynamicObject> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (word(&object["apiVersion"]), word(&object["kind"]));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }

    /// Applies objects: creates or updates them. The error is the server's.
    pub fn try_apply(&self, objects: &[Value]) -> Result<(), String> {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let params = PatchParams::apply("test").force();
            let (kind, change) = (self.kind(object), Patch::Apply(object));
            self.ask(|| kind.patch(name, &params, &change))
                .map_err(|error| format!("{}: {error}", crate::manifest::title(object)))?;
        }
        Ok(())
    }

    /// Applies objects; panics if the server rejects one.
    #[track_caller]
    pub fn apply(&self, objects: &[Value]) {
        self.try_apply(objects).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Deletes objects and their dependents.
    #[track_caller]
    pub fn delete(&self, objects: &[Value]) {
        for object in objects.iter().rev() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let (kind, how) = (self.kind(object), DeleteParams::background());
            self.ask(|| kind.delete(name, &how))
                .unwrap_or_else(|error| panic!("delete {}: {error}", crate::manifest::title(object)));
        }
    }

    /// Sets the status of an object.
    #[track_caller]
    pub fn set_status(&self, object: &Value, status: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let (kind, params) = (self.kind(object), PatchParams::default());
        let change = Patch::Merge(json!({ "status": status }));
        self.ask(|| kind.patch_status(name, &params, &change))
            .unwrap_or_else(|error| panic!("status of {}: {error}", crate::manifest::title(object)));
    }

    /// An object, if it exists.
    pub fn find(&self, object: &Value) -> Option<Value> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let kind = self.kind(object);
        let found = self.ask(|| kind.get_opt(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.map(|found| serde_json::to_value(found).expect("JSON"))
    }

    /// A Node object, if kubelet has created it.
    pub fn node(&self, name: &str) -> Option<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.ask(|| nodes.get_opt(name)).unwrap_or_else(|error| panic!("node {name}: {error}"))
    }

    /// A condition of a node: its status, reason and message. None if the node or the condition does not exist.
    pub fn condition(&self, node: &str, kind: &str) -> Option<[String; 3]> {
        let conditions = self.node(node)?.status?.conditions?;
        let found = conditions.into_iter().find(|one| one.type_ == kind)?;
        Some([found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default()])
    }

    /// Whether a node's condition `Ready` is true.
    pub fn is_ready(&self, node: &str) -> bool {
        self.condition(node, "Ready").is_some_and(|[status, ..]| status == "True")
    }

    /// Whether the scheduler may place pods on a node: Kubernetes removes the taints shortly after the node is ready.
    pub fn takes_pods(&self, node: &str) -> bool {
        let taints = |node: Node| node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        self.node(node).is_some_and(|node| taints(node).is_empty())
    }

    /// Cordons or uncordons a node.
    pub fn cordon(&self, node: &str, is_closed: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"spec": {"unschedulable": is_closed}}));
        let params = PatchParams::default();
        self.ask(|| nodes.patch(node, &params, &change)).unwrap_or_else(|error| panic!("{node}: {error}"));
    }

    /// The pods of a namespace with this label, such as `app=web`.
    pub fn pods(&self, namespace: &str, label: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let wanted = ListParams::default().labels(label);
        let found = self.ask(|| pods.list(&wanted));
        found.unwrap_or_else(|error| panic!("pods with {label}: {error}")).items
    }

    /// Whether a service account of `kube-system` has the right to use this verb (`patch`) on a resource
    /// (`nodes/status`).
    pub fn may(&self, account: &str, verb: &str, (group, kind): (&str, &str)) -> bool {
        let (resource, part) = kind.split_once('/').unwrap_or((kind, ""));
        let review: SubjectAccessReview = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "user": format!("system:serviceaccount:kube-system:{account}"),
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
                "resourceAttributes": {
                    "namespace": "kube-system", "verb": verb, "group": group, "resource": resource, "subresource": part,
                },
            },
        }))
        .expect("a review");
        let (reviews, params) = (Api::all(self.client.clone()), PostParams::default());
        let answer = self.ask(|| reviews.create(&params, &review));
        answer
            .unwrap_or_else(|error| panic!("may {account} {verb} {kind}: {error}"))
            .status
            .is_some_and(|status| status.allowed)
    }

    /// All checked rights of a service account of `kube-system`, such as `patch nodes/status`.
    pub fn rights(&self, account: &str) -> Vec<String> {
        let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
        let asked = KINDS.iter().flat_map(|kind| verbs.map(|verb| (*kind, verb)));
        let granted = asked.filter(|(kind, verb)| self.may(account, verb, *kind));
        granted.map(|((_, kind), verb)| format!("{verb} {kind}")).collect()
    }

    /// All objects of a kind without namespaces.
    pub fn list(&self, version: &str, kind: &str) -> Vec<Value> {
        let api = self.kind(&json!({"apiVersion": version, "kind": kind}));
        let all = ListParams::default();
        let found = self.ask(|| api.list(&all));
        let found = found.unwrap_or_else(|error| panic!("list {kind}: {error}"));
        found.items.into_iter().map(|object| serde_json::to_value(object).expect("JSON")).collect()
    }

    /// Evicts a pod, as a drain does.
    pub fn evict(&self, namespace: &str, pod: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let how = EvictParams::default();
        self.ask(|| pods.evict(pod, &how)).unwrap_or_else(|error| panic!("evict {pod}: {error}"));
    }
}
