//! A simulated cluster: pods in 50 namespaces, and policies distributed evenly over them.

use anyhow::{Context, Result};
use podwire_policy::Snapshot;
use podwire_policy_agent::{Kind, Update};
use serde_json::{json, Value};

/// The name of the measured node.
pub const NODE: &str = "here";
const NAMESPACES: usize = 50;
/// The policies of a namespace have this many different peer sets.
const PEERS: usize = 13;
/// The measured port. Only the last of a pod's policies allows it, so a packet passes all of them.
pub const SERVICE: u16 = 8080;

/// Two pods of one namespace.
pub const SERVER: usize = 0;
pub const CLIENT: usize = NAMESPACES;
/// The pod whose label changes, and the policy that changes.
const RELABELLED_POD: usize = 1;
const CHANGED_POLICY: usize = 3;

/// The address of a pod.
pub fn address(pod: usize) -> String {
    format!("10.9.{}.{}", pod / 250, 2 + pod % 250)
}

/// The size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub policies: usize,
    /// Pods on the measured node.
    pub pods: usize,
    /// Pods on all nodes.
    pub all_pods: usize,
}

impl Cluster {
    /// The initial list of a source.
    pub fn listed(self) -> Result<Vec<Update>> {
        let pods = (0..self.all_pods).map(|pod| self.pod(pod, &self.app(pod)));
        let policies = (0..self.policies).map(|number| self.policy(number, 0));
        let mut updates = vec![
            Update::Listed(Kind::Pod, objects(pods)?),
            Update::Listed(Kind::NetworkPolicy, objects(policies)?),
        ];
        for kind in [Kind::Namespace, Kind::Node, Kind::ClusterNetworkPolicy] {
            updates.push(Update::Listed(kind, Snapshot::new()));
        }
        Ok(updates)
    }

    fn pod(self, pod: usize, app: &str) -> Value {
        let node = if pod < self.pods || pod >= self.all_pods { NODE } else { "other" };
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("pod-{pod}"), "namespace": namespace(pod), "labels": { "app": app } },
            "spec": { "nodeName": node }, "status": { "podIPs": [{ "ip": address(pod) }] } })
    }

    /// A policy for the pod with its number: both directions, peers in the same namespace, one port.
    fn policy(self, number: usize, version: usize) -> Value {
        let pod = number % self.all_pods;
        let is_last = number + self.all_pods >= self.policies;
        let port =
            if is_last { usize::from(SERVICE) } else { 10_000 + number / self.all_pods + 100 * version };
        let mut peers: Vec<String> = (0..self.all_pods / NAMESPACES).map(|kind| format!("a{kind}")).collect();
        peers.push(format!("x{}", number % PEERS));
        let peers = json!([{ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": peers }] } }]);
        let mut ports = vec![json!({ "port": port })];
        if version > 0 {
            ports.push(json!({ "port": 20_000 + version }));
        }
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": format!("policy-{number}"), "namespace": namespace(pod) },
            "spec": { "podSelector": { "matchLabels": { "app": self.app(pod) } }, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": peers, "ports": ports }], "egress": [{ "to": peers, "ports": ports }] } })
    }

    /// A label that no other pod of its namespace has.
    fn app(self, pod: usize) -> String {
        format!("a{}", pod % self.all_pods / NAMESPACES)
    }

    /// The updates of a round, with their names in the report.
    pub fn events(self, round: usize) -> Result<Vec<(&'static str, Update)>> {
        let new_pod = self.pod(self.all_pods + round, &self.app(round));
        let mut events = vec![("a new pod", Update::Changed(objects([new_pod])?))];
        // Without policies a label changes nothing.
        if self.policies > CHANGED_POLICY {
            let label = if round.is_multiple_of(2) { "other".into() } else { self.app(RELABELLED_POD) };
            events.push(("a label", Update::Changed(objects([self.pod(RELABELLED_POD, &label)])?)));
            events.push(("a policy", Update::Changed(objects([self.policy(CHANGED_POLICY, 1 + round)])?)));
        }
        Ok(events)
    }
}

fn namespace(pod: usize) -> String {
    format!("n{}", pod % NAMESPACES)
}

fn objects(all: impl IntoIterator<Item = Value>) -> Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    for object in all {
        snapshot.add(object).context("object of the simulated cluster")?;
    }
    Ok(snapshot)
}
