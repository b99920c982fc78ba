//! What the objects say about one Service, for people: its frontends, and the decision about each endpoint with its reason.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use podwire_ip::IpFamily;
use podwire_policy::Protocol;

use crate::choice::Choice;
use crate::claims::{claims, port_name, ClaimKind};
use crate::endpoints::{join, EndpointsByPort};
use crate::frontends::Frontend;
use crate::node::LocalNode;
use crate::objects::{ObjectName, Objects};
use crate::selection::{cluster_choices, local_choices};
use crate::spec::{Port, ServiceSpec};
use crate::Problem;

/// A Service as its objects describe it.
#[derive(Clone, Debug)]
pub struct ServiceDetails {
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    pub kind: String,
    /// Whether its cluster IPs lead only to endpoints of this node.
    pub internal_local: bool,
    /// The frontends that it claims. Another Service may have some of them.
    pub frontends: BTreeMap<Frontend, ClaimKind>,
    /// The endpoints of each port and family.
    pub ports: Vec<PortDecisions>,
    /// Mistakes in the Service and its slices, except claims of other Services.
    pub problems: Vec<Problem>,
}

/// The endpoints of one port in one family.
#[derive(Clone, Debug)]
pub struct PortDecisions {
    /// The Service port: `shop/web:http`.
    pub service: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The family of the endpoints.
    pub family: IpFamily,
    /// The decisions about all endpoints.
    pub endpoints: Vec<Decision>,
}

/// The decisions about one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Address and port.
    pub addr: SocketAddr,
    /// With the traffic policy `Cluster`.
    pub cluster: Choice,
    /// With the traffic policy `Local`.
    pub local: Choice,
}

impl ServiceDetails {
    /// `None` if there is no such Service, or this node does not serve it.
    pub(crate) fn new(objects: &Objects, name: &ObjectName, node: &LocalNode) -> Option<ServiceDetails> {
        let service = objects.services.get(name)?;
        let mut problems = Vec::new();
        let spec = ServiceSpec::parse(name, service, &mut problems)?;
        let endpoints = join(&objects.slices_of(name), &node.name, &mut problems);
        let all = claims(name, &spec, &endpoints, node, &mut problems);
        let mut frontends = BTreeMap::new();
        for claim in all {
            let kind = frontends.entry(claim.frontend).or_insert(claim.kind);
            *kind = claim.kind.min(*kind);
        }
        let kind = &service.spec.kind;
        let families = spec.cluster_ips.iter().map(|ip| IpFamily::of(*ip));
        let ports = families.flat_map(|family| {
            let decisions = |port| decisions(name, port, family, &endpoints, node);
            spec.ports.iter().map(decisions).collect::<Vec<_>>()
        });
        Some(ServiceDetails {
            kind: if kind.is_empty() { "ClusterIP".into() } else { kind.clone() },
            internal_local: spec.internal_local,
            ports: ports.collect(),
            frontends,
            problems,
        })
    }
}

fn decisions(
    name: &ObjectName,
    port: &Port,
    family: IpFamily,
    endpoints: &EndpointsByPort,
    node: &LocalNode,
) -> PortDecisions {
    let key = (port.name.clone(), port.protocol, family);
    let all = endpoints.get(&key).map_or(&[][..], Vec::as_slice);
    let cluster = cluster_choices(all, &node.name, node.zone.as_deref());
    let local = local_choices(all);
    let choices = cluster.into_iter().zip(local);
    let decision = |(endpoint, (cluster, local)): (&crate::endpoints::Endpoint, _)| Decision {
        addr: endpoint.addr,
        cluster,
        local,
    };
    PortDecisions {
        service: port_name(name, port),
        protocol: port.protocol,
        family,
        endpoints: all.iter().zip(choices).map(decision).collect(),
    }
}
