//! Node objects and their events, as an administrator makes and reads them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::ResourceExt;
use serde_json::{json, Value};

use crate::cluster::{eventually, Cluster};

impl Cluster {
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A node with ranges, or without, as kubelet makes it.
    pub async fn create(&self, name: &str, cidrs: &[&str]) {
        let node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs},
        }));
        self.nodes().create(&PostParams::default(), &node.unwrap()).await.unwrap();
    }

    pub async fn create_all(&self, names: &[String]) {
        futures::future::join_all(names.iter().map(|name| self.create(name, &[]))).await;
    }

    /// A pod that runs on a node and has an address, as kubelet tells it.
    pub async fn run_pod(&self, node: &str, name: &str, ip: &str) {
        // A pod needs an account, which a controller of Kubernetes makes elsewhere.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let _ = accounts.create(&PostParams::default(), &account).await;
        let pods = self.pods();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }));
        pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    pub async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub async fn delete(&self, name: &str) {
        self.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Somebody else gives a node ranges. `false` if it has some.
    pub async fn plant(&self, name: &str, cidr: &str) -> bool {
        let patch = json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.is_ok()
    }

    /// All nodes' ranges, by name.
    pub async fn cidrs(&self) -> BTreeMap<String, Vec<String>> {
        let all = self.nodes().list(&ListParams::default()).await.unwrap();
        let cidrs =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        all.items.iter().map(|node| (node.name_any(), cidrs(node))).collect()
    }

    pub async fn cidr_of(&self, name: &str) -> String {
        self.cidrs().await.remove(name).unwrap_or_default().join(" ")
    }

    /// Waits until each node that there is has `count` ranges, none of which another has.
    pub async fn all_have(&self, count: usize) -> BTreeMap<String, Vec<String>> {
        let what = format!("all nodes have {count} ranges");
        eventually(&what, || async { self.cidrs().await.values().all(|cidrs| cidrs.len() == count) }).await;
        let all = self.cidrs().await;
        let distinct: BTreeSet<&String> = all.values().flatten().collect();
        assert_eq!(distinct.len(), count * all.len(), "a range was given twice: {all:?}");
        all
    }

    pub async fn has_range(&self, name: &str) {
        eventually(&format!("{name} has a range"), || async { !self.cidr_of(name).await.is_empty() }).await;
    }

    /// All of a node but its ranges, and the notes of the API server about the last change.
    pub async fn without_ranges(&self, name: &str) -> Value {
        let mut node = serde_json::to_value(self.nodes().get(name).await.unwrap()).unwrap();
        for (part, field) in [
            ("spec", "podCIDR"),
            ("spec", "podCIDRs"),
            ("metadata", "resourceVersion"),
            ("metadata", "generation"),
            ("metadata", "managedFields"),
        ] {
            node[part].as_object_mut().map(|part| part.remove(field));
        }
        node
    }

    /// The notes of a node's events of a reason.
    pub async fn events(&self, name: &str, reason: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap();
        let of = |event: &Event| {
            event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name)
        };
        all.items.into_iter().filter(of).filter_map(|event| event.note).collect()
    }

    /// Waits for an event, and returns its note.
    pub async fn told(&self, name: &str, reason: &str) -> String {
        eventually(&format!("{name} has an event {reason}"), || async {
            !self.events(name, reason).await.is_empty()
        })
        .await;
        self.events(name, reason).await.remove(0)
    }

    /// Who holds the lease; nobody's name is empty.
    pub async fn leader(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let lease = leases.get_opt("podwire-controller").await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
    }

    /// Writes somebody else's name on the lease, for a minute.
    pub async fn hand_lease_to(&self, holder: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let patch = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 60}});
        leases.patch("podwire-controller", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// As if nothing had ever been.
    pub async fn clear(&self) {
        let every = ListParams::default();
        self.nodes().delete_collection(&DeleteParams::default(), &every).await.unwrap();
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        events.delete_collection(&DeleteParams::default(), &every).await.unwrap();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let _ = leases.delete("podwire-controller", &DeleteParams::default()).await;
        eventually("no node is left", || async { self.cidrs().await.is_empty() }).await;
    }
}
