//! What a packet is sent to: a Service with or without a port, or an address with a port.

use std::net::{IpAddr, SocketAddr};

use podwire_cni_spec::Error;
use podwire_services::{Frontend, ObjectName, Protocol, Reach};

use super::node_services::NodeServices;
use super::service_name;
use super::view::{FrontendView, ServiceView};

/// A target as it is written.
#[derive(Debug, PartialEq)]
pub(super) enum Target {
    Service { name: ObjectName, port: Option<Port> },
    Address { addr: SocketAddr, protocol: Option<Protocol> },
}

/// A port: its name or number, and its protocol if that is written.
#[derive(Debug, PartialEq)]
pub(super) struct Port {
    text: String,
    protocol: Option<Protocol>,
}

impl Target {
    /// `SERVICE[:PORT[/PROTOCOL]]` or `ADDRESS:PORT[/PROTOCOL]`.
    pub(super) fn parse(text: &str) -> Result<Target, Error> {
        let wrong = |why: String| {
            let hint = "write NAMESPACE/NAME, NAMESPACE/NAME:PORT or ADDRESS:PORT, with /UDP or /SCTP after the port";
            Error::env(why).with_details(hint)
        };
        let (rest, protocol) = match text.rsplit_once('/') {
            Some((rest, word)) if rest.contains(':') => {
                let protocol = Protocol::named(word);
                (rest, Some(protocol.ok_or_else(|| wrong(format!("{word:?} is not TCP, UDP or SCTP")))?))
            }
            _ => (text, None),
        };
        if let Ok(addr) = rest.parse::<SocketAddr>() {
            return Ok(Target::Address { addr, protocol });
        }
        if rest.parse::<IpAddr>().is_ok() {
            return Err(wrong(format!("{rest} has no port")));
        }
        let (name, port) = match rest.split_once(':') {
            Some((_, "")) => return Err(wrong(format!("{text:?} has no port after the colon"))),
            Some((name, port)) => (name, Some(Port { text: port.to_owned(), protocol })),
            None => (rest, None),
        };
        Ok(Target::Service { name: service_name::parse(name)?, port })
    }

    /// The frontends that it stands for, and the Service if it names one.
    pub(super) fn frontends(
        &self,
        node: &NodeServices,
    ) -> Result<(Vec<Frontend>, Option<ServiceView>), Error> {
        match self {
            Target::Address { addr, protocol } => {
                let at = |protocol| Frontend { ip: addr.ip(), protocol, port: addr.port() };
                let known = |frontend: &Frontend| node.installed.frontends.contains_key(frontend);
                let mut all: Vec<Frontend> = match protocol {
                    Some(protocol) => vec![at(*protocol)],
                    None => Protocol::ALL.into_iter().map(at).filter(known).collect(),
                };
                if all.is_empty() {
                    all.push(at(Protocol::Tcp));
                }
                Ok((all, None))
            }
            Target::Service { name, port } => {
                let service = node.get(name)?;
                let frontends = match port {
                    Some(port) => port.frontends(&service)?,
                    None => service.frontends.iter().map(|one| one.frontend).collect(),
                };
                Ok((frontends, Some(service)))
            }
        }
    }
}

impl Port {
    /// The frontends with this port. A number that the Service does not have stands for this port of its cluster IPs.
    fn frontends(&self, service: &ServiceView) -> Result<Vec<Frontend>, Error> {
        let has_port =
            |one: &&FrontendView| one.port_name == self.text || one.frontend.port.to_string() == self.text;
        let has_protocol =
            |one: &&FrontendView| self.protocol.is_none_or(|protocol| one.frontend.protocol == protocol);
        let some = service.frontends.iter().filter(has_port).filter(has_protocol);
        let found: Vec<Frontend> = some.map(|one| one.frontend).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let Ok(number) = self.text.parse::<u16>() else {
            let mut known: Vec<&str> = service.frontends.iter().map(|one| one.port_name.as_str()).collect();
            known.retain(|name| !name.is_empty());
            known.sort_unstable();
            known.dedup();
            let hint = match known[..] {
                [] => "its ports have no names: write the number".to_owned(),
                _ => format!("its ports are {}", known.join(", ")),
            };
            let text = format!("Service {} has no port {:?}", service.name, self.text);
            return Err(Error::invalid_config(text).with_details(hint));
        };
        let protocol = self.protocol.unwrap_or(Protocol::Tcp);
        let cluster = service.frontends.iter().filter(|one| one.backend.reach == Reach::ClusterIp);
        let mut all: Vec<Frontend> =
            cluster.map(|one| Frontend { protocol, port: number, ..one.frontend }).collect();
        all.sort();
        all.dedup();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_services_or_addresses() {
        let service = |name: &str, port: Option<(&str, Option<Protocol>)>| Target::Service {
            name: service_name::parse(name).unwrap(),
            port: port.map(|(text, protocol)| Port { text: text.into(), protocol }),
        };
        let address = |addr: &str, protocol| Target::Address { addr: addr.parse().unwrap(), protocol };
        for (text, expected) in [
            ("web", service("default/web", None)),
            ("shop/web", service("shop/web", None)),
            ("shop/web:http", service("shop/web", Some(("http", None)))),
            ("shop/web:53/udp", service("shop/web", Some(("53", Some(Protocol::Udp))))),
            ("10.96.0.1:80", address("10.96.0.1:80", None)),
            ("10.96.0.1:53/UDP", address("10.96.0.1:53", Some(Protocol::Udp))),
            ("[fd00::1]:80/sctp", address("[fd00::1]:80", Some(Protocol::Sctp))),
        ] {
            assert_eq!(Target::parse(text).unwrap(), expected, "{text}");
        }
        for (text, says) in [
            ("10.96.0.1", "has no port"),
            ("fd00::1", "has no port"),
            ("shop/web:", "has no port after the colon"),
            ("shop/web:80/ip", "not TCP, UDP or SCTP"),
            ("a/b/c", "not the name of a Service"),
        ] {
            let error = Target::parse(text).unwrap_err();
            assert!(error.msg.contains(says), "{text}: {error}");
        }
    }
}
