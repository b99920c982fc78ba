//! Capability arguments: the typed entries of `runtimeConfig`.
//!
//! A plugin opts in with `"capabilities": {"portMappings": true}`; the runtime then adds the pod's
//! `runtimeConfig.portMappings` to the request. containerd writes `HostPort` and `IngressRate` where the
//! convention says `hostPort` and `ingressRate`; everything here reads both.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{json, Dns, Error};

/// A host port that is forwarded to the pod (`portMappings`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// The port on the host, never 0.
    #[serde(deserialize_with = "host_port")]
    pub host_port: u16,
    /// The port in the pod, never 0.
    #[serde(deserialize_with = "container_port")]
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`, in the runtime's spelling.
    #[serde(default)]
    pub protocol: String,
    /// The host's address to listen on; empty means all.
    #[serde(default, rename = "hostIP")]
    pub host_ip: String,
}

/// Limits on the pod's traffic (`bandwidth`), in bits a second and bits. Zero is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    /// The rate into the pod.
    pub ingress_rate: u64,
    /// The burst into the pod.
    pub ingress_burst: u64,
    /// The rate out of the pod.
    pub egress_rate: u64,
    /// The burst out of the pod.
    pub egress_burst: u64,
}

/// A range of addresses to choose from (`ipRanges`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// The subnet, as written.
    #[serde(with = "crate::addr::net")]
    pub subnet: IpNet,
    /// The first address; by default the first one of the subnet.
    #[serde(default, with = "crate::addr::optional_ip")]
    pub range_start: Option<IpAddr>,
    /// The last address; by default the last one of the subnet.
    #[serde(default, with = "crate::addr::optional_ip")]
    pub range_end: Option<IpAddr>,
    /// The gateway; by default the first address of the subnet.
    #[serde(default, with = "crate::addr::optional_ip")]
    pub gateway: Option<IpAddr>,
    /// Addresses that are never assigned: addresses, networks, or `first-last`. (Podwire's own key.)
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Addresses that are assigned only on request, in the same notation. (Podwire's own key.)
    #[serde(default)]
    pub reserve: Vec<String>,
}

/// Any capability of a plugin's config, or `None` if the runtime did not send it. Errors (code 7) begin with the
/// path from `runtimeConfig` on.
pub fn read<T: DeserializeOwned>(config: &Value, capability: &str) -> Result<Option<T>, Error> {
    match entry(config, capability)? {
        Some(entry) => json::decode_under(&["runtimeConfig", capability], entry).map(Some),
        None => Ok(None),
    }
}

fn entry<'v>(config: &'v Value, capability: &str) -> Result<Option<&'v Value>, Error> {
    match json::get(config, "runtimeConfig") {
        Some(all @ Value::Object(_)) => Ok(json::get(all, capability)),
        Some(other) => {
            Err(Error::invalid_config(format!("runtimeConfig: expected an object, found {other}")))
        }
        None => Ok(None),
    }
}

/// The ports to open, none if the runtime sent none.
pub fn port_mappings(config: &Value) -> Result<Vec<PortMapping>, Error> {
    read(config, "portMappings").map(Option::unwrap_or_default).map_err(with_text_of_go)
}

/// The traffic limits.
pub fn bandwidth(config: &Value) -> Result<Option<Bandwidth>, Error> {
    read(config, "bandwidth")
}

/// The address ranges: the pod gets one address from each set. A flat list, which containerd's library sends,
/// is a list of sets with one range each.
pub fn ip_ranges(config: &Value) -> Result<Vec<Vec<IpRange>>, Error> {
    const CAPABILITY: &str = "ipRanges";
    match entry(config, CAPABILITY)? {
        Some(Value::Array(list)) if list.iter().any(Value::is_object) => {
            let flat: Option<Vec<IpRange>> = read(config, CAPABILITY)?;
            Ok(flat.unwrap_or_default().into_iter().map(|range| vec![range]).collect())
        }
        _ => read(config, CAPABILITY).map(Option::unwrap_or_default),
    }
}

/// The addresses that the pod asks for, with or without prefix length.
pub fn ips(config: &Value) -> Result<Vec<String>, Error> {
    read(config, "ips").map(Option::unwrap_or_default)
}

/// The hardware address that the pod asks for.
pub fn mac(config: &Value) -> Result<Option<String>, Error> {
    read(config, "mac").map(|mac: Option<String>| mac.filter(|mac| !mac.is_empty()))
}

/// The pod's name servers: `servers`, `searches` and `options`.
pub fn dns(config: &Value) -> Result<Option<Dns>, Error> {
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct Resolver {
        servers: Vec<String>,
        searches: Vec<String>,
        options: Vec<String>,
    }
    let dns: Option<Resolver> = read(config, "dns")?;
    Ok(dns.map(|Resolver { servers, searches, options }| Dns {
        nameservers: servers,
        search: searches,
        options,
        ..Dns::default()
    }))
}

/// For a port number that is not possible, the Go plugin has a text, which does not name the key.
fn with_text_of_go(error: Error) -> Error {
    let Some((key, what)) = error.msg.split_once(": Invalid ") else { return error };
    Error::invalid_config(format!("Invalid {what}")).with_hint(format!("{key} must be 1 to 65535"))
}

fn host_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    port(deserializer, "host")
}

fn container_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    port(deserializer, "container")
}

fn port<'de, D: Deserializer<'de>>(deserializer: D, side: &str) -> Result<u16, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| D::Error::custom(format_args!("Invalid {side} port number: {number}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::code;

    fn config(key: &str, value: Value) -> Value {
        json!({"type": "x", "runtimeConfig": {key: value}})
    }

    #[test]
    fn port_mappings_are_read_as_containerd_and_as_the_convention_write_them() {
        let expected = PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "tcp".into(),
            host_ip: "10.0.0.1".into(),
        };
        let convention =
            json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "10.0.0.1"});
        let containerd =
            json!({"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "10.0.0.1"});
        let read = port_mappings(&config("portMappings", json!([convention, containerd])));
        assert_eq!(read, Ok(vec![expected.clone(), expected]));
    }

    #[test]
    fn a_bad_port_is_named_with_its_index() {
        let ports = |host: Value, container: Value| {
            let good = json!({"hostPort": 1, "containerPort": 65535});
            let list = json!([good, {"hostPort": host, "containerPort": container}]);
            let read = port_mappings(&config("portMappings", list));
            read.map_err(|error| (error.code, format!("{}; {}", error.msg, error.hint)))
        };
        let path = "runtimeConfig.portMappings[1]";
        let refused = |why: &str| Err((code::INVALID_CONFIG, why.replace("PATH", path)));
        assert_eq!(
            ports(json!(0), json!(1)),
            refused("Invalid host port number: 0; PATH.hostPort must be 1 to 65535")
        );
        assert_eq!(
            ports(json!(1), json!(65536)),
            refused("Invalid container port number: 65536; PATH.containerPort must be 1 to 65535")
        );
        assert_eq!(
            ports(json!(-1), json!(1)),
            refused("Invalid host port number: -1; PATH.hostPort must be 1 to 65535")
        );
        assert_eq!(ports(json!(null), json!(1)), refused("PATH: missing field `hostPort`; "));
        assert_eq!(
            ports(json!("80"), json!(1)),
            refused("PATH.hostPort: invalid type: string \"80\", expected i64; ")
        );
    }

    #[test]
    fn bandwidth_as_containerd_sends_it() {
        let sent = json!({"IngressRate": 1000000, "IngressBurst": 4294967295u32, "EgressRate": 2e6, "EgressBurst": 0});
        let expected = Bandwidth {
            ingress_rate: 1_000_000,
            ingress_burst: 4_294_967_295,
            egress_rate: 2_000_000,
            egress_burst: 0,
        };
        assert_eq!(bandwidth(&config("bandwidth", sent)), Ok(Some(expected)));
        assert!(bandwidth(&config("bandwidth", json!({"ingressRate": -1}))).is_err());
    }

    #[test]
    fn ranges_come_in_sets_or_flat() {
        let range =
            json!({"Subnet": "10.0.0.0/24", "RangeStart": "10.0.0.9", "RangeEnd": "", "Gateway": null});
        let sets = ip_ranges(&config("ipRanges", json!([[range, range], [range]]))).unwrap();
        assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(sets[0][0].range_start, Some("10.0.0.9".parse().unwrap()));
        assert_eq!((sets[0][0].range_end, sets[0][0].gateway), (None, None));
        let flat = ip_ranges(&config("ipRanges", json!([range, range]))).unwrap();
        assert_eq!(flat.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        let error = ip_ranges(&config("ipRanges", json!([[{"subnet": "10.0.0.0"}]]))).unwrap_err();
        assert!(
            error.msg.starts_with("runtimeConfig.ipRanges[0][0].subnet: invalid CIDR address"),
            "{error}"
        );
        assert!(ip_ranges(&config("ipRanges", json!([range, [range]]))).is_err(), "not a mixture");
    }

    #[test]
    fn the_small_ones() {
        let dns = dns(&config("dns", json!({"Servers": ["10.0.0.10"], "Searches": ["s"], "Options": null})))
            .unwrap();
        let dns = dns.unwrap();
        assert_eq!((dns.nameservers, dns.search), (vec!["10.0.0.10".to_owned()], vec!["s".to_owned()]));
        assert_eq!(mac(&config("mac", json!("0a:00:00:00:00:01"))), Ok(Some("0a:00:00:00:00:01".to_owned())));
        assert_eq!(mac(&config("mac", json!(""))), Ok(None));
        assert_eq!(ips(&config("ips", json!(["10.0.0.5"]))), Ok(vec!["10.0.0.5".to_owned()]));
        assert_eq!(
            read(&config("deviceID", json!("0000:00:01.0")), "deviceID"),
            Ok(Some("0000:00:01.0".to_owned()))
        );
    }

    #[test]
    fn nothing_sent_is_nothing_asked() {
        for config in
            [json!({}), json!({"runtimeConfig": null}), json!({"runtimeConfig": {"portMappings": null}})]
        {
            assert_eq!(port_mappings(&config), Ok(vec![]));
            assert_eq!(
                (bandwidth(&config), ip_ranges(&config), mac(&config)),
                (Ok(None), Ok(vec![]), Ok(None))
            );
        }
        assert!(port_mappings(&json!({"runtimeConfig": []})).is_err());
    }
}
