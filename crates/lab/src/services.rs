//! Services in a lab: a directory of files, as for `kubectl apply`. The lab does what the control plane of a cluster does:
//! it [allocates](crate::service_addresses) addresses, makes [slices](crate::service_slices) from the labels of its pods, and
//! describes its nodes. Every agent reads the result in a shared file.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use podwire_fs::FileError;
use podwire_policy::api::PodIp;
use podwire_services::{
    dataplane, ClaimKind, Compiler, Decision, Desired, Kind, NodeInput, ObjectName, PortDecisions,
    ServiceDetails,
};
use serde::Serialize;
use serde_json::{json, Value};

use crate::files::LabFiles;
use crate::machine::SHARED;
use crate::service_addresses::{service_cidr, Allocation};
use crate::service_slices::{slices, Cluster};
use crate::{Error, Lab, Result};

const DIR: &str = "services";
const FILE: &str = "lab.json";
/// Generous, for a busy machine: agents need some milliseconds.
const TIMEOUT: Duration = Duration::from_secs(40);

/// A Service of a lab.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabService {
    /// `namespace/name`.
    pub name: String,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// All addresses except those of nodes.
    #[serde(rename = "ips")]
    pub addresses: Vec<IpAddr>,
    /// The ports as kubectl writes them: `80/TCP`, `80:30080/TCP`.
    #[serde(rename = "servicePorts")]
    pub ports: Vec<String>,
    /// The number of endpoints that get connections, of the port that has the most.
    pub endpoints: usize,
    /// Mistakes in the Service and its slices.
    pub problems: Vec<String>,
}

/// The value of the agents' flag --services.
pub(crate) fn source() -> String {
    format!("files:{SHARED}/{DIR}")
}

impl Lab {
    /// Gives Services without addresses and NodePorts some that stay until the Service is no longer in the files.
    pub(crate) fn allocate_services(&mut self, files: &LabFiles) -> Result<()> {
        let families = self.state.spec.families();
        self.state.services = Allocation::of_all(&files.services, &self.state.services, families)?;
        self.save()
    }

    /// Writes the objects, and waits until the kernel of every node has the Services.
    pub(crate) fn publish_services(
        &self,
        files: &LabFiles,
        addresses: &BTreeMap<String, Vec<PodIp>>,
    ) -> Result<Duration> {
        self.write_services(files, addresses)?;
        let expected = self.expected_services()?;
        self.wait_until_none(TIMEOUT, |lab| lab.first_service_problem(&expected))
    }

    /// Writes the objects that the agents read, in one step.
    pub(crate) fn write_services(
        &self,
        files: &LabFiles,
        addresses: &BTreeMap<String, Vec<PodIp>>,
    ) -> Result<()> {
        let items = self.service_objects(files, addresses);
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let dir = self.directory.shared().join(DIR);
        fs::create_dir_all(&dir).map_err(FileError::at("create directory", &dir))?;
        // Not podwire_fs::replace: agents read every file of the directory, so the temporary file must be outside.
        let (path, temporary) = (dir.join(FILE), self.directory.shared().join(".services.json"));
        let written = fs::write(&temporary, list.to_string()).and_then(|()| fs::rename(&temporary, &path));
        Ok(written.map_err(FileError::at("write", &path))?)
    }

    fn service_objects(&self, files: &LabFiles, addresses: &BTreeMap<String, Vec<PodIp>>) -> Vec<Value> {
        let of_kind = |kind: &'static str| files.services.iter().filter(move |object| object["kind"] == kind);
        let mut services: Vec<Value> = of_kind("Service").cloned().collect();
        for service in &mut services {
            if let Some(allocation) = self.state.services.get(&Allocation::name(service)) {
                allocation.write(service);
            }
        }
        let given: Vec<Value> = of_kind("EndpointSlice").cloned().collect();
        let nodes: Vec<Value> = self.nodes().iter().map(|node| self.node_object(node, files)).collect();
        let cluster = Cluster {
            pods: &files.pods,
            nodes: &nodes,
            pod_nodes: &self.state.pod_nodes,
            addresses,
            families: self.state.spec.families(),
        };
        let made: Vec<Value> =
            services.iter().flat_map(|service| slices(service, &given, &cluster)).collect();
        let mut cidrs: Vec<Value> = of_kind("ServiceCIDR").cloned().collect();
        if cidrs.is_empty() {
            cidrs.push(service_cidr(self.state.spec.families()));
        }
        [services, given, made, nodes, cidrs].concat()
    }

    /// The Node of the files, which may have labels, or a new one, with the addresses that the node has.
    fn node_object(&self, node: &str, files: &LabFiles) -> Value {
        let is_it = |object: &&Value| object["kind"] == "Node" && object["metadata"]["name"] == node;
        let new = || json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } });
        let mut object = files.services.iter().find(is_it).cloned().unwrap_or_else(new);
        let ips = self.uplink(node).map(|uplink| uplink.ips()).unwrap_or_default();
        let address = |ip: &IpAddr| json!({ "type": "InternalIP", "address": ip });
        object["status"]["addresses"] = ips.iter().map(address).collect();
        object
    }

    /// The objects that the agents read; `None` if the lab has no Services.
    fn published_services(&self) -> Result<Option<Value>> {
        if self.state.spec.services.is_none() {
            return Ok(None);
        }
        let path = self.directory.shared().join(DIR).join(FILE);
        let bytes = fs::read(&path).map_err(FileError::at("read", &path))?;
        let invalid = |error: serde_json::Error| {
            Error::input(format!("{}: {error}", path.display()), "run `podwire lab apply`")
        };
        Ok(Some(serde_json::from_slice(&bytes).map_err(invalid)?))
    }

    /// What each node with an agent should serve. The agents read the same file.
    fn expected_services(&self) -> Result<Vec<(String, Desired)>> {
        let Some(objects) = self.published_services()? else { return Ok(Vec::new()) };
        let of_node = |node: &String| (node.clone(), compiler(node, &objects).desired().clone());
        Ok(self.state.agents.keys().map(of_node).collect())
    }

    /// The first Service that the kernel of a node does not have as the files say; `None` if the lab has no Services.
    pub(crate) fn services_problem(&self) -> Option<String> {
        match self.expected_services() {
            Ok(expected) => self.first_service_problem(&expected),
            Err(error) => Some(error.to_string()),
        }
    }

    fn first_service_problem(&self, expected: &[(String, Desired)]) -> Option<String> {
        expected.iter().find_map(|(node, desired)| {
            let why = match self.installed_services(node) {
                Ok(Some(installed)) => dataplane::difference(&installed, desired)?,
                Ok(None) => format!("the agent serves no Services: {}", self.directory.log_tail(node)),
                Err(error) => error.to_string(),
            };
            Some(format!("{node}: {why}"))
        })
    }

    fn installed_services(&self, node: &str) -> Result<Option<Desired>> {
        Ok(self.netns(node)?.run(dataplane::installed)??)
    }

    /// The Services in the files of the lab, as the first node serves them.
    pub fn services(&self) -> Result<Vec<LabService>> {
        let (Some(objects), Some(node)) = (self.published_services()?, self.nodes().into_iter().next())
        else {
            return Ok(Vec::new());
        };
        let compiler = compiler(&node, &objects);
        let objects = objects["items"].as_array().map_or(&[][..], Vec::as_slice);
        let service = |object: &Value| {
            let name = ObjectName::of(Kind::Service, object);
            Some(LabService::new(&name, object, &compiler.details(&name)?))
        };
        Ok(objects.iter().filter(|object| object["kind"] == "Service").filter_map(service).collect())
    }
}

fn compiler(node: &str, objects: &Value) -> Compiler {
    let mut compiler = Compiler::new(NodeInput { name: node.into(), ..NodeInput::default() });
    compiler.put(objects.clone());
    compiler
}

impl LabService {
    fn new(name: &ObjectName, object: &Value, details: &ServiceDetails) -> LabService {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for (frontend, _) in details.frontends.iter().filter(|(_, kind)| **kind != ClaimKind::NodePort) {
            if !addresses.contains(&frontend.ip) {
                addresses.push(frontend.ip);
            }
        }
        let choice = |one: &Decision| if details.internal_local { one.local } else { one.cluster };
        let chosen =
            |port: &PortDecisions| port.endpoints.iter().filter(|one| choice(one).is_chosen()).count();
        let ports = object["spec"]["ports"].as_array().into_iter().flatten();
        LabService {
            name: name.to_string(),
            kind: details.kind.clone(),
            addresses,
            ports: ports.map(port_text).collect(),
            endpoints: details.ports.iter().map(chosen).max().unwrap_or_default(),
            problems: details.problems.iter().map(ToString::to_string).collect(),
        }
    }
}

/// As kubectl writes it.
fn port_text(port: &Value) -> String {
    let node_port = port["nodePort"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{node_port}/{}", port["port"], port["protocol"].as_str().unwrap_or("TCP"))
}
