//! A Service as people see it: frontends with their kinds, endpoints with reasons.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use podwire_ip::IpFamily;
use podwire_services::{
    Backend, Choice, ClaimKind, Clients, Decision, Frontend, ObjectName, Reach, Refusal, ServiceDetails,
};
use serde_json::{json, Value};

use super::node_services::NodeServices;
use super::service_name;

/// A Service.
pub(super) struct ServiceView {
    pub name: ObjectName,
    /// `ClusterIP`, `NodePort`, `LoadBalancer`; without a source perhaps `external`.
    pub kind: String,
    pub frontends: Vec<FrontendView>,
    /// The number of endpoints of the port that has the most, and how many of them are on this node.
    pub endpoints: usize,
    pub local_endpoints: usize,
    pub problems: Vec<String>,
}

/// A frontend in the kernel.
pub(super) struct FrontendView {
    pub frontend: Frontend,
    /// The name of the port; may be empty.
    pub port_name: String,
    /// `cluster IP`, `NodePort`, …
    pub kind: String,
    pub backend: Arc<Backend>,
    pub endpoints: Vec<EndpointView>,
    /// With the external traffic policy `Local`: the endpoints for clients outside the node.
    pub others: Vec<EndpointView>,
    /// The endpoints that get no connections, if the source is known.
    pub left_out: Vec<Decision>,
}

/// An endpoint in the kernel.
pub(super) struct EndpointView {
    pub addr: SocketAddr,
    pub is_local: bool,
    /// Why it was chosen, if the source is known.
    pub choice: Option<Choice>,
}

impl ServiceView {
    pub(super) fn new(
        node: &NodeServices,
        name: ObjectName,
        frontends: Vec<Frontend>,
        details: Option<ServiceDetails>,
    ) -> ServiceView {
        let view = |frontend: Frontend| {
            let backend = node.installed.frontends.get(&frontend)?;
            Some(FrontendView::new(node, frontend, backend, details.as_ref()))
        };
        let mut frontends: Vec<FrontendView> = frontends.into_iter().filter_map(view).collect();
        frontends.sort_by_key(|one| (one.order(), one.frontend));
        let most = frontends.iter().map(|one| one.all_endpoints(node)).max().unwrap_or_default();
        let mut problems: BTreeSet<String> =
            details.iter().flat_map(|details| &details.problems).map(ToString::to_string).collect();
        if frontends.is_empty() {
            problems.insert("it is not in the kernel: does the agent run, with the same source?".into());
        }
        let rejects = |one: &&FrontendView| one.backend.refusal() == Some(Refusal::Reject);
        if frontends.iter().any(|one| rejects(&one)) {
            problems.insert("no endpoint: connections are refused".into());
        }
        let kind = details.map(|details| details.kind).unwrap_or_else(|| kind_of(&frontends));
        ServiceView {
            name,
            kind,
            frontends,
            endpoints: most.0,
            local_endpoints: most.1,
            problems: problems.into_iter().collect(),
        }
    }
}

/// The kind of a Service by its frontends. In the kernel a load balancer's address looks like an external IP.
fn kind_of(frontends: &[FrontendView]) -> String {
    let has = |kind: &str| frontends.iter().any(|one| one.kind == kind);
    if has(EXTERNAL) {
        "external".into()
    } else if has(&ClaimKind::NodePort.to_string()) {
        "NodePort".into()
    } else {
        "ClusterIP".into()
    }
}

/// The kind of an address that is neither a cluster IP nor the node's, if the source is not known.
const EXTERNAL: &str = "external address";

impl FrontendView {
    fn new(
        node: &NodeServices,
        frontend: Frontend,
        backend: &Arc<Backend>,
        details: Option<&ServiceDetails>,
    ) -> FrontendView {
        let known = details.and_then(|details| details.frontends.get(&frontend));
        let kind = match known {
            Some(kind) => kind.to_string(),
            None if backend.reach == Reach::ClusterIp => ClaimKind::ClusterIp.to_string(),
            None if node.node.contains(&frontend.ip) => ClaimKind::NodePort.to_string(),
            None => EXTERNAL.into(),
        };
        let decisions: Vec<Decision> =
            details.map(|details| decisions(details, &frontend, backend)).unwrap_or_default();
        let is_internal_local =
            backend.reach == Reach::ClusterIp && details.is_some_and(|details| details.internal_local);
        let choice = |decision: &Decision, clients| match clients {
            Clients::All if !is_internal_local => decision.cluster,
            Clients::All | Clients::Others => decision.local,
        };
        let endpoints = |clients| {
            let view = |addr: &SocketAddr| {
                let decision = decisions.iter().find(|decision| decision.addr == *addr);
                EndpointView {
                    addr: *addr,
                    is_local: node.is_local(addr.ip()),
                    choice: decision.map(|decision| choice(decision, clients)),
                }
            };
            let mut all: Vec<EndpointView> = backend.endpoints_for(clients).iter().map(view).collect();
            all.sort_by_key(|one| one.addr);
            all
        };
        let left_out = decisions.iter().filter(|one| !choice(one, Clients::All).is_chosen());
        let left_out = left_out.map(|one| Decision { cluster: choice(one, Clients::All), ..*one }).collect();
        FrontendView {
            frontend,
            port_name: service_name::split(&backend.service).1.to_owned(),
            kind,
            backend: backend.clone(),
            endpoints: endpoints(Clients::All),
            others: endpoints(Clients::Others),
            left_out,
        }
    }

    fn order(&self) -> usize {
        let kinds = ClaimKind::ALL.map(|kind| kind.to_string());
        kinds.iter().position(|kind| *kind == self.kind).unwrap_or(kinds.len())
    }

    /// The number of its endpoints, and how many are on this node.
    fn all_endpoints(&self, node: &NodeServices) -> (usize, usize) {
        let all: BTreeSet<&SocketAddr> =
            self.backend.endpoints.iter().chain(&self.backend.local_endpoints).collect();
        (all.len(), all.iter().filter(|addr| node.is_local(addr.ip())).count())
    }

    /// Why some packets are refused, if they are.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        match (self.backend.refusal()?, self.backend.reach) {
            (Refusal::Reject, _) => Some("refused: no node has an endpoint"),
            (Refusal::Drop, Reach::Local) => {
                Some("dropped from clients outside this node: only other nodes have endpoints")
            }
            (Refusal::Drop, _) => Some("dropped: only other nodes have endpoints"),
        }
    }

    /// Whose source address the endpoint sees.
    pub(super) fn source(&self) -> &'static str {
        match self.backend.reach {
            Reach::ClusterIp => "kept for pods of this node, rewritten to an address of this node for others",
            Reach::Cluster => "rewritten to an address of this node",
            Reach::Local => "kept, except for processes of this node",
        }
    }

    pub(super) fn json(&self) -> Value {
        let endpoints = |all: &[EndpointView]| all.iter().map(EndpointView::json).collect::<Vec<_>>();
        let ranges = self.backend.source_ranges.as_ref();
        json!({
            "ip": self.frontend.ip,
            "protocol": self.frontend.protocol.name(),
            "port": self.frontend.port,
            "portName": self.port_name,
            "kind": self.kind,
            "endpoints": endpoints(&self.endpoints),
            "localEndpoints": (self.backend.reach == Reach::Local).then(|| endpoints(&self.others)),
            "leftOut": self.left_out.iter().map(left_out_json).collect::<Vec<_>>(),
            "affinitySeconds": self.backend.affinity.map(|time| time.as_secs()),
            "sourceRanges": ranges.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "source": self.source(),
            "refusal": self.refusal(),
        })
    }
}

pub(super) fn left_out_json(decision: &Decision) -> Value {
    json!({
        "ip": decision.addr.ip(),
        "port": decision.addr.port(),
        "reason": decision.cluster.to_string(),
    })
}

impl EndpointView {
    fn json(&self) -> Value {
        json!({
            "ip": self.addr.ip(),
            "port": self.addr.port(),
            "local": self.is_local,
            "reason": self.choice.map(|choice| choice.to_string()),
        })
    }

    /// Where it is, and why it was chosen.
    pub(super) fn remark(&self) -> String {
        let place = if self.is_local { "on this node" } else { "on another node" };
        self.choice.map_or_else(|| place.to_owned(), |choice| format!("{place}, {choice}"))
    }
}

/// The decisions about the endpoints of a frontend.
fn decisions(details: &ServiceDetails, frontend: &Frontend, backend: &Backend) -> Vec<Decision> {
    let family = IpFamily::of(frontend.ip);
    let wanted = service_name::split(&backend.service);
    let port = details.ports.iter().find(|port| {
        let (name, port_name) = service_name::split(&port.service);
        // The kernel has at most the first 127 bytes of a name.
        let is_port = name == wanted.0 && port_name.starts_with(wanted.1);
        let is_exact = port_name == wanted.1 || backend.service.len() >= 127;
        is_port && is_exact && port.protocol == frontend.protocol && port.family == family
    });
    port.map(|port| port.endpoints.clone()).unwrap_or_default()
}

/// The addresses of a Service, without those of the node for NodePorts.
pub(super) fn addresses(service: &ServiceView) -> Vec<IpAddr> {
    let node_port = ClaimKind::NodePort.to_string();
    let mut all = Vec::new();
    for one in service.frontends.iter().filter(|one| one.kind != node_port) {
        if !all.contains(&one.frontend.ip) {
            all.push(one.frontend.ip);
        }
    }
    all
}
