//! Compiles objects to the desired state. A Service is compiled again only after it or its slices changed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::api::Node;
use crate::claims::{claims, Claim, ClaimKind};
use crate::desired::Desired;
use crate::details::ServiceDetails;
use crate::endpoints::join;
use crate::frontends::Frontend;
use crate::health::HealthCheck;
use crate::node::{LocalNode, NodeInput};
use crate::objects::{describe, Kind, ObjectName, Objects};
use crate::spec::ServiceSpec;
use crate::Problem;

/// The objects of a cluster, and what follows from them for this node.
#[derive(Debug, Default)]
pub struct Compiler {
    objects: Objects,
    input: NodeInput,
    /// The node that the Services were compiled for.
    node: Option<LocalNode>,
    services: BTreeMap<ObjectName, Compiled>,
}

/// What follows from one Service and its slices.
#[derive(Debug, Default)]
struct Compiled {
    /// The time of creation, as the API server writes it.
    created: String,
    claims: Vec<Claim>,
    cluster_ips: Vec<IpAddr>,
    /// The addresses of endpoints that may be on this node.
    local_endpoint_ips: BTreeSet<IpAddr>,
    health_check: Option<(u16, HealthCheck)>,
    problems: Vec<Problem>,
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
    pub fn desired(&mut self) -> Desired {
        self.compile_changed();
        let mut desired = Desired {
            pod_networks: IpNet::aggregate(&self.input.pod_networks),
            problems: self.objects.unreadable().cloned().collect(),
            ..Desired::default()
        };
        self.add_service_cidrs(&mut desired);
        // The oldest Service gets what several claim. Files have no time of creation.
        let mut services: Vec<(&ObjectName, &Compiled)> = self.services.iter().collect();
        services.sort_by_key(|(name, service)| (service.created.is_empty(), &service.created, *name));
        for (name, service) in &services {
            service.add_to(&mut desired, name);
        }
        add_frontends(&services, &mut desired);
        for (service, slice) in self.objects.slices_without_service() {
            let text = format!("there is no Service {service}; its endpoints are not used");
            desired.problems.push(Problem::new(describe(Kind::EndpointSlice, slice), text));
        }
        desired.problems.sort();
        desired.problems.dedup();
        desired
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
            match Compiled::new(&self.objects, &name, &node) {
                Some(compiled) => _ = self.services.insert(name, compiled),
                None => _ = self.services.remove(&name),
            }
        }
        self.node = Some(node);
    }

    fn add_service_cidrs(&self, desired: &mut Desired) {
        for (name, object) in &self.objects.service_cidrs {
            for text in &object.spec.cidrs {
                match text.parse::<IpNet>() {
                    Ok(net) => desired.service_cidrs.push(net.trunc()),
                    Err(_) => {
                        let text = format!("{text:?} is not a network; it is ignored");
                        desired.problems.push(Problem::new(describe(Kind::ServiceCidr, name), text));
                    }
                }
            }
        }
        desired.service_cidrs = IpNet::aggregate(&desired.service_cidrs);
    }
}

impl Compiled {
    fn new(objects: &Objects, name: &ObjectName, node: &LocalNode) -> Option<Compiled> {
        let service = objects.services.get(name)?;
        let mut compiled =
            Compiled { created: service.metadata.creation_timestamp.clone(), ..Compiled::default() };
        let problems = &mut compiled.problems;
        if let Some(spec) = ServiceSpec::parse(name, service, problems) {
            let endpoints = join(&objects.slices_of(name), &node.name, problems);
            compiled.claims = claims(name, &spec, &endpoints, node, problems);
            let here = endpoints.values().flatten().filter(|endpoint| endpoint.local != Some(false));
            compiled.local_endpoint_ips = here.map(|endpoint| endpoint.addr.ip()).collect();
            let health_check = |port| (port, HealthCheck::new(name, &spec.cluster_ips, &endpoints));
            compiled.health_check = spec.health_check_port.map(health_check);
            compiled.cluster_ips = spec.cluster_ips;
        }
        Some(compiled)
    }

    /// Adds everything except the frontends.
    fn add_to(&self, desired: &mut Desired, name: &ObjectName) {
        desired.cluster_ips.extend(&self.cluster_ips);
        desired.local_endpoint_ips.extend(&self.local_endpoint_ips);
        desired.problems.extend_from_slice(&self.problems);
        let Some((port, health_check)) = &self.health_check else { return };
        match desired.health_checks.entry(*port) {
            Entry::Vacant(free) => _ = free.insert(health_check.clone()),
            Entry::Occupied(taken) => {
                let owner = &taken.get().service;
                let text = format!("healthCheckNodePort {port} belongs to Service {owner}; it is not served");
                desired.problems.push(Problem::new(describe(Kind::Service, name), text));
            }
        }
    }
}

/// Adds the frontends of all Services, by kind and then by age. A frontend that another Service has is reported.
fn add_frontends(services: &[(&ObjectName, &Compiled)], desired: &mut Desired) {
    let mut owners: HashMap<Frontend, (&ObjectName, ClaimKind)> = HashMap::new();
    for kind in ClaimKind::ALL {
        let claims = services
            .iter()
            .flat_map(|(name, service)| service.claims.iter().map(move |claim| (*name, claim)));
        for (name, claim) in claims.filter(|(_, claim)| claim.kind == kind) {
            match owners.get(&claim.frontend) {
                None => {
                    owners.insert(claim.frontend, (name, kind));
                    desired.frontends.insert(claim.frontend, claim.backend.clone());
                }
                // Its external address is also that of its load balancer.
                Some((owner, other)) if *owner == name && *other != kind => {}
                Some((owner, _)) => {
                    let frontend = claim.frontend;
                    let text =
                        format!("{frontend} belongs to Service {owner}; it is not served for this one");
                    desired.problems.push(Problem::new(describe(Kind::Service, name), text));
                }
            }
        }
    }
}
