//! `--publish 8080:80/udp`: host ports in the syntax of container tools.

use std::net::IpAddr;

use serde_json::{json, Value};

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
    fn invalid_ports_are_refused() {
        for bad in ["80", "0:80", "80:99999", "80:80/icmp", "::1:8080:80", "x:1:2", ":80:80", "a:b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
