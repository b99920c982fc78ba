//! Pods with a web server, and checks whether they reach each other.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{json, Value};

use crate::{metrics, Cluster, Machine};

/// The page of a pod: the address of the client.
const SERVE: &str = "mkdir -p /www/cgi-bin && cd /www/cgi-bin && echo '#!/bin/sh
echo; echo $REMOTE_ADDR' > who && chmod +x who && exec httpd -f -p 0.0.0.0:8080 -h /www";

/// Creates pods, spread evenly over the nodes.
pub fn web(replicas: u8) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"app": "web"}},
                    }],
                    "containers": [{
                        "name": "web", "image": podwire_runtime_tests::image::BOX, "command": ["sh", "-c", SERVE],
                        "readinessProbe": {
                            "httpGet": {"path": "/cgi-bin/who", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10,
                        },
                    }],
                },
            },
        },
    })
}

/// A pod with a web server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    /// Its node's name.
    pub node: String,
    /// Its address.
    pub address: String,
    /// Its container id, as Kubernetes shows it.
    pub container: String,
    /// Its name.
    pub name: String,
}

/// The pods, if there are exactly this many, all are ready, and none is being deleted.
pub fn served(cluster: &Cluster, count: usize) -> Option<Vec<Served>> {
    let pods = cluster.api.pods("default", "app=web");
    let mut all = pods.iter().map(read).collect::<Option<Vec<Served>>>()?;
    all.sort();
    (all.len() == count).then_some(all)
}

fn read(pod: &Pod) -> Option<Served> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let container = status.container_statuses.as_ref()?.first()?;
    (container.ready && pod.metadata.deletion_timestamp.is_none()).then_some(())?;
    Some(Served {
        node: spec.node_name.clone()?,
        address: status.pod_ip.clone()?,
        container: container.container_id.clone()?,
        name: pod.metadata.name.clone()?,
    })
}

/// The nodes of the pods.
pub fn nodes_of(pods: &[Served]) -> BTreeSet<&str> {
    pods.iter().map(|pod| pod.node.as_str()).collect()
}

/// Each pod sends a request to each pod, which returns the client's address: it must be the sender's pod address.
pub fn all_reach_all(cluster: &Cluster, machines: &[Machine], pods: &[Served]) {
    for asker in pods {
        let machine = machines.iter().find(|machine| machine.name == asker.node).expect("its node");
        for asked in pods {
            let script = format!("timeout 5 wget -qO- http://{}:8080/cgi-bin/who", asked.address);
            let what =
                format!("{} on {} asks {} on {}", asker.address, asker.node, asked.address, asked.node);
            let seen = cluster.wait(&what, || {
                let answer = machine.exec(&asker.container, &script);
                (answer.status == 0).then_some(answer.stdout)
            });
            assert_eq!(seen.trim(), asker.address, "{what}, and is seen at another address");
        }
    }
}

/// A policy denies all connections between pods, on one node and between nodes, and probes of kubelet still pass.
/// Without the policy all connections are allowed again.
pub fn kept_apart(cluster: &Cluster, machines: &[Machine], pods: &[Served]) {
    let closed = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
    });
    cluster.api.apply(std::slice::from_ref(&closed));
    for asker in pods {
        let machine = machines.iter().find(|machine| machine.name == asker.node).expect("its node");
        for asked in pods.iter().filter(|asked| asked.address != asker.address) {
            let script = format!("timeout 2 wget -qO- http://{}:8080/cgi-bin/who", asked.address);
            let what = format!("{} does not reach {}", asker.address, asked.address);
            cluster.wait(&what, || (machine.exec(&asker.container, &script).status != 0).then_some(()));
        }
    }
    cluster.wait("kubelet's probes pass", || served(cluster, pods.len()));
    for machine in machines.iter().filter(|machine| nodes_of(pods).contains(machine.name.as_str())) {
        metrics::drops_are_counted(cluster, machine);
    }
    cluster.api.delete(&[closed]);
    all_reach_all(cluster, machines, pods);
}

/// The kernel's values of the sysctls that kubelet would write.
pub fn kernel() -> String {
    let keys = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];
    keys.map(|key| std::fs::read_to_string(format!("/proc/sys/{key}")).unwrap_or_default()).concat()
}

/// A node loses its power and boots with its disk and nothing else. There are six pods, some of them on this node.
pub fn reboot(cluster: &Cluster, machines: &mut Vec<Machine>, rebooted: usize) {
    let before = cluster.wait("all pods", || served(cluster, 6));
    let machine = cluster.reboot(machines.remove(rebooted));
    let name = machine.name.clone();
    machines.insert(rebooted, machine);
    let machine = &machines[rebooted];
    cluster.wait(&format!("the agent of {name} is back"), || machine.agent_is_ready().then_some(()));
    let after = cluster.wait("its pods run again", || {
        let is_new =
            |pod: &&Served| pod.node == name && before.iter().all(|old| old.container != pod.container);
        let had = before.iter().filter(|pod| pod.node == name).count();
        served(cluster, 6).filter(|pods| pods.iter().filter(is_new).count() >= had)
    });
    all_reach_all(cluster, machines, &after);
}
