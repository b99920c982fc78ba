//! The desired state of this node, from all objects.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::api::EndpointSlice;
use crate::claims::{claims, Claim, ClaimKind};
use crate::endpoints::{join, EndpointsByPort};
use crate::frontends::{Backend, Frontend};
use crate::health_checks::HealthCheck;
use crate::node::{LocalNode, NodeInput};
use crate::objects::{describe, Kind, ObjectName, Objects};
use crate::spec::ServiceSpec;
use crate::Problem;

/// What this node serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The frontends with their backends.
    pub frontends: BTreeMap<Frontend, Backend>,
    /// The cluster IPs: a port that is not a frontend is rejected.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The ranges of cluster IPs: an address that no Service has is dropped.
    pub service_cidrs: Vec<IpNet>,
    /// The networks of this node's pods.
    pub pod_networks: Vec<IpNet>,
    /// The addresses of endpoints that may be on this node: a connection from one of them to itself is masqueraded.
    pub local_endpoint_ips: BTreeSet<IpAddr>,
    /// The health checks by port.
    pub health_checks: BTreeMap<u16, HealthCheck>,
    /// Mistakes in objects, sorted.
    pub problems: Vec<Problem>,
}

/// The desired state of the node.
pub fn desired(objects: &Objects, input: &NodeInput) -> Desired {
    let node_name = ObjectName { namespace: String::new(), name: input.name.clone() };
    let mut builder = Builder {
        node: LocalNode::new(input, objects.nodes.get(&node_name)),
        problems: objects.unreadable().cloned().collect(),
        desired: Desired { pod_networks: IpNet::aggregate(&input.pod_networks), ..Desired::default() },
        owners: BTreeMap::new(),
    };
    builder.add_service_cidrs(objects);
    let mut slices = builder.slices_by_service(objects);
    // The oldest Service gets a frontend that several claim. Files have no time of creation.
    let mut services: Vec<_> = objects.services.iter().collect();
    services.sort_by_key(|(name, service)| {
        let created = &service.metadata.creation_timestamp;
        (created.is_empty(), created.clone(), (*name).clone())
    });
    let mut all = Vec::new();
    for (name, service) in services {
        let slices = slices.remove(name).unwrap_or_default();
        let Some(spec) = ServiceSpec::parse(name, service, &mut builder.problems) else { continue };
        let endpoints = join(&slices, builder.node.name, &mut builder.problems);
        let claims = claims(name, &spec, &endpoints, &builder.node, &mut builder.problems);
        all.extend(claims.into_iter().map(|claim| (name, claim)));
        builder.add_service(name, &spec, &endpoints);
    }
    // Stable: Services stay in the order of their age.
    all.sort_by_key(|(_, claim)| claim.kind);
    all.into_iter().for_each(|(name, claim)| builder.add(name, claim));
    builder.report_slices_without_service(&slices);
    builder.finish()
}

type SlicesByService<'a> = BTreeMap<ObjectName, Vec<(&'a ObjectName, &'a EndpointSlice)>>;

struct Builder<'a> {
    node: LocalNode<'a>,
    desired: Desired,
    /// The Services of the frontends.
    owners: BTreeMap<Frontend, (&'a ObjectName, ClaimKind)>,
    problems: Vec<Problem>,
}

impl<'a> Builder<'a> {
    fn add_service_cidrs(&mut self, objects: &Objects) {
        for (name, object) in &objects.service_cidrs {
            for text in &object.spec.cidrs {
                match text.parse::<IpNet>() {
                    Ok(net) => self.desired.service_cidrs.push(net.trunc()),
                    Err(_) => {
                        let text = format!("{text:?} is not a network; it is ignored");
                        self.problems.push(Problem::new(describe(Kind::ServiceCidr, name), text));
                    }
                }
            }
        }
        self.desired.service_cidrs = IpNet::aggregate(&self.desired.service_cidrs);
    }

    fn slices_by_service(&self, objects: &'a Objects) -> SlicesByService<'a> {
        let mut by_service = SlicesByService::new();
        for (name, slice) in objects.slices.iter().filter(|(_, slice)| !slice.metadata.is_excluded()) {
            let Some(service) = slice.service_name() else { continue };
            let service = ObjectName { namespace: name.namespace.clone(), name: service.into() };
            by_service.entry(service).or_default().push((name, slice));
        }
        by_service
    }

    fn add_service(&mut self, name: &ObjectName, spec: &ServiceSpec, endpoints: &EndpointsByPort) {
        self.desired.cluster_ips.extend(&spec.cluster_ips);
        let here = endpoints.values().flatten().filter(|endpoint| endpoint.local != Some(false));
        self.desired.local_endpoint_ips.extend(here.map(|endpoint| endpoint.addr.ip()));
        let Some(port) = spec.health_check_port else { return };
        match self.desired.health_checks.entry(port) {
            Entry::Vacant(free) => _ = free.insert(HealthCheck::new(name, endpoints)),
            Entry::Occupied(taken) => {
                let owner = &taken.get().service;
                let text = format!("healthCheckNodePort {port} belongs to Service {owner}; it is not served");
                self.problems.push(Problem::new(describe(Kind::Service, name), text));
            }
        }
    }

    /// Adds a frontend, unless another Service has it.
    fn add(&mut self, name: &'a ObjectName, claim: Claim) {
        let Claim { kind, frontend, backend } = claim;
        match self.owners.get(&frontend) {
            None => {
                self.owners.insert(frontend, (name, kind));
                self.desired.frontends.insert(frontend, backend);
            }
            // Its external address is also that of its load balancer.
            Some((owner, other)) if *owner == name && *other != kind => {}
            Some((owner, _)) => {
                let text = format!("{frontend} belongs to Service {owner}; it is not served for this one");
                self.problems.push(Problem::new(describe(Kind::Service, name), text));
            }
        }
    }

    fn report_slices_without_service(&mut self, left: &SlicesByService<'_>) {
        for (service, slices) in left {
            let report = |(name, _): &(&ObjectName, &EndpointSlice)| {
                let text = format!("there is no Service {service}; its endpoints are not used");
                Problem::new(describe(Kind::EndpointSlice, name), text)
            };
            self.problems.extend(slices.iter().map(report));
        }
    }

    fn finish(mut self) -> Desired {
        self.problems.sort();
        self.problems.dedup();
        Desired { problems: self.problems, ..self.desired }
    }
}
