//! `podwire service list`.

use clap::Args;
use podwire_services::{ClaimKind, Protocol};
use serde_json::{json, Value};

use super::node_services::NodeServices;
use super::source_flags::SourceFlags;
use super::view::{addresses, ServiceView};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire service list
  podwire service list --services kubernetes --kubeconfig /etc/kubernetes/admin.conf
  podwire service list --json | jq '.services[] | select(.problems != [])'

The Services are those in the kernel, so the list is right also while no agent runs. ENDPOINTS is
the number of endpoints that get connections, those on this node first. Without --services, an
address that is neither a cluster IP nor the node's makes the type `external`, because the kernel
does not know whether it is a load balancer's. With --services, mistakes in objects are listed too.";

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    source: SourceFlags,
}

/// A port of a Service.
#[derive(PartialEq)]
struct Port {
    name: String,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
}

impl List {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        let node = NodeServices::read(&self.source, "cannot list the Services of this node")?;
        let (all, paint) = (node.all(), Paint::stdout());
        let head = ["NAMESPACE", "NAME", "TYPE", "ADDRESSES", "PORTS", "ENDPOINTS"];
        let mut text = match all[..] {
            [] => "no Services\n".to_owned(),
            _ => table(&head, &all.iter().map(row).collect::<Vec<_>>(), paint),
        };
        let of_service = |service: &ServiceView| {
            let name = service.name.to_string();
            let own = service.problems.iter().filter(|problem| !node.problems.contains(problem));
            own.map(|problem| format!("Service {name}: {problem}")).collect::<Vec<_>>()
        };
        let problems: Vec<String> =
            all.iter().flat_map(of_service).chain(node.problems.iter().cloned()).collect();
        text.extend(problems.iter().map(|problem| format!("{} {problem}\n", paint.bad("problem:"))));
        let json = json!({
            "services": all.iter().map(to_json).collect::<Vec<_>>(),
            "problems": node.problems,
        });
        Ok(Output::new(text, json))
    }
}

fn row(service: &ServiceView) -> Vec<String> {
    let join = |texts: Vec<String>| texts.join(" ");
    vec![
        service.name.namespace.clone(),
        service.name.name.clone(),
        service.kind.clone(),
        join(addresses(service).iter().map(ToString::to_string).collect()),
        join(ports(service).iter().map(Port::text).collect()),
        format!("{}/{}", service.local_endpoints, service.endpoints),
    ]
}

fn to_json(service: &ServiceView) -> Value {
    json!({
        "namespace": service.name.namespace,
        "name": service.name.name,
        "type": service.kind,
        "ips": addresses(service),
        "servicePorts": ports(service).iter().map(Port::json).collect::<Vec<_>>(),
        "endpoints": service.endpoints,
        "localEndpoints": service.local_endpoints,
        "problems": service.problems,
    })
}

/// The ports, each with its NodePort.
fn ports(service: &ServiceView) -> Vec<Port> {
    let node_port = ClaimKind::NodePort.to_string();
    let (at_node, others): (Vec<_>, Vec<_>) = service.frontends.iter().partition(|one| one.kind == node_port);
    let mut ports: Vec<Port> = Vec::new();
    for one in others {
        let same = |other: &&&super::view::FrontendView| {
            other.port_name == one.port_name && other.frontend.protocol == one.frontend.protocol
        };
        let port = Port {
            name: one.port_name.clone(),
            protocol: one.frontend.protocol,
            port: one.frontend.port,
            node_port: at_node.iter().find(same).map(|other| other.frontend.port),
        };
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

impl Port {
    /// As kubectl writes it: `80/TCP` or `80:30080/TCP`.
    fn text(&self) -> String {
        let node_port = self.node_port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{node_port}/{}", self.port, self.protocol)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "protocol": self.protocol.name(),
            "port": self.port,
            "nodePort": self.node_port,
        })
    }
}
