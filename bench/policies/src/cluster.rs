//! A cluster that is only said to be there: pods in 50 namespaces, and policies that are spread evenly over them.

use anyhow::{Context, Result};
use podwire_policy::Snapshot;
use podwire_policy_agent::{Kind, Update};
use serde_json::{json, Value};

/// The node that is measured.
pub const HERE: &str = "here";
const NAMESPACES: usize = 50;
/// Policies of one namespace name this many different sets of peers.
const PEERS: usize = 13;
/// The port that is measured. Of a pod's policies only the last allows it: all of them are asked.
pub const SERVICE: u16 = 8080;

/// Who asks and who answers: two pods of one namespace.
pub const SERVER: usize = 0;
pub const CLIENT: usize = NAMESPACES;
/// Whose label changes, and whose policy.
const LABELLED: usize = 1;
const RULED: usize = 3;

/// The address of a pod.
pub fn address(pod: usize) -> String {
    format!("10.9.{}.{}", pod / 250, 2 + pod % 250)
}

/// So many policies, so many pods on this node; all others are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub policies: usize,
    pub pods: usize,
    /// Pods of all nodes.
    pub everywhere: usize,
}

impl Cluster {
    /// All that a source tells at first.
    pub fn all(self) -> Result<Vec<Update>> {
        let pods = (0..self.everywhere).map(|pod| self.pod(pod, &self.app(pod)));
        let policies = (0..self.policies).map(|number| self.policy(number, 0));
        let mut told = vec![
            Update::Listed(Kind::Pod, objects(pods)?),
            Update::Listed(Kind::NetworkPolicy, objects(policies)?),
        ];
        for kind in [Kind::Namespace, Kind::Node, Kind::ClusterNetworkPolicy] {
            told.push(Update::Listed(kind, Snapshot::new()));
        }
        Ok(told)
    }

    fn pod(self, pod: usize, app: &str) -> Value {
        let node = if pod < self.pods || pod >= self.everywhere { HERE } else { "elsewhere" };
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("pod-{pod}"), "namespace": namespace(pod), "labels": { "app": app } },
            "spec": { "nodeName": node }, "status": { "podIPs": [{ "ip": address(pod) }] } })
    }

    /// A policy about the pod with its number, as many others are: both directions, peers of the same namespace, one port.
    fn policy(self, number: usize, version: usize) -> Value {
        let pod = number % self.everywhere;
        let is_last = number + self.everywhere >= self.policies;
        let port =
            if is_last { usize::from(SERVICE) } else { 10_000 + number / self.everywhere + 100 * version };
        let mut peers: Vec<String> =
            (0..self.everywhere / NAMESPACES).map(|kind| format!("a{kind}")).collect();
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
        format!("a{}", pod % self.everywhere / NAMESPACES)
    }

    /// What happens in a round, with the name under which it is told.
    pub fn events(self, round: usize) -> Result<Vec<(&'static str, Update)>> {
        let newcomer = self.pod(self.everywhere + round, &self.app(round));
        let mut events = vec![("a new pod", Update::Changed(objects([newcomer])?))];
        // Without policies a label changes nothing.
        if self.policies > RULED {
            let label = if round.is_multiple_of(2) { "other".into() } else { self.app(LABELLED) };
            events.push(("a label", Update::Changed(objects([self.pod(LABELLED, &label)])?)));
            events.push(("a policy", Update::Changed(objects([self.policy(RULED, 1 + round)])?)));
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
        snapshot.add(object).context("an object of the simulated cluster")?;
    }
    Ok(snapshot)
}
