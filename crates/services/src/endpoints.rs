//! The endpoints of each Service port, joined from the slices of the Service.
//!
//! A slice port belongs to the Service port with the same name and protocol. Its number may differ from slice to slice:
//! named target ports have one number for each pod.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use podwire_ip::IpFamily;
use podwire_policy::Protocol;

use crate::api::{self, EndpointSlice};
use crate::objects::{describe, Kind, ObjectName};
use crate::Problem;

/// An endpoint of one Service port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    pub addr: SocketAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Whether it runs on this node; `None` if the slice does not say where it runs.
    pub local: Option<bool>,
    pub zones: Vec<String>,
    pub nodes: Vec<String>,
}

/// The endpoints of a Service, by port name, protocol and family.
pub(crate) type EndpointsByPort = BTreeMap<(String, Protocol, IpFamily), Vec<Endpoint>>;

/// Joins the slices of one Service.
pub(crate) fn join(
    slices: &[(&ObjectName, &EndpointSlice)],
    node: &str,
    problems: &mut Vec<Problem>,
) -> EndpointsByPort {
    let mut joined: BTreeMap<(String, Protocol, IpFamily), BTreeMap<SocketAddr, Endpoint>> = BTreeMap::new();
    for (name, slice) in slices {
        let mut report =
            |text: String| problems.push(Problem::new(describe(Kind::EndpointSlice, name), text));
        let family = match slice.address_type.as_str() {
            "IPv4" => IpFamily::V4,
            "IPv6" => IpFamily::V6,
            // Host names: proxies do not serve them.
            _ => continue,
        };
        let ports = ports(slice, &mut report);
        let addressed = slice.endpoints.iter().filter_map(|endpoint| {
            let written = endpoint.addresses.first()?;
            match address(written, family) {
                Ok(ip) => Some((ip, endpoint)),
                Err(reason) => {
                    report(format!("endpoint address {written:?} {reason}; it is ignored"));
                    None
                }
            }
        });
        for (ip, endpoint) in addressed.collect::<Vec<_>>() {
            for (port_name, protocol, port) in &ports {
                let endpoint = Endpoint::new(SocketAddr::new(ip, *port), endpoint, node);
                let same_port = joined.entry((port_name.to_string(), *protocol, family)).or_default();
                add(same_port, endpoint);
            }
        }
    }
    joined.into_iter().map(|(key, endpoints)| (key, endpoints.into_values().collect())).collect()
}

/// An address that occurs twice was given to a new pod before the old pod's object is gone: the copy that is not
/// terminating counts.
fn add(endpoints: &mut BTreeMap<SocketAddr, Endpoint>, endpoint: Endpoint) {
    let present = endpoints.get(&endpoint.addr);
    if present.is_none_or(|present| present.terminating && !endpoint.terminating) {
        endpoints.insert(endpoint.addr, endpoint);
    }
}

/// The slice's ports: name, protocol, number. A port without a number means any port, which proxies do not serve.
fn ports<'a>(slice: &'a EndpointSlice, report: &mut impl FnMut(String)) -> Vec<(&'a str, Protocol, u16)> {
    let one = |port: &'a api::EndpointPort| {
        let number = port.port.filter(|number| *number != 0)?;
        match (u16::try_from(number), protocol(&port.protocol)) {
            (Ok(number), Some(protocol)) => Some((port.name.as_str(), protocol, number)),
            _ => {
                report(format!("port {number} {:?} is not a port; it is ignored", port.protocol));
                None
            }
        }
    };
    slice.ports.iter().filter_map(one).collect()
}

/// A protocol of the API; TCP if none is written.
pub(crate) fn protocol(written: &str) -> Option<Protocol> {
    if written.is_empty() {
        Some(Protocol::Tcp)
    } else {
        Protocol::named(written)
    }
}

/// An address that packets can be sent to. The API server refuses the others, too: they mean another machine on each
/// node.
pub(crate) fn address(written: &str, family: IpFamily) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = written.parse().map_err(|_| "is not an IP address")?;
    if IpFamily::of(ip) != family {
        return Err("is of the other family");
    }
    special_use(ip).map_or(Ok(ip), Err)
}

/// Why an address cannot be that of a Service or an endpoint.
pub(crate) fn special_use(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Some("is a loopback address")
    } else if link_local {
        Some("is a link-local address")
    } else if ip.is_unspecified() {
        Some("is the unspecified address")
    } else if ip.is_multicast() {
        Some("is a multicast address")
    } else {
        None
    }
}

impl Endpoint {
    fn new(addr: SocketAddr, written: &api::Endpoint, node: &str) -> Endpoint {
        let names = |hints: &[api::NamedHint]| hints.iter().map(|hint| hint.name.clone()).collect();
        Endpoint {
            addr,
            ready: written.conditions.ready.unwrap_or(true),
            serving: written.conditions.serving.unwrap_or(true),
            terminating: written.conditions.terminating.unwrap_or(false),
            local: (!written.node_name.is_empty()).then(|| written.node_name == node),
            zones: names(&written.hints.for_zones),
            nodes: names(&written.hints.for_nodes),
        }
    }

    pub fn is_local(&self) -> bool {
        self.local == Some(true)
    }

    /// Whether it is a last resort: it still serves while it is being deleted.
    pub fn is_draining(&self) -> bool {
        self.serving && self.terminating
    }
}
