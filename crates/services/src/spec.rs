//! The specification of a Service, parsed: addresses, ports, ranges and policies. What cannot be parsed is reported and
//! left out.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_policy::Protocol;

use crate::api::{Service, ServicePort};
use crate::endpoints::{protocol, special_use};
use crate::objects::{describe, Kind, ObjectName};
use crate::Problem;

/// More ports of one Service are not served: each takes an element for every address and endpoint.
const MAX_PORTS: usize = 1000;
/// The affinity timeout of a Service that names none, and the longest one, in seconds.
const DEFAULT_AFFINITY: i64 = 10800;
const MAX_AFFINITY: i64 = 86400;

/// A Service that this node serves.
#[derive(Clone, Debug)]
pub(crate) struct ServiceSpec {
    /// One of each family at most.
    pub cluster_ips: Vec<IpAddr>,
    /// The addresses of the load balancer to which packets arrive.
    pub load_balancer_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub ports: Vec<Port>,
    /// The clients that may use the load balancer's addresses, of both families; `None` is all.
    pub source_ranges: Option<Vec<IpNet>>,
    pub affinity: Option<Duration>,
    pub internal_local: bool,
    pub external_local: bool,
    pub health_check_port: Option<u16>,
}

/// A port of a Service.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
    pub node_port: Option<u16>,
}

/// Parses one Service.
struct Parser<'a> {
    name: &'a ObjectName,
    service: &'a Service,
    problems: &'a mut Vec<Problem>,
}

impl ServiceSpec {
    /// `None` if the node does not serve it: it is headless, without an address yet, a DNS name only, or belongs to
    /// another proxy.
    pub fn parse(name: &ObjectName, service: &Service, problems: &mut Vec<Problem>) -> Option<ServiceSpec> {
        let spec = &service.spec;
        let headless = spec.cluster_ip == "None" || spec.cluster_ips.iter().any(|ip| ip == "None");
        if headless || spec.kind == "ExternalName" || service.metadata.is_excluded() {
            return None;
        }
        let mut parser = Parser { name, service, problems };
        let cluster_ips = parser.cluster_ips();
        if cluster_ips.is_empty() {
            return None;
        }
        let is_accessible = match spec.kind.as_str() {
            "NodePort" | "LoadBalancer" => true,
            _ => !spec.external_ips.is_empty(),
        };
        let external_local = is_accessible && spec.external_traffic_policy == "Local";
        let checks_health = external_local && spec.kind == "LoadBalancer";
        let health_check_port = Some(spec.health_check_node_port).filter(|port| checks_health && *port != 0);
        Some(ServiceSpec {
            cluster_ips,
            load_balancer_ips: parser.load_balancer_ips(),
            external_ips: parser.addresses("externalIPs", &spec.external_ips),
            ports: parser.ports(),
            source_ranges: parser.source_ranges(),
            affinity: parser.affinity(),
            internal_local: spec.internal_traffic_policy == "Local",
            external_local,
            health_check_port: health_check_port
                .and_then(|port| parser.port_number("healthCheckNodePort", port)),
        })
    }

    /// The source ranges of a family; `None` is all clients. Ranges of the other family have no effect in this one. A range
    /// of all addresses restricts no client.
    pub fn source_ranges_of(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        let ranges = self.source_ranges.as_ref()?;
        let of_family: Vec<IpNet> =
            ranges.iter().copied().filter(|net| IpFamily::of_net(*net) == family).collect();
        // Without any valid range no client may connect.
        let restricts = ranges.is_empty() || !of_family.is_empty();
        let admits_all = of_family.iter().any(|net| net.prefix_len() == 0);
        (restricts && !admits_all).then_some(of_family)
    }
}

impl Parser<'_> {
    fn report(&mut self, text: String) {
        self.problems.push(Problem::new(describe(Kind::Service, self.name), text));
    }

    fn cluster_ips(&mut self) -> Vec<IpAddr> {
        let spec = &self.service.spec;
        let first = std::slice::from_ref(&spec.cluster_ip);
        let written = if spec.cluster_ips.is_empty() { first } else { &spec.cluster_ips[..] };
        let written: Vec<String> = written.iter().filter(|ip| !ip.is_empty()).cloned().collect();
        let all = self.addresses("clusterIPs", &written);
        let first = |family: IpFamily| all.iter().copied().find(|ip| IpFamily::of(*ip) == family);
        IpFamily::ALL.into_iter().filter_map(first).collect()
    }

    fn load_balancer_ips(&mut self) -> Vec<IpAddr> {
        let ingress = self.service.status.load_balancer.ingress.iter();
        let vips = ingress.filter(|ingress| ingress.ip_mode != "Proxy" && !ingress.ip.is_empty());
        let written: Vec<String> = vips.map(|ingress| ingress.ip.clone()).collect();
        self.addresses("status.loadBalancer.ingress", &written)
    }

    fn addresses(&mut self, field: &str, written: &[String]) -> Vec<IpAddr> {
        let mut all = Vec::new();
        for text in written {
            let parsed = text.parse::<IpAddr>().map_err(|_| "is not an IP address");
            match parsed.and_then(|ip| special_use(ip).map_or(Ok(ip), Err)) {
                Ok(ip) if all.contains(&ip) => {}
                Ok(ip) => all.push(ip),
                Err(reason) => self.report(format!("{field}: {text:?} {reason}; it is not served")),
            }
        }
        all
    }

    fn ports(&mut self) -> Vec<Port> {
        let written = &self.service.spec.ports;
        if written.len() > MAX_PORTS {
            self.report(format!("it has {} ports; only the first {MAX_PORTS} are served", written.len()));
        }
        written.iter().take(MAX_PORTS).filter_map(|port| self.port(port)).collect()
    }

    fn port(&mut self, written: &ServicePort) -> Option<Port> {
        let Some(protocol) = protocol(&written.protocol) else {
            self.report(format!("{:?} is not TCP, UDP or SCTP; its port is not served", written.protocol));
            return None;
        };
        let number = self.port_number("port", written.port)?;
        let node_port = Some(written.node_port).filter(|port| *port != 0);
        let node_port = node_port.and_then(|port| self.port_number("nodePort", port));
        Some(Port { name: written.name.clone(), protocol, number, node_port })
    }

    fn port_number(&mut self, field: &str, written: i64) -> Option<u16> {
        let number = u16::try_from(written).ok().filter(|number| *number != 0);
        if number.is_none() {
            self.report(format!("{field} {written} is not a port number; it is not served"));
        }
        number
    }

    fn source_ranges(&mut self) -> Option<Vec<IpNet>> {
        let written = &self.service.spec.load_balancer_source_ranges;
        let mut ranges = Vec::new();
        for text in written {
            match text.trim().parse::<IpNet>() {
                Ok(range) => ranges.push(range.trunc()),
                Err(_) => self.report(format!("loadBalancerSourceRanges: {text:?} is not a network")),
            }
        }
        (!written.is_empty()).then_some(ranges)
    }

    fn affinity(&mut self) -> Option<Duration> {
        if self.service.spec.session_affinity != "ClientIP" {
            return None;
        }
        let written = self.service.spec.session_affinity_config.client_ip.timeout_seconds;
        let seconds = written.unwrap_or(DEFAULT_AFFINITY);
        let valid = seconds.clamp(1, MAX_AFFINITY);
        if valid != seconds {
            self.report(format!("timeoutSeconds {seconds} is not from 1 to {MAX_AFFINITY}; {valid} is used"));
        }
        Some(Duration::from_secs(valid.unsigned_abs()))
    }
}
