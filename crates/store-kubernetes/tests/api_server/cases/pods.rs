//! Cases about pods: the endpoints in their annotations, and what is known of them before ADD.

use podwire_agent_ipc::pods::Cluster;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore, Pods};
use podwire_test_servers::KubeApiServer;
use serde_json::{json, Value};

use super::{open, path, HANDLE};

pub(super) fn an_endpoint_is_read_from_its_pod(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let pod = server.create_pod("shop", "web-1", "node-1", json!({"theirs": "stays"}));
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--1-k8s-web--1-eth0";
    let annotations = || {
        let pod = server.request("GET", "/api/v1/namespaces/shop/pods/web-1", None).unwrap();
        pod["metadata"]["annotations"].clone()
    };
    let empty = store.get(key).unwrap().unwrap();
    let read = |value: &[u8]| -> Value { serde_json::from_slice(value).unwrap() };
    assert_eq!(read(&empty.value)["spec"]["node"], "node-1");
    assert_eq!(read(&empty.value)["spec"]["containerID"], "");
    let value = |container: &str, uid: &Value| {
        let spec = json!({"containerID": container, "ipNetworks": ["10.244.1.5/32", "fd00::5/128"]});
        json!({"metadata": {"uid": uid}, "spec": spec}).to_string().into_bytes()
    };
    let uid = &pod["metadata"]["uid"];
    let written = store.update(key, &value("4711", uid), empty.revision).unwrap();
    let expected = json!({
        "theirs": "stays", "cni.projectcalico.org/containerID": "4711",
        "cni.projectcalico.org/podIP": "10.244.1.5/32",
        "cni.projectcalico.org/podIPs": "10.244.1.5/32,fd00::5/128",
    });
    assert_eq!(annotations(), expected);
    let there = store.get(key).unwrap().unwrap();
    assert_eq!(there.revision, written);
    assert_eq!(read(&there.value)["spec"]["ipNetworks"], json!(["10.244.1.5/32", "fd00::5/128"]));
    let late = store.update(key, &value("4712", uid), empty.revision).unwrap_err();
    assert_eq!(late, StoreError::Changed { key: key.into() });
    let other = store.update(key, &value("4712", &json!("another")), written).unwrap_err();
    assert_eq!(other, StoreError::Missing { key: key.into() }, "another pod had that name");
    store.delete(key, written).unwrap();
    assert_eq!(annotations()["cni.projectcalico.org/podIP"], "");
    assert_eq!(annotations()["cni.projectcalico.org/podIPs"], "");
    assert_eq!(annotations()["cni.projectcalico.org/containerID"], "4711");
    server.delete_pod("shop", "web-1");
    assert_eq!(store.get(key).unwrap(), None);
    let gone = StoreError::Missing { key: key.into() };
    assert_eq!(store.create(key, &value("4713", uid)), Err(gone.clone()));
    assert_eq!(store.update(key, &value("4713", uid), written), Err(gone));
    assert!(store.list("/calico/resources/v3/projectcalico.org/workloadendpoints/").unwrap().is_empty());
}

pub(super) fn an_endpoint_is_written_without_a_read(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let pod = server.create_pod("shop", "web-2", "node-1", json!({"theirs": "stays"}));
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--1-k8s-web--2-eth0";
    let addresses = || {
        let pod = server.request("GET", "/api/v1/namespaces/shop/pods/web-2", None).unwrap();
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["theirs"], "stays");
        annotations["cni.projectcalico.org/podIPs"].as_str().unwrap_or("none").to_owned()
    };
    let value = |uid: &str| {
        let spec = json!({"containerID": "4711", "ipNetworks": ["10.244.1.5/32", "fd00::5/128"]});
        json!({"metadata": {"uid": uid}, "spec": spec}).to_string().into_bytes()
    };
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let reads = || server.core_requests("GET", "pods");
    let before = reads();
    assert!(!store.withdraw_without_read(key, "4711").unwrap(), "nothing was published");
    assert!(!store.publish_without_read(key, &value("another")).unwrap(), "another pod has the name");
    assert!(store.publish_without_read(key, &value(uid)).unwrap());
    assert_eq!(reads(), before);
    assert_eq!(addresses(), "10.244.1.5/32,fd00::5/128");
    let before = reads();
    assert!(!store.withdraw_without_read(key, "4710").unwrap(), "a later container has the addresses");
    assert_eq!(reads(), before);
    assert_eq!(addresses(), "10.244.1.5/32,fd00::5/128");
    assert!(store.withdraw_without_read(key, "4711").unwrap());
    assert_eq!(addresses(), "");
    server.delete_pod("shop", "web-2");
    assert!(
        store.publish_without_read(key, &value(uid)).unwrap()
            && store.withdraw_without_read(key, "4711").unwrap()
    );
    // Objects that no pod has are read before each write.
    assert!(
        !store.publish_without_read(HANDLE, b"{}").unwrap()
            && !store.withdraw_without_read(HANDLE, "4711").unwrap()
    );
}

/// An agent looks for Calico once: that is one request, however many pods there are.
pub(super) fn endpoints_are_for_calico(server: &mut KubeApiServer) {
    for group in [ApiGroup::V1, ApiGroup::V3] {
        let (lone, after) = (open(server, group), open(server, group));
        assert!(!lone.has_endpoint_readers());
        let information = json!({
            "apiVersion": group.name(), "kind": "ClusterInformation", "metadata": {"name": "default"},
            "spec": {"datastoreReady": true},
        });
        let collection = path(group, "clusterinformations");
        server.request("POST", &collection, Some(&information)).unwrap();
        let looks = || server.calico_requests().remove("GET clusterinformations").unwrap_or(0);
        let before = looks();
        assert!(after.has_endpoint_readers() && after.has_endpoint_readers() && !lone.has_endpoint_readers());
        assert_eq!(looks(), before + 1);
        // Without the right to look, Calico may be there.
        let stranger = KubernetesStore::connect(Some(&server.kubeconfig("stranger")), Some(group)).unwrap();
        assert!(stranger.has_endpoint_readers());
        server.request("DELETE", &format!("{collection}/default"), None).unwrap();
    }
}

fn pods(server: &KubeApiServer) -> Pods {
    Pods::connect(Some(&server.kubeconfig("podwire"))).unwrap()
}

pub(super) fn a_nodes_pods_are_known_without_requests(server: &mut KubeApiServer) {
    let annotations = json!({"cni.projectcalico.org/hwAddr": "1c:0c:0a:c0:ff:ee", "else": "not ours"});
    let made = server.create_pod("shop", "known", "node1", annotations);
    let node = json!({"metadata": {"name": "node1"}, "spec": {"podCIDRs": ["10.244.7.0/24"], "podCIDR": "10.244.7.0/24"}});
    server.request("POST", "/api/v1/nodes", Some(&node)).unwrap();
    let pods = pods(server);
    pods.follow("node1").unwrap();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    // It is followed when nothing is asked for any more.
    server.until("the pod is known", || {
        let before = (
            server.core_requests("GET", "pods"),
            server.core_requests("GET", "namespaces"),
            server.core_requests("GET", "nodes"),
        );
        let pod = pods.pod("shop", "known", uid).unwrap();
        assert_eq!(pod.annotations.keys().collect::<Vec<_>>(), ["cni.projectcalico.org/hwAddr"]);
        assert_eq!((pod.uid.as_str(), pod.service_account.as_str(), pod.ports.len()), (uid, "default", 1));
        assert_eq!(pods.pod_cidrs("node1").unwrap(), ["10.244.7.0/24".parse().unwrap()]);
        before
            == (
                server.core_requests("GET", "pods"),
                server.core_requests("GET", "namespaces"),
                server.core_requests("GET", "nodes"),
            )
    });
    let pools = json!({"metadata": {
        "annotations": {"cni.projectcalico.org/ipv4pools": "[\"a\"]"}, "labels": {"team": "red"},
    }});
    server.patch("/api/v1/namespaces/shop", &pools);
    server.until("the namespace's annotations are known", || {
        let pod = pods.pod("shop", "known", uid).unwrap();
        pod.namespace_annotations.contains_key("cni.projectcalico.org/ipv4pools")
            && pods.namespace_labels("shop").unwrap().get("team").map(String::as_str) == Some("red")
    });
    // Another pod with the same name, on the same node.
    server.delete_pod("shop", "known");
    let made = server.create_pod("shop", "known", "node1", json!({}));
    let later = made["metadata"]["uid"].as_str().unwrap();
    assert_eq!(pods.pod("shop", "known", later).unwrap().annotations.len(), 0, "the new one, at once");
    let error = pods.pod("shop", "known", uid).unwrap_err();
    assert!(error.contains(later), "{error}");
    server.delete_pod("shop", "known");
    server.request("DELETE", "/api/v1/nodes/node1", None).unwrap();
}

pub(super) fn an_unknown_pod_is_read(server: &mut KubeApiServer) {
    server.create_pod("shop", "stray", "node2", json!({"cni.projectcalico.org/ipAddrs": "[]"}));
    let known = pods(server);
    assert_eq!(known.pod("shop", "stray", "").unwrap().annotations.len(), 1);
    let error = known.pod("shop", "unknown", "").unwrap_err();
    assert!(error.contains("not found"), "{error}");
    let error = known.pod_cidrs("nowhere").unwrap_err();
    assert!(error.contains("not found"), "{error}");
    let stranger = Pods::connect(Some(&server.kubeconfig("stranger"))).unwrap();
    let error = stranger.pod("shop", "stray", "").unwrap_err();
    assert!(error.contains("forbidden"), "{error}");
    server.delete_pod("shop", "stray");
}
