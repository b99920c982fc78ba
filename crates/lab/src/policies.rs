//! Policies in a lab: a folder of files, as `kubectl apply` takes them. The pods that they describe are run, and every agent is
//! told all of it.
//!
//! A node's agent knows the addresses of its own pods only. In a cluster the API tells it of the others; here the lab does: it
//! writes what stands in the files, with the pods' addresses, where all agents read it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use podwire_policy::api::{Pod, PodIp};
use podwire_policy::Snapshot;
use podwire_policy_agent::PolicyFiles;
use serde_json::{json, Value};

use crate::machine::SHARED;
use crate::{Error, Lab, Result};

const FOLDER: &str = "policies";
const FILE: &str = "lab.json";
/// Agents need some milliseconds; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(40);

/// What was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// How many policies there are.
    pub policies: usize,
    /// The pods that the files describe.
    pub pods: Vec<String>,
    /// How long it took until all agents enforced it.
    pub took: Duration,
}

/// What stands in the files.
struct Described {
    /// Those that have a network of their own, to be run.
    pods: Vec<Pod>,
    policies: usize,
    /// Everything but those pods.
    others: Vec<Value>,
}

/// Where agents find policies.
pub(crate) fn source() -> String {
    format!("files:{SHARED}/{FOLDER}")
}

impl Lab {
    /// Reads the files again, runs pods that they describe and that are not there, and waits until every agent enforces what
    /// they say.
    pub fn apply(&mut self) -> Result<Applied> {
        let described = self.described()?.ok_or_else(|| {
            let hint = "make one with podwire lab up --policies FOLDER";
            Error::input(format!("lab {} has no policies", self.state.plan.name), hint)
        })?;
        self.settle_pods(&described)?;
        let mut there = self.pod_addresses()?;
        let missing = |pod: &&String| !there.contains_key(*pod);
        let missing: Vec<String> = self.state.settled.keys().filter(missing).cloned().collect();
        if !missing.is_empty() {
            self.run_settled(&missing)?;
            there = self.pod_addresses()?;
        }
        let took = self.publish(&described, &there)?;
        let pods = described.pods.iter().map(Pod::full_name).collect();
        Ok(Applied { policies: described.policies, pods, took })
    }

    /// Before anything is made: whether the files make sense, and where their pods are to run. Agents find all but addresses.
    pub(crate) fn prepare_policies(&mut self) -> Result<()> {
        let Some(described) = self.described()? else { return Ok(()) };
        self.settle_pods(&described)?;
        let folder = self.home.shared().join(FOLDER);
        fs::create_dir_all(&folder).map_err(Error::file("make folder", &folder))?;
        self.write(&described, &BTreeMap::new()).map(drop)
    }

    /// Pods were run: all agents hear of their addresses.
    pub(crate) fn publish_pods(&self) -> Result<()> {
        match self.described()? {
            Some(described) => self.publish(&described, &self.pod_addresses()?).map(drop),
            None => Ok(()),
        }
    }

    fn described(&self) -> Result<Option<Described>> {
        let Some(folder) = &self.state.plan.policies else { return Ok(None) };
        let wrong = |error: &dyn std::fmt::Display| Error::input(error.to_string(), "");
        // All of it as the agents would read it: what makes no sense is told here, and changes nothing.
        let files = PolicyFiles::new(folder);
        let all = files.read().map_err(|error| wrong(&error))?;
        let mut described = Described {
            pods: Vec::new(),
            policies: all.network_policies.len() + all.cluster_network_policies.len(),
            others: Vec::new(),
        };
        for object in files.documents().map_err(|error| wrong(&error))?.into_iter().flat_map(objects) {
            let mut alone = Snapshot::new();
            alone.add(object.clone()).map_err(|error| wrong(&error))?;
            match alone.pods.pop().filter(Pod::has_pod_network) {
                Some(pod) => described.pods.push(pod),
                None => described.others.push(object),
            }
        }
        Ok(Some(described))
    }

    /// Each pod has a node: that of the lab's own pod whose labels it tells, the one that it names, the one where it is, or the
    /// next in turn.
    fn settle_pods(&mut self, described: &Described) -> Result<()> {
        let nodes: Vec<String> = self.state.plan.node_names().collect();
        let mut settled = BTreeMap::new();
        for (number, pod) in described.pods.iter().enumerate() {
            let (name, named) = (pod.full_name(), &pod.spec.node_name);
            if !named.is_empty() && !nodes.contains(named) {
                let hint =
                    format!("the lab's nodes are {}; a pod that names none is given one", nodes.join(", "));
                return Err(Error::input(format!("pod {name} is for node {named:?}"), hint));
            }
            let node = match (self.plan().node_of(&name), self.state.settled.get(&name)) {
                (Some(node), _) => node,
                (None, _) if !named.is_empty() => named.clone(),
                (None, Some(there)) => there.clone(),
                (None, None) => nodes[number % nodes.len()].clone(),
            };
            settled.insert(name, node);
        }
        self.state.settled = settled;
        self.save()
    }

    /// The pods of the files that run on a node, besides the lab's own.
    pub(crate) fn settled_on(&self, node: &str) -> Vec<String> {
        let is_own = |pod: &str| self.plan().node_of(pod).is_some();
        let there = self.state.settled.iter().filter(|(pod, its)| *its == node && !is_own(pod));
        there.map(|(pod, _)| pod.clone()).collect()
    }

    fn run_settled(&self, pods: &[String]) -> Result<()> {
        let on = |node: &String| {
            let here = self.settled_on(node).into_iter().filter(|pod| pods.contains(pod)).collect();
            (node.clone(), here)
        };
        self.run(self.nodes().iter().map(on).collect())
    }

    /// The addresses of all pods, by `namespace/name`.
    fn pod_addresses(&self) -> Result<BTreeMap<String, Vec<PodIp>>> {
        let mut all = BTreeMap::new();
        for (_, pods) in self.list_pods() {
            for pod in pods? {
                let ips = pod.status.ips.iter().map(|ip| PodIp { ip: *ip }).collect();
                all.insert(pod.full_name, ips);
            }
        }
        Ok(all)
    }

    /// Writes all of it with the pods' addresses, and waits until it is enforced.
    fn publish(&self, described: &Described, addresses: &BTreeMap<String, Vec<PodIp>>) -> Result<Duration> {
        let written = self.write(described, addresses)?;
        self.wait_until_none(PATIENCE, |lab| {
            let behind = |node: &&String| lab.word(node).is_none_or(|word| word.policies_as_of < written);
            let node = lab.state.agents.keys().find(behind)?;
            Some(format!("{node}: its agent does not enforce the policies: {}", lab.home.last_words(node)))
        })
    }

    /// In one step; returns when that was, as agents tell it.
    fn write(&self, described: &Described, addresses: &BTreeMap<String, Vec<PodIp>>) -> Result<String> {
        let mut pods = described.pods.clone();
        for pod in &mut pods {
            let name = pod.full_name();
            pod.spec.node_name = self.state.settled.get(&name).cloned().unwrap_or_default();
            pod.status.pod_ip = None;
            pod.status.pod_ips = addresses.get(&name).cloned().unwrap_or_default();
        }
        let known = |name: &String| pods.iter().any(|pod| pod.full_name() == *name);
        let strangers = addresses.iter().filter(|(name, _)| !known(name)).map(|(name, ips)| {
            let (namespace, name) = name.split_once('/').unwrap_or_default();
            json!({ "metadata": { "namespace": namespace, "name": name }, "status": { "podIPs": ips } })
        });
        let pods = pods.iter().map(|pod| json!(pod)).chain(strangers).map(|mut pod| {
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod
        });
        let items: Vec<Value> = described.others.iter().cloned().chain(pods).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let (draft, folder) = (self.home.shared().join(".policies.json"), self.home.shared().join(FOLDER));
        let path: PathBuf = folder.join(FILE);
        let written = fs::write(&draft, list.to_string()).and_then(|()| fs::rename(&draft, &path));
        written.map_err(Error::file("write", &path))?;
        Ok(PolicyFiles::new(&folder).last_modified().map(podwire_policy_agent::timestamp).unwrap_or_default())
    }
}

/// The objects of a document: a list is many.
fn objects(document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document.get("items").and_then(Value::as_array) {
        Some(items) if is_list => items.iter().cloned().flat_map(objects).collect(),
        _ => vec![document],
    }
}
