//! The health checks of load balancers: whether this node has ready endpoints of a Service whose external traffic policy
//! is `Local`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_ip::IpFamily;

use crate::endpoints::EndpointsByPort;
use crate::objects::ObjectName;

/// What the health check port of a Service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: ObjectName,
    /// The number of addresses of this node's ready endpoints, for each family of the Service. Terminating endpoints do
    /// not count, although they are still used when there is no other.
    pub local_endpoints: BTreeMap<IpFamily, usize>,
}

impl HealthCheck {
    pub(crate) fn new(
        service: &ObjectName,
        cluster_ips: &[IpAddr],
        endpoints: &EndpointsByPort,
    ) -> HealthCheck {
        let ready = endpoints.values().flatten().filter(|endpoint| endpoint.ready && endpoint.is_local());
        let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.addr.ip()).collect();
        let count = |family: IpFamily| addresses.iter().filter(|ip| IpFamily::of(**ip) == family).count();
        HealthCheck {
            service: service.clone(),
            local_endpoints: cluster_ips
                .iter()
                .map(|ip| IpFamily::of(*ip))
                .map(|of| (of, count(of)))
                .collect(),
        }
    }
}
