//! What one Service claims: its frontends with their backends.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_policy::Protocol;

use crate::endpoints::EndpointsByPort;
use crate::frontends::{Backend, Frontend, Reach};
use crate::node::LocalNode;
use crate::objects::{describe, Kind, ObjectName};
use crate::selection::{select, Selected};
use crate::spec::{Port, ServiceSpec};
use crate::Problem;

/// More endpoints of one port are not served: an index has 16 bits.
const MAX_ENDPOINTS: usize = 65535;

/// The kinds of frontends. If two Services claim the same frontend, the first kind gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum ClaimKind {
    ClusterIp,
    LoadBalancer,
    ExternalIp,
    NodePort,
}

impl ClaimKind {
    /// All kinds.
    pub const ALL: [ClaimKind; 4] =
        [ClaimKind::ClusterIp, ClaimKind::LoadBalancer, ClaimKind::ExternalIp, ClaimKind::NodePort];
}

impl fmt::Display for ClaimKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimKind::ClusterIp => "cluster IP",
            ClaimKind::LoadBalancer => "load balancer",
            ClaimKind::ExternalIp => "external IP",
            ClaimKind::NodePort => "NodePort",
        })
    }
}

/// A frontend of one Service.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub kind: ClaimKind,
    pub frontend: Frontend,
    pub backend: Arc<Backend>,
}

/// The frontends of a Service.
pub(crate) fn claims(
    name: &ObjectName,
    spec: &ServiceSpec,
    endpoints: &EndpointsByPort,
    node: &LocalNode,
    problems: &mut Vec<Problem>,
) -> Vec<Claim> {
    let mut all = Vec::new();
    for cluster_ip in &spec.cluster_ips {
        let family = IpFamily::of(*cluster_ip);
        let source_ranges = source_ranges(spec, family, node);
        for port in &spec.ports {
            let service = port_name(name, port);
            let selected = selected(endpoints, port, family, node);
            if selected.cluster.len() > MAX_ENDPOINTS {
                let count = selected.cluster.len();
                let text =
                    format!("{service} has {count} endpoints; only the first {MAX_ENDPOINTS} are served");
                problems.push(Problem::new(describe(Kind::Service, name), text));
            }
            for (kind, frontend) in frontends(spec, port, *cluster_ip, node) {
                let mut backend = backend(kind, spec, &selected, service.clone());
                if frontend.protocol == Protocol::Udp {
                    backend.serving_endpoints.clone_from(&selected.serving);
                }
                if kind == ClaimKind::LoadBalancer {
                    backend.source_ranges.clone_from(&source_ranges);
                }
                all.push(Claim { kind, frontend, backend: Arc::new(backend) });
            }
        }
    }
    all
}

/// The clients that may use the load balancer's addresses. If they include this node, they include these addresses, too:
/// a process of the node that connects to an address which is on a device of the node has this address as its source.
fn source_ranges(spec: &ServiceSpec, family: IpFamily, node: &LocalNode) -> Option<Vec<IpNet>> {
    let mut ranges = spec.source_ranges_of(family)?;
    if node.primary.iter().any(|ip| ranges.iter().any(|range| range.contains(ip))) {
        let own = spec.load_balancer_ips.iter().filter(|ip| IpFamily::of(**ip) == family);
        ranges.extend(own.map(|ip| IpNet::from(*ip)));
    }
    Some(IpNet::aggregate(&ranges))
}

/// `shop/web:http`, as kube-proxy writes it.
pub(crate) fn port_name(service: &ObjectName, port: &Port) -> String {
    if port.name.is_empty() {
        service.to_string()
    } else {
        format!("{service}:{}", port.name)
    }
}

fn selected(endpoints: &EndpointsByPort, port: &Port, family: IpFamily, node: &LocalNode) -> Selected {
    let endpoints = endpoints.get(&(port.name.clone(), port.protocol, family));
    select(endpoints.map_or(&[][..], Vec::as_slice), &node.name, node.zone.as_deref())
}

/// The frontends of a port in the family of the cluster IP.
fn frontends(
    spec: &ServiceSpec,
    port: &Port,
    cluster_ip: IpAddr,
    node: &LocalNode,
) -> Vec<(ClaimKind, Frontend)> {
    let family = IpFamily::of(cluster_ip);
    let at = |kind, addresses: &[IpAddr], number| {
        let of_family = addresses.iter().filter(|ip| IpFamily::of(**ip) == family);
        let frontend = |ip: &IpAddr| (kind, Frontend { ip: *ip, protocol: port.protocol, port: number });
        of_family.map(frontend).collect::<Vec<_>>()
    };
    let mut all = at(ClaimKind::ClusterIp, &[cluster_ip], port.number);
    all.extend(at(ClaimKind::LoadBalancer, &spec.load_balancer_ips, port.number));
    all.extend(at(ClaimKind::ExternalIp, &spec.external_ips, port.number));
    let node_port = port.node_port.iter();
    all.extend(node_port.flat_map(|number| at(ClaimKind::NodePort, &node.node_port_addresses, *number)));
    all
}

/// The backend of a frontend, without source ranges and serving endpoints.
fn backend(kind: ClaimKind, spec: &ServiceSpec, selected: &Selected, service: String) -> Backend {
    let reach = match kind {
        ClaimKind::ClusterIp => Reach::ClusterIp,
        _ if spec.external_local => Reach::Local,
        _ => Reach::Cluster,
    };
    let internal_local = reach == Reach::ClusterIp && spec.internal_local;
    let first = |all: &[SocketAddr]| all.iter().copied().take(MAX_ENDPOINTS).collect::<Vec<_>>();
    Backend {
        service,
        reach,
        endpoints: first(if internal_local { &selected.local } else { &selected.cluster }),
        local_endpoints: if reach == Reach::Local { first(&selected.local) } else { Vec::new() },
        serving_endpoints: Vec::new(),
        any_endpoint: selected.any,
        affinity: spec.affinity,
        source_ranges: None,
    }
}
