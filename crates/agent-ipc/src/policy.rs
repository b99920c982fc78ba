//! Requests of plugins to the policy agent: an ADD waits until the rules for its pod are in the kernel, so that they apply
//! to the pod's first packet.

use std::net::IpAddr;

use podwire_cni_spec::{addr, json, Args, Attachment, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{message, Owner};

/// The policy agent's socket.
pub const SOCKET: &str = "/run/podwire/policy.sock";

/// A request of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// The interface was attached; the response says whether its policies are enforced.
    Attach {
        /// The interface.
        interface: Box<Interface>,
        /// The time limit for the response, in milliseconds.
        timeout_ms: u64,
    },
    /// The interface was removed.
    Detach {
        /// The interface's owner.
        owner: Owner,
    },
}

impl message::Request for Request {
    type Response = Response;
}

/// The policy agent's response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Whether the pod's policies are enforced.
    pub enforced: bool,
    /// Why they are not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A pod's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// The attachment.
    pub owner: Owner,
    /// The pod's Kubernetes namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The networks that the pod may claim as additional source addresses; see [`allowed_source_prefixes`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_source_prefixes: Vec<String>,
    /// The host end of its veth pair, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_interface: Option<HostInterface>,
}

/// The host end of a pod's veth pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInterface {
    /// The device's name.
    pub name: String,
    /// Whether it is a bridge port.
    pub is_bridge_port: bool,
    /// The bridge, if it is a port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bridge: String,
    /// The MAC address of the pod's end.
    pub pod_mac: String,
    /// Its MAC address when it was created, if the plugin tuning changed it: the kernel derived the link-local address
    /// from it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub first_mac: String,
    /// Whether the network's config makes it a VLAN trunk.
    #[serde(default)]
    pub is_trunk: bool,
    /// Whether the pod's addresses come from DHCP.
    #[serde(default)]
    pub uses_dhcp: bool,
}

impl HostInterface {
    /// Finds it in a result of bridge or ptp, which list the bridge (if there is one), the host end and the pod's end.
    fn find(result: &Attachment, ifname: &str, config: &Value) -> Option<HostInterface> {
        let inside =
            result.interfaces.iter().position(|one| !one.sandbox.is_empty() && one.name == ifname)?;
        let outside = inside.checked_sub(1)?;
        Some(HostInterface {
            name: result.interfaces[outside].name.clone(),
            is_bridge_port: outside > 0,
            bridge: outside.checked_sub(1).map(|at| result.interfaces[at].name.clone()).unwrap_or_default(),
            pod_mac: result.interfaces[inside].mac.clone(),
            first_mac: String::new(),
            is_trunk: json::get(config, "vlanTrunk")
                .and_then(Value::as_array)
                .is_some_and(|list| !list.is_empty()),
            uses_dhcp: config.pointer("/ipam/type").and_then(Value::as_str) == Some("dhcp"),
        })
    }
}

impl Interface {
    /// The interface that an ADD with this config, these `CNI_ARGS` and this result created.
    pub fn new(owner: Owner, args: &Args, config: &Value, result: &Attachment) -> Interface {
        let text = |key: &str| args.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
        Interface {
            // A runtime without pods passes neither: its container is the pod.
            namespace: text("K8S_POD_NAMESPACE").unwrap_or_else(|| "default".into()),
            pod: text("K8S_POD_NAME").unwrap_or_else(|| owner.container.clone()),
            // An ADD fails if they are invalid.
            allowed_source_prefixes: allowed_source_prefixes(config).unwrap_or_default(),
            addresses: result.ips.iter().map(|ip| ip.address.addr()).collect(),
            host_interface: HostInterface::find(result, &owner.ifname, config),
            owner,
        }
    }

    /// Notes that the pod's end has another MAC address now.
    pub fn set_mac(&mut self, mac: &str) {
        let Some(port) = self.host_interface.as_mut().filter(|port| port.pod_mac != mac) else { return };
        if port.first_mac.is_empty() {
            port.first_mac.clone_from(&port.pod_mac);
        }
        port.pod_mac = mac.to_owned();
    }

    /// `namespace/pod`.
    pub fn pod_name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

/// The networks of `policy.allowedSourcePrefixes` in a network's config. A pod claims source addresses by an annotation, which
/// every user who may create pods can set, so the network's administrator limits the claims here.
pub fn allowed_source_prefixes(config: &Value) -> Result<Vec<String>, Error> {
    let list = json::get(config, "policy").and_then(|policy| json::get(policy, "allowedSourcePrefixes"));
    let invalid = |value: &Value| {
        let text = format!(
            "policy.allowedSourcePrefixes: {value} is not a list of networks such as \"10.8.0.0/16\""
        );
        Error::invalid_config(text)
    };
    let Some(list) = list else { return Ok(Vec::new()) };
    let network = |value: &Value| match value.as_str().map(addr::parse_net) {
        Some(Ok(network)) => Ok(network.to_string()),
        _ => Err(invalid(value)),
    };
    list.as_array().ok_or_else(|| invalid(list))?.iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_decodes_to_the_same_value() {
        let interface = Interface {
            pod: "web".into(),
            addresses: vec!["10.1.0.2".parse().unwrap()],
            ..Interface::default()
        };
        let request = Request::Attach { interface: Box::new(interface), timeout_ms: 10_000 };
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.starts_with(r#"{"request":"attach","interface":{"#), "{text}");
        assert!(text.ends_with(r#""timeoutMs":10000}"#), "{text}");
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn a_container_without_a_pod_is_its_own_pod() {
        let pod = |args: &Args| {
            let owner = Owner::new("net", "c1", "eth0");
            Interface::new(owner, args, &Value::Null, &Attachment::default()).pod_name()
        };
        assert_eq!(pod(&Args::parse("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web").unwrap()), "shop/web");
        assert_eq!(pod(&Args::default()), "default/c1");
    }
}
