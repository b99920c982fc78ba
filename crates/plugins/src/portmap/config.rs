//! The portmap plugin's config.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{capability, json};
use podwire_ip::IpFamily;
use podwire_kernel::firewall::hostports::{Options, PortMap, Protocol, Snat};
use serde::Deserialize;

use super::conditions;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "runtimeConfig.portMappings",
    "snat",
    "masqAll",
    "conditionsV4",
    "conditionsV6",
    "backend",
    "markMasqBit",
    "externalSetMarkChain",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
}

/// The settings of the config and the runtime.
#[derive(Debug)]
pub(super) struct Conf {
    pub options: Options,
    ports: Vec<Port>,
    /// Whether the runtime passed a list of ports, even an empty one.
    pub ports_are_known: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Port {
    protocol: Protocol,
    host_ip: Option<IpAddr>,
    host_port: u16,
    container_port: u16,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

impl Conf {
    pub fn read(req: &Request<'_>) -> Result<Conf> {
        let keys: Keys = req.config()?;
        keys.check()?;
        let snat = if !keys.snat.unwrap_or(true) {
            Snat::Off
        } else if keys.masq_all {
            Snat::All
        } else {
            Snat::Local
        };
        let conditions = |key: &str, words: Option<Vec<String>>, family: IpFamily| {
            conditions::parse(key, &words.unwrap_or_default(), family)
        };
        let options = Options {
            snat,
            conditions_v4: conditions("conditionsV4", keys.conditions_v4, IpFamily::V4)?,
            conditions_v6: conditions("conditionsV6", keys.conditions_v6, IpFamily::V6)?,
        };
        let runtime = json::get(&req.config, "runtimeConfig").and_then(|value| value.as_object());
        let ports_are_known =
            runtime.is_some_and(|all| all.keys().any(|key| key.eq_ignore_ascii_case("portMappings")));
        Ok(Conf { options, ports: ports(req)?, ports_are_known })
    }

    /// Whether the pod has ports.
    pub fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// The maps to a pod with these addresses.
    pub fn maps(&self, addresses: &[IpNet]) -> Vec<PortMap> {
        let map = |port: &Port, pod: IpNet| PortMap {
            protocol: port.protocol,
            host_ip: port.host_ip,
            host_port: port.host_port,
            pod,
            pod_port: port.container_port,
        };
        // A node's address of one family cannot be mapped to the pod's address of the other.
        let is_same_family = |port: &Port, pod: &IpNet| {
            port.host_ip.is_none_or(|ip| IpFamily::of(ip) == IpFamily::of_net(*pod))
        };
        let to_all = |port| {
            addresses.iter().filter(move |pod| is_same_family(port, pod)).map(move |pod| map(port, *pod))
        };
        self.ports.iter().flat_map(to_all).collect()
    }
}

impl Keys {
    /// Checks the keys. `markMasqBit` and `externalSetMarkChain` define how iptables marks packets for source NAT.
    /// nftables needs no mark, so both are validated and have no effect.
    fn check(&self) -> Result<()> {
        if !matches!(self.backend.as_deref(), None | Some("" | "iptables" | "nftables")) {
            let text = format!("unrecognized backend {:?}", self.backend.as_deref().unwrap_or_default());
            let hint = "set backend to nftables or iptables";
            return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
        }
        if self.mark_masq_bit.is_some() && self.external_set_mark_chain.is_some() {
            return invalid("Cannot specify externalSetMarkChain and markMasqBit".into());
        }
        match self.mark_masq_bit {
            Some(bit) if !(0..=31).contains(&bit) => {
                let error = podwire_cni_spec::Error::invalid_config("MasqMarkBit must be between 0 and 31");
                Err(error.with_hint(format!("markMasqBit is {bit}")).into())
            }
            _ => Ok(()),
        }
    }
}

const ALL_ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

fn ports(req: &Request<'_>) -> Result<Vec<Port>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    let is_of_pod = |ip: &IpAddr| {
        let same = |pod: &podwire_cni_spec::Ip| pod.address.addr().is_ipv4() == ip.is_ipv4();
        req.prev.as_ref().is_none_or(|prev| prev.ips.iter().any(same))
    };
    for (n, mapping) in capability::port_mappings(&req.config)?.into_iter().enumerate() {
        let key = format!("runtimeConfig.portMappings[{n}]");
        let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
            "" => Protocol::Tcp,
            name => match Protocol::from_name(name) {
                Some(protocol) => protocol,
                None => {
                    return invalid(format!(
                        "{key}.protocol: unknown protocol {name:?}, choose tcp, udp or sctp"
                    ))
                }
            },
        };
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => match podwire_cni_spec::addr::parse_ip(text) {
                Ok(ip) => Some(ip),
                Err(error) => return invalid(format!("{key}.hostIP: {}", error.msg)),
            },
        };
        let port =
            Port { protocol, host_ip, host_port: mapping.host_port, container_port: mapping.container_port };
        // No address means both families. A family that the pod does not have is ignored.
        let mut addresses =
            host_ip.map_or(ALL_ADDRESSES.to_vec(), |ip| vec![ip]).into_iter().filter(is_of_pod);
        if !addresses.all(|ip| seen.insert((protocol, ip, port.host_port))) {
            return invalid(format!(
                "{key}: host port {}/{} is requested twice",
                port.host_port,
                protocol.name()
            ));
        }
        all.push(port);
    }
    Ok(all)
}
