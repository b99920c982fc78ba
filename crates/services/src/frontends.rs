//! Frontends, which clients connect to, and their backends.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use podwire_policy::Protocol;

/// Where a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub struct Frontend {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.ip, self.port))
    }
}

/// Which clients reach which endpoints through a frontend, and whose source address is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A cluster IP: all clients reach the same endpoints. Only this node's pods keep their address.
    ClusterIp,
    /// An external address with the policy `Cluster`: all clients reach the same endpoints. No client keeps its address.
    Cluster,
    /// An external address with the policy `Local`: this node's pods and processes reach all endpoints, other clients
    /// only those of this node. Clients keep their address, except the node's processes.
    Local,
}

/// What happens to a packet for which there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// ICMP port unreachable: no node has an endpoint.
    Reject,
    /// Dropped: another node has one.
    Drop,
}

/// Which of two groups of clients, where the external traffic policy `Local` makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clients {
    /// All clients; with [`Reach::Local`], this node's pods and processes.
    All,
    /// With [`Reach::Local`], the other clients.
    Others,
}

/// The endpoints of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The Service port: `shop/web:http`.
    pub service: String,
    /// Which clients reach which endpoints.
    pub reach: Reach,
    /// The endpoints, without duplicates. With [`Reach::Local`]: those for this node's pods and processes.
    pub endpoints: Vec<SocketAddr>,
    /// With [`Reach::Local`]: the endpoints for other clients. Otherwise empty.
    pub local_endpoints: Vec<SocketAddr>,
    /// For UDP: the endpoints, on any node and ready or not, to which connections may stay. Otherwise empty.
    pub serving_endpoints: Vec<SocketAddr>,
    /// Whether any node has an endpoint.
    pub any_endpoint: bool,
    /// How long a client keeps its endpoint, if it does.
    pub affinity: Option<Duration>,
    /// The clients that may connect; `None` is all.
    pub source_ranges: Option<Vec<IpNet>>,
}

impl Backend {
    /// The endpoints for these clients.
    pub fn endpoints_for(&self, clients: Clients) -> &[SocketAddr] {
        match clients {
            Clients::All => &self.endpoints,
            Clients::Others => &self.local_endpoints,
        }
    }

    /// Whether the source ranges admit a client.
    pub fn admits(&self, client: IpAddr) -> bool {
        let Some(ranges) = &self.source_ranges else { return true };
        ranges.iter().any(|range| range.contains(&client))
    }

    /// What happens to packets that get no endpoint.
    pub fn refusal(&self) -> Option<Refusal> {
        let endpoints = match self.reach {
            Reach::ClusterIp | Reach::Cluster => &self.endpoints,
            Reach::Local => &self.local_endpoints,
        };
        let refusal = if self.any_endpoint { Refusal::Drop } else { Refusal::Reject };
        endpoints.is_empty().then_some(refusal)
    }
}
