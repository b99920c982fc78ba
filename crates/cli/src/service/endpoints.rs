//! The endpoints of a Service port, for commands that are about the packets behind the Service.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use podwire_cni_spec::Error;
use podwire_services::{Protocol, Reach};

use super::node_services::NodeServices;
use super::source_flags::SourceFlags;
use super::target::Target;
use crate::failure::Failure;

/// An endpoint of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceEndpoint {
    /// The Service port: `shop/web:http`.
    pub service: String,
    pub protocol: Protocol,
    pub addr: SocketAddr,
}

/// The endpoints to which the kernel of this node sends packets for the cluster IPs of a Service. The port is one of the
/// Service: its number or name.
pub(crate) fn of_cluster_ips(service: &str, port: &str, what: &str) -> Result<Vec<ServiceEndpoint>, Failure> {
    let failed = |error: Error| Failure::new(what, error);
    let target = Target::parse(&format!("{service}:{port}")).map_err(failed)?;
    let node = NodeServices::read(&SourceFlags::default(), what)?;
    let (frontends, _) = target.frontends(&node).map_err(failed)?;
    let backends = frontends.iter().filter_map(|frontend| {
        let backend = node.installed.frontends.get(frontend)?;
        (backend.reach == Reach::ClusterIp).then_some((frontend.protocol, backend))
    });
    let endpoints: BTreeSet<ServiceEndpoint> = backends
        .flat_map(|(protocol, backend)| {
            let endpoint = move |addr: &SocketAddr| ServiceEndpoint {
                service: backend.service.clone(),
                protocol,
                addr: *addr,
            };
            backend.endpoints.iter().map(endpoint)
        })
        .collect();
    if endpoints.is_empty() {
        let text = format!("Service {service} has no endpoint for port {port} of its cluster IPs");
        let hint = format!("`podwire service show {service}` shows its ports and endpoints");
        return Err(failed(Error::invalid_config(text).with_details(hint)));
    }
    Ok(endpoints.into_iter().collect())
}
