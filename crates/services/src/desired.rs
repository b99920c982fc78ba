//! The desired state of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::frontends::{Backend, Frontend};
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
