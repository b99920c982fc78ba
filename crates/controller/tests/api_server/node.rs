//! Node objects, pods, events and the lease.

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

    /// Creates a node, with pod CIDRs or without, as kubelet does.
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

    /// Creates a running pod with an address on a node.
    pub async fn run_pod(&self, node: &str, name: &str, ip: &str) {
        // A pod needs a service account, which kube-controller-manager creates in a real cluster.
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

    /// Sets a node's pod CIDR, as another controller would. `false` if it has one.
    pub async fn set_cidr(&self, name: &str, cidr: &str) -> bool {
        let patch = json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.is_ok()
    }

    /// The pod CIDRs of all nodes, by name.
    pub async fn cidrs(&self) -> BTreeMap<String, Vec<String>> {
        let all = self.nodes().list(&ListParams::default()).await.unwrap();
        let cidrs =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        all.items.iter().map(|node| (node.name_any(), cidrs(node))).collect()
    }

    pub async fn cidr_of(&self, name: &str) -> String {
        self.cidrs().await.remove(name).unwrap_or_default().join(" ")
    }

    /// Waits until every node has `count` pod CIDRs, all different.
    pub async fn all_have(&self, count: usize) -> BTreeMap<String, Vec<String>> {
        let what = format!("all nodes have {count} pod CIDRs");
        eventually(&what, || async { self.cidrs().await.values().all(|cidrs| cidrs.len() == count) }).await;
        let all = self.cidrs().await;
        let distinct: BTreeSet<&String> = all.values().flatten().collect();
        assert_eq!(distinct.len(), count * all.len(), "a CIDR was assigned twice: {all:?}");
        all
    }

    pub async fn wait_for_cidr(&self, name: &str) {
        eventually(&format!("{name} has a pod CIDR"), || async { !self.cidr_of(name).await.is_empty() })
            .await;
    }

    /// A node without its pod CIDRs and without the metadata that every change updates.
    pub async fn without_cidrs(&self, name: &str) -> Value {
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

    /// The notes of a node's events with a reason.
    pub async fn events(&self, name: &str, reason: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap();
        let of = |event: &Event| {
            event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name)
        };
        all.items.into_iter().filter(of).filter_map(|event| event.note).collect()
    }

    /// Waits for an event and returns its note.
    pub async fn wait_for_event(&self, name: &str, reason: &str) -> String {
        eventually(&format!("{name} has an event {reason}"), || async {
            !self.events(name, reason).await.is_empty()
        })
        .await;
        self.events(name, reason).await.remove(0)
    }

    /// The holder of the lease, or "".
    pub async fn leader(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let lease = leases.get_opt("podwire-controller").await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
    }

    /// Gives the lease to another holder for a minute.
    pub async fn set_leader(&self, holder: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let patch = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 60}});
        leases.patch("podwire-controller", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes all nodes, events and the lease.
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
