//! What happens to the first packet of a connection, in the order of the chains in [`dataplane`](crate::dataplane). Which
//! endpoints, refusals and ranges a frontend has comes from its [`Backend`], as the elements in the kernel do. A test sends
//! packets and compares.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::{Backend, Clients, Desired, Frontend, Reach, Refusal};

/// Who sends the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// The owner of an address: a pod, this node or another host.
    Address(IpAddr),
    /// A host outside the node whose address is not known.
    Outside,
}

/// What happens to the packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The Service port of the frontend, if there is one.
    pub service: Option<String>,
    /// What the source ranges say.
    pub admission: Admission,
    /// The outcome, if the source ranges admit the client.
    pub fate: Fate,
}

/// What the source ranges say about the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There are none.
    Everybody,
    /// One of them has the client.
    Admitted(Vec<IpNet>),
    /// None of them has the client: the packet is dropped.
    Denied(Vec<IpNet>),
    /// It depends on the client's address.
    Depends(Vec<IpNet>),
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// One of the endpoints gets the connection.
    Forwarded {
        /// The endpoints.
        targets: Vec<Target>,
        /// How long the client keeps its endpoint.
        affinity: Option<Duration>,
    },
    /// The client gets ICMP port unreachable, or nothing.
    Refused(Refusal, RefusalReason),
    /// No frontend: the packet goes on as without Services.
    Untouched,
}

/// A possible endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Why the endpoint sees an address of this node; `None` if it sees the client's.
    pub masquerade: Option<Masquerade>,
}

/// Why the source address is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// The endpoint is the client.
    Itself,
    /// An external address with the policy `Cluster`.
    External,
    /// A process of the node that uses an external address with the policy `Local`.
    Process,
    /// A cluster IP, and the client is no pod of this node.
    NotAPod,
}

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No node has an endpoint.
    NoEndpoint,
    /// Only other nodes have one, and the traffic policy is `Local`.
    NoLocalEndpoint,
    /// The Service with this cluster IP does not have the port.
    NoSuchPort,
    /// No Service has this address of a ServiceCIDR.
    NoService,
}

/// Explains the packet of a client to a frontend. `node` has all addresses of this node.
pub fn explain(
    desired: &Desired,
    node: &BTreeSet<IpAddr>,
    client: Client,
    frontend: &Frontend,
) -> Explanation {
    let Some(backend) = desired.frontends.get(frontend) else {
        let fate = without_service(desired, frontend);
        return Explanation { service: None, admission: Admission::Everybody, fate };
    };
    let place = Place::new(desired, node, client);
    let clients = match backend.reach {
        Reach::Local if !place.is_pod && !place.is_node => Clients::Others,
        Reach::ClusterIp | Reach::Cluster | Reach::Local => Clients::All,
    };
    let target = |endpoint: &SocketAddr| Target {
        endpoint: *endpoint,
        masquerade: masquerade(desired, node, &place, backend, endpoint.ip()),
    };
    let targets: Vec<Target> = backend.endpoints_for(clients).iter().map(target).collect();
    let fate = match backend.refusal().filter(|_| targets.is_empty()) {
        Some(Refusal::Reject) => Fate::Refused(Refusal::Reject, RefusalReason::NoEndpoint),
        Some(Refusal::Drop) => Fate::Refused(Refusal::Drop, RefusalReason::NoLocalEndpoint),
        None => Fate::Forwarded { targets, affinity: backend.affinity },
    };
    Explanation { service: Some(backend.service.clone()), admission: admission(backend, client), fate }
}

/// Where the client is.
struct Place {
    ip: Option<IpAddr>,
    is_pod: bool,
    is_node: bool,
}

impl Place {
    fn new(desired: &Desired, node: &BTreeSet<IpAddr>, client: Client) -> Place {
        let ip = match client {
            Client::Address(ip) => Some(ip),
            Client::Outside => None,
        };
        Place {
            ip,
            is_pod: ip.is_some_and(|ip| desired.pod_networks.iter().any(|network| network.contains(&ip))),
            is_node: ip.is_some_and(|ip| node.contains(&ip)),
        }
    }
}

fn admission(backend: &Backend, client: Client) -> Admission {
    let Some(all) = backend.source_ranges.clone() else { return Admission::Everybody };
    match client {
        Client::Address(ip) if backend.admits(ip) => Admission::Admitted(all),
        Client::Address(_) => Admission::Denied(all),
        Client::Outside if all.is_empty() => Admission::Denied(all),
        Client::Outside => Admission::Depends(all),
    }
}

fn without_service(desired: &Desired, frontend: &Frontend) -> Fate {
    if desired.cluster_ips.contains(&frontend.ip) {
        Fate::Refused(Refusal::Reject, RefusalReason::NoSuchPort)
    } else if desired.service_cidrs.iter().any(|cidr| cidr.contains(&frontend.ip)) {
        Fate::Refused(Refusal::Drop, RefusalReason::NoService)
    } else {
        Fate::Untouched
    }
}

fn masquerade(
    desired: &Desired,
    node: &BTreeSet<IpAddr>,
    place: &Place,
    backend: &Backend,
    endpoint: IpAddr,
) -> Option<Masquerade> {
    if place.ip == Some(endpoint) && desired.local_endpoint_ips.contains(&endpoint) {
        return Some(Masquerade::Itself);
    }
    // A packet that this node receives for itself does not pass postrouting.
    if node.contains(&endpoint) && !place.is_node {
        return None;
    }
    match backend.reach {
        Reach::Cluster => Some(Masquerade::External),
        Reach::Local => place.is_node.then_some(Masquerade::Process),
        Reach::ClusterIp => (!place.is_pod).then_some(Masquerade::NotAPod),
    }
}

impl fmt::Display for Masquerade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Masquerade::Itself => "the endpoint is the client itself",
            Masquerade::External => "the address is external and its traffic policy is Cluster",
            Masquerade::Process => "the client is a process of this node and the address is external",
            Masquerade::NotAPod => "the client is not a pod of this node",
        })
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefusalReason::NoEndpoint => "the Service has no endpoint on any node",
            RefusalReason::NoLocalEndpoint => {
                "the traffic policy is Local, and only other nodes have endpoints"
            }
            RefusalReason::NoSuchPort => "the Service with this cluster IP does not have the port",
            RefusalReason::NoService => "no Service has this address of a ServiceCIDR",
        })
    }
}
