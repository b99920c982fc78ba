//! Compiles objects to the desired state. A Service is compiled again only after it or its slices changed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::api::Node;
use crate::changes::Changes;
use crate::compiled::Compiled;
use crate::desired::Desired;
use crate::details::ServiceDetails;
use crate::merged::Merged;
use crate::node::{LocalNode, NodeInput};
use crate::objects::{describe, Kind, ObjectName, Objects};
use crate::{EndpointServices, Problem, ServicesWithoutLocal};

/// The objects of a cluster, and what follows from them for this node.
#[derive(Debug, Default)]
pub struct Compiler {
    objects: Objects,
    input: NodeInput,
    /// The node that the Services were compiled for.
    node: Option<LocalNode>,
    services: BTreeMap<ObjectName, Compiled>,
    merged: Merged,
}

impl Compiler {
    /// Without objects.
    pub fn new(input: NodeInput) -> Compiler {
        Compiler { input, ..Compiler::default() }
    }

    /// Replaces what the agent knows about its node.
    pub fn set_node(&mut self, input: NodeInput) {
        self.input = input;
    }

    /// Adds, replaces or removes objects.
    pub fn objects(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Adds an object or all objects of a list.
    pub fn put(&mut self, object: Value) {
        self.objects.put(object);
    }

    /// The object of this node, if there is one.
    pub fn own_node(&self) -> Option<&Node> {
        self.objects.nodes.get(&ObjectName { namespace: String::new(), name: self.input.name.clone() })
    }

    /// The addresses at which this node serves NodePorts, as of the last [`desired`](Compiler::desired).
    pub fn node_port_addresses(&self) -> &[IpAddr] {
        self.node.as_ref().map_or(&[], |node| &node.node_port_addresses)
    }

    /// The desired state of the node.
    pub fn desired(&mut self) -> &Desired {
        self.compile();
        &self.merged.desired
    }

    /// What has changed in the desired state since the last call.
    pub fn take_changes(&mut self) -> Changes {
        self.compile();
        std::mem::replace(&mut self.merged.changes, Changes::none())
    }

    /// The Service ports that drop packets because no endpoint is on this node.
    pub fn without_local(&mut self) -> ServicesWithoutLocal {
        self.compile();
        self.merged.without_local.count()
    }

    /// The Services of each endpoint, as of the last call that compiled, for other threads.
    pub fn endpoint_services(&self) -> EndpointServices {
        self.merged.endpoint_services.clone()
    }

    fn compile(&mut self) {
        self.compile_changed();
        let mut problems: Vec<Problem> = self.objects.unreadable().cloned().collect();
        let service_cidrs = self.service_cidrs(&mut problems);
        problems.extend(self.merged.problems().cloned());
        problems.sort();
        problems.dedup();
        let desired = &mut self.merged.desired;
        desired.pod_networks = IpNet::aggregate(&self.input.pod_networks);
        desired.service_cidrs = service_cidrs;
        desired.problems = problems;
    }

    /// The names of all Services, also of those that this node does not serve.
    pub fn services(&self) -> impl Iterator<Item = &ObjectName> {
        self.objects.services.keys()
    }

    /// What the objects say about a Service; `None` if there is no such Service, or this node does not serve it.
    pub fn details(&self, service: &ObjectName) -> Option<ServiceDetails> {
        ServiceDetails::new(&self.objects, service, &self.local_node())
    }

    fn local_node(&self) -> LocalNode {
        LocalNode::new(&self.input, self.own_node())
    }

    fn compile_changed(&mut self) {
        let node = self.local_node();
        let mut changed = self.objects.take_changed();
        if self.node.as_ref() != Some(&node) {
            changed.extend(self.objects.services.keys().cloned());
        }
        for name in changed {
            let before = self.services.remove(&name).unwrap_or_default();
            let after = Compiled::new(&self.objects, &name, &node);
            self.merged.replace(&name, &before, &after);
            if self.objects.services.contains_key(&name) {
                self.services.insert(name, after);
            }
        }
        self.node = Some(node);
    }

    fn service_cidrs(&self, problems: &mut Vec<Problem>) -> Vec<IpNet> {
        let mut networks = Vec::new();
        for (name, object) in &self.objects.service_cidrs {
            for text in &object.spec.cidrs {
                match text.parse::<IpNet>() {
                    Ok(net) => networks.push(net.trunc()),
                    Err(_) => {
                        let text = format!("{text:?} is not a network; it is ignored");
                        problems.push(Problem::new(describe(Kind::ServiceCidr, name), text));
                    }
                }
            }
        }
        IpNet::aggregate(&networks)
    }
}
