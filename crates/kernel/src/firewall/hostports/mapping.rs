//! A mapping from a host port to a pod port, and its elements in sets and maps.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::attr;
use podwire_netlink::nft::{Data, Element, Value};

use super::super::elements::Entry;
use super::super::naming::{is_single_address, set_name};
use super::options::Snat;

/// Maps from protocol and port, for IPv4 and IPv6.
pub(super) const ANY: [&str; 2] = ["ports4", "ports6"];
/// Maps from address, protocol and port.
pub(super) const HOST: [&str; 2] = ["hostports4", "hostports6"];
/// Addresses, protocols and ports of pods for which all clients are masqueraded.
pub(super) const SNAT_ALL: [&str; 2] = ["masquerade4", "masquerade6"];

/// A pod's address twice, and its ports: connections of a pod with a single-address network to itself through the node.
pub(super) const SELF: [&str; 2] = ["self4", "self6"];

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// The protocol of this name, in lower case.
    pub fn from_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Its number in an IP header (`linux/in.h`).
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mapping from a port of the node to a port of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortMap {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The only address of the node to map. An address of another family than the pod's maps nothing.
    pub host_ip: Option<IpAddr>,
    /// The node's port.
    pub host_port: u16,
    /// The pod's address, with the prefix of its network.
    pub pod: IpNet,
    /// The pod's port.
    pub pod_port: u16,
}

impl PortMap {
    /// The index of its family in the names of maps.
    fn family_index(&self) -> usize {
        usize::from(self.pod.addr().is_ipv6())
    }

    /// The only address of the node to map; `0.0.0.0` and `::` mean any.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|addr| !addr.is_unspecified())
    }

    pub(super) fn maps_something(&self) -> bool {
        self.host_ip.is_none_or(|addr| addr.is_ipv4() == self.pod.addr().is_ipv4())
    }

    /// Its map and key.
    fn key(&self) -> (&'static str, Value) {
        match self.address() {
            None => {
                (ANY[self.family_index()], Value::protocol(self.protocol.number()).and_port(self.host_port))
            }
            Some(addr) => {
                let key = Value::ip(addr).and_protocol(self.protocol.number()).and_port(self.host_port);
                (HOST[self.family_index()], key)
            }
        }
    }

    fn data(&self) -> Value {
        Value::ip(self.pod.addr()).and_port(self.pod_port)
    }

    /// The key of the pod's port in the sets of masqueraded clients.
    fn pod_key(&self) -> Value {
        Value::ip(self.pod.addr()).and_protocol(self.protocol.number()).and_port(self.pod_port)
    }

    /// The sets and keys for masqueraded clients.
    fn snat_keys(&self, snat: Snat) -> Vec<(Cow<'static, str>, Value)> {
        match snat {
            Snat::Off => vec![],
            Snat::Local => {
                let mut keys = vec![(set_name("local", &self.pod).into(), self.pod_key())];
                // Its only local client is the pod itself.
                keys.extend(
                    is_single_address(&self.pod).then(|| (SELF[self.family_index()].into(), self.self_key())),
                );
                keys
            }
            Snat::All => vec![(SNAT_ALL[self.family_index()].into(), self.pod_key())],
        }
    }

    fn self_key(&self) -> Value {
        let pod = self.pod.addr();
        Value::ip(pod).and_ip(pod).and_protocol(self.protocol.number()).and_port(self.pod_port)
    }

    pub(super) fn entries(&self, owner: &str, snat: Snat) -> Vec<Entry> {
        let (set, key) = self.key();
        let mut entries = vec![Entry::own(set, Element::key(key).to(self.data()).comment(owner))];
        let masqueraded = self.snat_keys(snat).into_iter();
        entries.extend(masqueraded.map(|(set, key)| Entry::own(set, Element::key(key).comment(owner))));
        entries
    }

    /// All sets and keys that it may have, for any [`Snat`].
    pub(super) fn keys(&self) -> Vec<(Cow<'static, str>, Value)> {
        let (set, key) = self.key();
        let snat = [Snat::Local, Snat::All].into_iter().flat_map(|snat| self.snat_keys(snat));
        [(set.into(), key)].into_iter().chain(snat).collect()
    }

    /// Reads an element of a map. It does not contain the prefix length of the pod's network.
    pub(super) fn from_element(element: &Element) -> Option<PortMap> {
        let Data::Value(to) = &element.data else { return None };
        let key = element.key.bytes();
        let (host, key) = key.split_at(key.len().checked_sub(8)?);
        let (pod, pod_port) = to.bytes().split_at(to.bytes().len().checked_sub(4)?);
        let port = |bytes: &[u8]| Some(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
        Some(PortMap {
            protocol: Protocol::from_number(key[0])?,
            host_ip: attr::ip(host),
            host_port: port(&key[4..])?,
            pod: attr::ip(pod)?.into(),
            pod_port: port(pod_port)?,
        })
    }
}
