//! Policies in a lab: a directory of files, as for `kubectl apply`. The lab runs the pods in the files.
//!
//! An agent knows the addresses of its own pods only. In a cluster the API server has the addresses of the others. Here the
//! lab writes all objects of the files, with the addresses of the pods, to a shared file that every agent reads.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use podwire_fs::FileError;
use podwire_policy::api::{Pod, PodIp};
use podwire_policy::{Snapshot, Warning};
use podwire_policy_agent::PolicyFiles;
use serde_json::{json, Value};

use crate::files::LabFiles;
use crate::machine::SHARED;
use crate::{Error, Lab, LabSpec, Result};

const DIR: &str = "policies";
const FILE: &str = "lab.json";
/// Generous, for a busy machine: agents need some milliseconds.
const TIMEOUT: Duration = Duration::from_secs(40);

/// The result of applying files.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The number of policies.
    pub policies: usize,
    /// The number of Services.
    pub services: usize,
    /// The pods in the files.
    pub pods: Vec<String>,
    /// The time until all agents enforced the policies and served the Services.
    pub took: Duration,
    /// Warnings about the policies.
    pub warnings: Vec<Warning>,
}

/// The value of the agents' flag --policy.
pub(crate) fn source() -> String {
    format!("files:{SHARED}/{DIR}")
}

impl Lab {
    /// Reads the files again, runs their new pods, and waits until every agent enforces the policies and serves the
    /// Services.
    pub fn apply(&mut self) -> Result<Applied> {
        let files = LabFiles::read(&self.state.spec)?.ok_or_else(|| {
            let hint = "start a lab with `podwire lab up --policies DIR` or `podwire lab up --services DIR`";
            Error::input(format!("lab {} has no policies and no Services", self.state.spec.name), hint)
        })?;
        self.assign_nodes(&files)?;
        self.allocate_services(&files)?;
        let mut addresses = self.pod_addresses()?;
        let missing = |pod: &&String| !addresses.contains_key(*pod);
        let missing: Vec<String> = self.state.pod_nodes.keys().filter(missing).cloned().collect();
        if !missing.is_empty() {
            self.run_file_pods(&missing)?;
            addresses = self.pod_addresses()?;
        }
        let took = self.publish(&files, &addresses)?;
        let pods = files.pods.iter().map(Pod::full_name).collect();
        Ok(Applied {
            policies: files.policies,
            services: files.services.iter().filter(|object| object["kind"] == "Service").count(),
            pods,
            took,
            warnings: self.policy_warnings()?,
        })
    }

    /// Checks the files before anything is created, assigns nodes to their pods, and writes the objects for the agents,
    /// without addresses.
    pub(crate) fn prepare_files(&mut self) -> Result<()> {
        let Some(files) = LabFiles::read(&self.state.spec)? else { return Ok(()) };
        self.assign_nodes(&files)?;
        self.allocate_services(&files)?;
        if self.state.spec.services.is_some() {
            self.write_services(&files, &BTreeMap::new())?;
        }
        if self.state.spec.policies.is_some() {
            let dir = self.directory.shared().join(DIR);
            fs::create_dir_all(&dir).map_err(FileError::at("create directory", &dir))?;
            self.write_objects(&files, &BTreeMap::new())?;
        }
        Ok(())
    }

    /// The warnings about the policies that the agents read; none if the lab has no policies.
    pub fn policy_warnings(&self) -> Result<Vec<Warning>> {
        if self.state.spec.policies.is_none() {
            return Ok(Vec::new());
        }
        let source = PolicyFiles::new(self.directory.shared().join(DIR));
        let objects = source.read().map_err(|error| Error::input(error.to_string(), ""))?;
        Ok(podwire_policy::compile(&objects, None).warnings)
    }

    /// Publishes the addresses of newly started pods to all agents.
    pub(crate) fn publish_pods(&self) -> Result<()> {
        match LabFiles::read(&self.state.spec)? {
            Some(files) => self.publish(&files, &self.pod_addresses()?).map(drop),
            None => Ok(()),
        }
    }

    /// Assigns a node to each pod of the files: that of the lab's own pod with this name, the one that the pod names, the
    /// current one, or the next in turn.
    fn assign_nodes(&mut self, files: &LabFiles) -> Result<()> {
        let nodes: Vec<String> = self.state.spec.node_names().collect();
        let mut pod_nodes = BTreeMap::new();
        for (number, pod) in files.pods.iter().enumerate() {
            let (name, named) = (pod.full_name(), &pod.spec.node_name);
            if !named.is_empty() && !nodes.contains(named) {
                let hint =
                    format!("the nodes are {}; remove nodeName to let the lab choose", nodes.join(", "));
                return Err(Error::input(format!("pod {name} names the unknown node {named:?}"), hint));
            }
            let node = match (self.spec().node_of(&name), self.state.pod_nodes.get(&name)) {
                (Some(node), _) => node,
                (None, _) if !named.is_empty() => named.clone(),
                (None, Some(current)) => current.clone(),
                (None, None) => nodes[number % nodes.len()].clone(),
            };
            pod_nodes.insert(name, node);
        }
        self.state.pod_nodes = pod_nodes;
        self.save()
    }

    /// The pods of the files on a node, without the lab's own pods.
    pub(crate) fn file_pods_on(&self, node: &str) -> Vec<String> {
        let is_own = |pod: &str| self.spec().node_of(pod).is_some();
        let pods = self.state.pod_nodes.iter().filter(|(pod, on)| *on == node && !is_own(pod));
        pods.map(|(pod, _)| pod.clone()).collect()
    }

    fn run_file_pods(&self, pods: &[String]) -> Result<()> {
        let on = |node: &String| {
            let here = self.file_pods_on(node).into_iter().filter(|pod| pods.contains(pod)).collect();
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

    /// Writes the objects with the addresses of the pods, and waits until all agents enforce and serve them.
    fn publish(&self, files: &LabFiles, addresses: &BTreeMap<String, Vec<PodIp>>) -> Result<Duration> {
        let LabSpec { policies, services, .. } = &self.state.spec;
        let mut took = Duration::ZERO;
        if policies.is_some() {
            took += self.publish_policies(files, addresses)?;
        }
        if services.is_some() {
            took += self.publish_services(files, addresses)?;
        }
        Ok(took)
    }

    fn publish_policies(
        &self,
        files: &LabFiles,
        addresses: &BTreeMap<String, Vec<PodIp>>,
    ) -> Result<Duration> {
        let written = self.write_objects(files, addresses)?;
        self.wait_until_none(TIMEOUT, |lab| {
            let as_of = |node: &str| lab.agent_status(node)?.policies?.as_of;
            let behind = |node: &&String| as_of(node).is_none_or(|as_of| as_of < written);
            let node = lab.state.agents.keys().find(behind)?;
            let log = lab.directory.log_tail(node);
            Some(format!("{node}: the agent does not enforce the policies: {log}"))
        })
    }

    /// The objects that the agents read, with the addresses of the pods.
    pub(crate) fn published_objects(&self) -> Result<Option<Snapshot>> {
        if self.state.spec.policies.is_none() {
            return Ok(None);
        }
        let path = self.directory.shared().join(DIR).join(FILE);
        let bytes = fs::read(&path).map_err(FileError::at("read", &path))?;
        let invalid =
            |why: String| Error::input(format!("{}: {why}", path.display()), "run `podwire lab apply`");
        let list: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        let mut snapshot = Snapshot::new();
        snapshot.add(list).map_err(|error| invalid(error.to_string()))?;
        Ok(Some(snapshot))
    }

    /// Writes the objects in one step. Returns the time of the change, in the format of `asOf` in the status of agents.
    fn write_objects(&self, files: &LabFiles, addresses: &BTreeMap<String, Vec<PodIp>>) -> Result<String> {
        let mut pods = files.pods.clone();
        for pod in &mut pods {
            let name = pod.full_name();
            pod.spec.node_name = self.state.pod_nodes.get(&name).cloned().unwrap_or_default();
            pod.status.pod_ip = None;
            pod.status.pod_ips = addresses.get(&name).cloned().unwrap_or_default();
        }
        let known = |name: &String| pods.iter().any(|pod| pod.full_name() == *name);
        let other_pods = addresses.iter().filter(|(name, _)| !known(name)).map(|(name, ips)| {
            let (namespace, name) = name.split_once('/').unwrap_or_default();
            json!({ "metadata": { "namespace": namespace, "name": name }, "status": { "podIPs": ips } })
        });
        let pods = pods.iter().map(|pod| json!(pod)).chain(other_pods).map(|mut pod| {
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod
        });
        let items: Vec<Value> = files.others.iter().cloned().chain(pods).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let dir = self.directory.shared().join(DIR);
        let path = dir.join(FILE);
        // Not podwire_fs::replace: agents read every file of the directory, so the temporary file must be outside.
        let temporary = self.directory.shared().join(".policies.json");
        let written = fs::write(&temporary, list.to_string()).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(FileError::at("write", &path))?;
        Ok(PolicyFiles::new(&dir).last_modified().map(podwire_policy_agent::timestamp).unwrap_or_default())
    }
}
