//! What follows from one Service and its slices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::claims::{claims, Claim, ClaimKind};
use crate::endpoint_services::{entries, Entry};
use crate::endpoints::join;
use crate::health::HealthCheck;
use crate::node::LocalNode;
use crate::objects::{describe, Kind, ObjectName, Objects};
use crate::owners::{Age, Rank};
use crate::spec::ServiceSpec;
use crate::Problem;

/// What follows from one Service and its slices.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    age: Age,
    claims: Vec<Claim>,
    pub cluster_ips: Vec<IpAddr>,
    /// The addresses of endpoints that may be on this node.
    pub local_endpoint_ips: BTreeSet<IpAddr>,
    /// All endpoints of its ports.
    pub endpoints: Vec<Entry>,
    /// The port and its answer.
    pub health_check: Option<(u16, HealthCheck)>,
    pub problems: Vec<Problem>,
}

impl Compiled {
    pub fn new(objects: &Objects, name: &ObjectName, node: &LocalNode) -> Compiled {
        let slices = objects.slices_of(name);
        let mut compiled = Compiled::default();
        let problems = &mut compiled.problems;
        let Some(service) = objects.services.get(name) else {
            let text = format!("there is no Service {name}; its endpoints are not used");
            let names = slices.iter().map(|(slice, _)| describe(Kind::EndpointSlice, slice));
            problems.extend(names.map(|slice| Problem::new(slice, text.clone())));
            return compiled;
        };
        compiled.age = Age::new(&service.metadata.creation_timestamp);
        if let Some(spec) = ServiceSpec::parse(name, service, problems) {
            let endpoints = join(&slices, &node.name, problems);
            compiled.claims = claims(name, &spec, &endpoints, node, problems);
            let here = endpoints.values().flatten().filter(|endpoint| endpoint.local != Some(false));
            compiled.local_endpoint_ips = here.map(|endpoint| endpoint.addr.ip()).collect();
            compiled.endpoints = entries(name, &spec, &endpoints);
            let health_check = |port| (port, HealthCheck::new(name, &spec.cluster_ips, &endpoints));
            compiled.health_check = spec.health_check_port.map(health_check);
            compiled.cluster_ips = spec.cluster_ips;
        }
        compiled
    }

    /// The claims of frontends with their ranks.
    pub fn claims<'a>(&'a self, name: &'a ObjectName) -> impl Iterator<Item = (Rank, &'a Claim)> {
        self.claims.iter().enumerate().map(|(number, claim)| (self.rank(name, claim.kind, number), claim))
    }

    /// The rank of the health check.
    pub fn health_check_rank(&self, name: &ObjectName) -> Rank {
        self.rank(name, ClaimKind::LoadBalancer, 0)
    }

    fn rank(&self, name: &ObjectName, kind: ClaimKind, number: usize) -> Rank {
        Rank { kind, age: self.age.clone(), service: name.clone(), number }
    }
}
