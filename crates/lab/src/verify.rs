//! Tests the Kubernetes network model with packets: every pod and every node sends to every pod.
//!
//! What should run and does not is in the report, and the others are probed. In a lab with policies, the oracle says which
//! packets policies deny.

use std::collections::HashMap;
use std::time::Duration;

use podwire_policy::Snapshot;
use podwire_verify::{Endpoint, Kind, Missing, Options, Progress, Protocol, Report};
use serde_json::json;

use crate::pods::Pod;
use crate::{Error, Lab, Result};

/// The pods and nodes of a lab.
#[derive(Default)]
struct Population {
    endpoints: Vec<Endpoint>,
    /// Those that cannot be probed.
    missing: Vec<Missing>,
    /// The node of each pod, by `namespace/name`.
    nodes: HashMap<String, String>,
}

impl Lab {
    /// Tests all pairs with all protocols. Calls `watch` after the probes of each pair.
    pub fn verify(&self, timeout: Duration, watch: &(dyn Fn(Progress) + Sync)) -> Result<Report> {
        self.send_packets(Options { timeout, nodes_too: false, ..Options::default() }, watch)
    }

    /// Tests all pairs with ICMP only, which is faster.
    pub(crate) fn ping_all(&self, timeout: Duration) -> Result<Report> {
        let protocols = &[Protocol::Icmp];
        let options = Options { timeout, nodes_too: false, protocols, ..Options::default() };
        self.send_packets(options, &|_| {})
    }

    fn send_packets(&self, options: Options, watch: &(dyn Fn(Progress) + Sync)) -> Result<Report> {
        let population = self.population();
        let policies = self.policies(&population)?;
        let mut report = podwire_verify::verify_with(&population.endpoints, &[], options, watch)?;
        report.missing.extend(population.missing);
        report.apply_policies(|_| policies.as_ref());
        Ok(report)
    }

    /// Every node of the lab and its pods.
    fn population(&self) -> Population {
        let mut population = Population::default();
        let mut listed: HashMap<_, _> = self.list_pods().into_iter().collect();
        for node in self.state.spec.node_names() {
            let runs = self.process(&node).is_ok();
            for pod in self.pods_of(&node, listed.remove(&node).unwrap_or_else(|| Ok(Vec::new()))) {
                population.nodes.insert(pod.full_name.clone(), node.clone());
                match pod.problem.as_ref().filter(|_| !runs) {
                    Some(_) => {
                        population.lacks(&pod.status.name, Kind::Pod, format!("its node {node} does not run"))
                    }
                    None => population.add_pod(pod),
                }
            }
            match self.node_endpoint(&node) {
                Ok(endpoint) => population.endpoints.push(endpoint),
                Err(error) => population.lacks(&node, Kind::Node, error.to_string()),
            }
        }
        population
    }

    fn node_endpoint(&self, node: &str) -> Result<Endpoint> {
        Ok(Endpoint::node(node, self.netns(node)?, self.uplink(node)?.ips())?)
    }

    /// The policies that the agents enforce, with the pods' addresses and nodes.
    fn policies(&self, population: &Population) -> Result<Option<Snapshot>> {
        let Some(mut snapshot) = self.published_objects()? else { return Ok(None) };
        for pod in &mut snapshot.pods {
            let node = population.nodes.get(&pod.full_name()).cloned();
            pod.spec.node_name = node.unwrap_or_else(|| std::mem::take(&mut pod.spec.node_name));
        }
        // A policy never applies between a pod and its node, by any address of the node.
        snapshot.nodes.retain(|one| !population.endpoints.iter().any(|node| node.name == one.metadata.name));
        for node in population.endpoints.iter().filter(|one| one.kind == Kind::Node) {
            let address = |ip| json!({ "type": "InternalIP", "address": ip });
            let addresses: Vec<_> = node.own.iter().map(|own| address(own.ip)).collect();
            let node = json!({ "metadata": { "name": node.name }, "status": { "addresses": addresses } });
            let node = serde_json::from_value(node).map_err(|error| Error::input(error.to_string(), ""))?;
            snapshot.nodes.push(node);
        }
        Ok(Some(snapshot))
    }
}

impl Population {
    fn lacks(&mut self, name: &str, kind: Kind, reason: String) {
        self.missing.push(Missing::new(name, kind, reason));
    }

    fn add_pod(&mut self, pod: Pod) {
        let name = pod.status.name;
        let Some(netns) = pod.netns else {
            return self.lacks(&name, Kind::Pod, pod.problem.unwrap_or_else(|| "it has no namespace".into()));
        };
        match Endpoint::pod(&name, netns, &[]) {
            Ok(endpoint) => {
                // The endpoint reports itself if it has no usable address at all.
                let problem = pod.problem.filter(|_| endpoint.missing.is_empty());
                self.endpoints.push(endpoint);
                self.missing.extend(problem.map(|why| Missing::new(&name, Kind::Pod, why)));
            }
            Err(error) => self.lacks(&name, Kind::Pod, pod.problem.unwrap_or_else(|| error.to_string())),
        }
    }
}
