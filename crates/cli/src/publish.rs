//! `--publish 8080:80/udp`: host ports in the syntax of container tools.

use std::net::IpAddr;

use podwire_cni_spec::{json::get, NetworkList};
use serde_json::{json, Map, Value};

/// The capability of the plugins that publish ports.
pub(crate) const CAPABILITY: &str = "portMappings";

/// Whether a plugin of the network publishes ports.
fn is_capable(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|name| name == CAPABILITY))
}

/// The ports that a network publishes for an attachment with these capability arguments.
pub(crate) fn of_attachment(capabilities: &Map<String, Value>, list: &NetworkList) -> Vec<Value> {
    let mappings = capabilities.get(CAPABILITY).and_then(Value::as_array).filter(|_| is_capable(list));
    published(mappings.map(Vec::as_slice).unwrap_or_default())
}

/// The entries of `portMappings` that publish a port. The keys are the same whichever runtime wrote them.
pub(crate) fn published(mappings: &[Value]) -> Vec<Value> {
    let port = |mapping: &Value| {
        let number = |key| get(mapping, key).and_then(Value::as_u64).filter(|number| *number > 0);
        let text = |key| get(mapping, key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let protocol = text("protocol").unwrap_or("tcp").to_lowercase();
        let (outside, inside) = (number("hostPort")?, number("containerPort")?);
        let mut port = json!({ "hostPort": outside, "containerPort": inside, "protocol": protocol });
        if let Some(address) = text("hostIP") {
            port["hostIP"] = json!(address);
        }
        Some(port)
    };
    mappings.iter().filter_map(port).collect()
}

/// Published ports as `--publish` takes them.
pub(crate) fn text(ports: &[Value]) -> String {
    let one = |port: &Value| {
        let address = match port["hostIP"].as_str() {
            None => String::new(),
            Some(address) if address.contains(':') => format!("[{address}]:"),
            Some(address) => format!("{address}:"),
        };
        let protocol = port["protocol"].as_str().filter(|protocol| *protocol != "tcp");
        let protocol = protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
        format!("{address}{}:{}{protocol}", port["hostPort"], port["containerPort"])
    };
    ports.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Parses `[HOST_ADDRESS:]HOST_PORT:PORT[/PROTOCOL]` into an entry of `portMappings`. An IPv6 address needs brackets.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    if !matches!(protocol, "tcp" | "udp" | "sctp") {
        return Err(format!("unknown protocol {protocol:?}: tcp, udp or sctp"));
    }
    let shape = || "expected HOST_PORT:PORT, like 8080:80 or 127.0.0.1:8080:80/udp".to_owned();
    let (rest, inside) = ports.rsplit_once(':').ok_or_else(shape)?;
    let (address, outside) = match rest.rsplit_once(':') {
        Some((address, outside)) => (Some(host_address(address)?), outside),
        None => (None, rest),
    };
    let mut mapping =
        json!({ "hostPort": port(outside)?, "containerPort": port(inside)?, "protocol": protocol });
    if let Some(address) = address {
        mapping["hostIP"] = json!(address);
    }
    Ok(mapping)
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a port: 1 to 65535")),
        Ok(port) => Ok(port),
    }
}

fn host_address(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().map_err(|_| format!("{text:?} is not an IP address"))?;
    match (address, bare) {
        (IpAddr::V6(_), None) => Err(format!("put the address in brackets: [{text}]:8080:80")),
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_become_port_mappings() {
        let tcp = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        assert_eq!(parse("8080:80"), Ok(tcp));
        let udp = json!({"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "127.0.0.1"});
        assert_eq!(parse("127.0.0.1:53:5353/udp"), Ok(udp));
        assert_eq!(parse("[::1]:8080:80").unwrap()["hostIP"], "::1");
    }

    #[test]
    fn published_ports_are_printed_as_they_are_requested() {
        for port in ["8080:80", "127.0.0.1:53:5353/udp", "[::1]:8080:80", "7:7/sctp"] {
            assert_eq!(text(&published(&[parse(port).unwrap()])), port);
        }
        let foreign = json!([{"HostPort": 80, "ContainerPort": 8080, "Protocol": "TCP", "HostIP": ""},
            {"hostPort": 0, "containerPort": 81}]);
        assert_eq!(text(&published(foreign.as_array().unwrap())), "80:8080");
    }

    #[test]
    fn a_network_without_the_capability_publishes_nothing() {
        let list = |capabilities: &str| {
            let text = format!(
                r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{{"type": "portmap", "capabilities": {{{capabilities}}}}}]}}"#
            );
            NetworkList::parse(text.as_bytes()).unwrap()
        };
        let given = Map::from_iter([(CAPABILITY.to_owned(), json!([parse("80:80").unwrap()]))]);
        assert_eq!(of_attachment(&given, &list(r#""portMappings": true"#)).len(), 1);
        assert_eq!(of_attachment(&given, &list("")), Vec::<Value>::new());
    }

    #[test]
    fn invalid_ports_are_refused() {
        for bad in ["80", "0:80", "80:99999", "80:80/icmp", "::1:8080:80", "x:1:2", ":80:80", "a:b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
