//! The desired state of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::frontends::{Backend, Frontend, Reach, Refusal};
use crate::health::HealthCheck;
use crate::Problem;

/// What this node serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The frontends with their backends.
    pub frontends: BTreeMap<Frontend, Arc<Backend>>,
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

/// The number of Service ports whose policy is `Local` and whose endpoints are all on other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServicesWithoutLocal {
    /// Because of `internalTrafficPolicy`.
    pub internal: usize,
    /// Because of `externalTrafficPolicy`.
    pub external: usize,
}

impl Desired {
    /// The Service ports that drop packets because no endpoint is on this node.
    pub fn without_local(&self) -> ServicesWithoutLocal {
        let (mut internal, mut external) = (BTreeSet::new(), BTreeSet::new());
        for (frontend, backend) in &self.frontends {
            if backend.refusal() != Some(Refusal::Drop) {
                continue;
            }
            let port = (&backend.service, frontend.protocol);
            match backend.reach {
                Reach::ClusterIp => internal.insert(port),
                Reach::Cluster | Reach::Local => external.insert(port),
            };
        }
        ServicesWithoutLocal { internal: internal.len(), external: external.len() }
    }
}
