//! Calico's BGP objects: the fields that this crate uses.

use serde::Deserialize;
use serde_json::Value;

use podwire_block_ipam::parse_asn;

use crate::model::NextHop;

/// Calico's default ASN.
pub(crate) const DEFAULT_ASN: u32 = 64512;
/// The default time that peers keep a node's routes while it restarts, in seconds.
pub(crate) const RESTART_TIME: u32 = 120;

/// An object's spec.
#[derive(Debug, Deserialize)]
pub(crate) struct Object<T> {
    #[serde(default)]
    pub(crate) spec: T,
}

/// `BGPConfiguration`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Configuration {
    pub(crate) node_to_node_mesh_enabled: Option<bool>,
    as_number: Option<Value>,
    pub(crate) listen_port: Option<u16>,
    node_mesh_max_restart_time: Option<String>,
    pub(crate) node_mesh_password: Option<Value>,
    pub(crate) ignored_interfaces: Option<Vec<String>>,
}

impl Configuration {
    pub(crate) fn asn(&self) -> Option<u32> {
        self.as_number.as_ref().and_then(parse_asn)
    }

    pub(crate) fn restart_time(&self) -> Option<u32> {
        self.node_mesh_max_restart_time.as_deref().and_then(seconds)
    }

    /// The settings with those of a node's own configuration on top.
    pub(crate) fn overlaid(self, own: Configuration) -> Configuration {
        Configuration {
            node_to_node_mesh_enabled: self.node_to_node_mesh_enabled,
            as_number: own.as_number.or(self.as_number),
            listen_port: own.listen_port.or(self.listen_port),
            node_mesh_max_restart_time: self.node_mesh_max_restart_time,
            node_mesh_password: self.node_mesh_password,
            ignored_interfaces: own.ignored_interfaces.or(self.ignored_interfaces),
        }
    }
}

/// `BGPPeer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Peer {
    pub(crate) node: Option<String>,
    pub(crate) node_selector: Option<String>,
    #[serde(rename = "peerIP")]
    pub(crate) peer_ip: Option<String>,
    as_number: Option<Value>,
    pub(crate) peer_selector: Option<String>,
    #[serde(rename = "localASNumber")]
    local_as_number: Option<Value>,
    keep_original_next_hop: bool,
    next_hop_mode: Option<String>,
    pub(crate) password: Option<Value>,
    pub(crate) source_address: Option<String>,
    max_restart_time: Option<String>,
    keepalive_time: Option<String>,
    #[serde(rename = "numAllowedLocalASNumbers")]
    pub(crate) allowed_local: Option<u32>,
    #[serde(rename = "ttlSecurity")]
    pub(crate) ttl_security: Option<u8>,
    pub(crate) reachable_by: Option<String>,
    pub(crate) filters: Option<Vec<String>>,
    reverse_peering: Option<String>,
    pub(crate) local_workload_selector: Option<String>,
}

impl Peer {
    pub(crate) fn asn(&self) -> Option<u32> {
        self.as_number.as_ref().and_then(parse_asn)
    }

    pub(crate) fn local_asn(&self) -> Option<u32> {
        self.local_as_number.as_ref().and_then(parse_asn)
    }

    pub(crate) fn restart_time(&self) -> Option<u32> {
        self.max_restart_time.as_deref().and_then(seconds)
    }

    pub(crate) fn keepalive_time(&self) -> Option<u32> {
        self.keepalive_time.as_deref().and_then(seconds)
    }

    pub(crate) fn next_hop(&self) -> NextHop {
        match (self.next_hop_mode.as_deref(), self.keep_original_next_hop) {
            (Some("Self"), _) => NextHop::Own,
            (Some("Keep"), _) | (None, true) => NextHop::Keep,
            _ => NextHop::Auto,
        }
    }

    /// Whether the nodes that `peerSelector` names open sessions too.
    pub(crate) fn is_mutual(&self) -> bool {
        self.reverse_peering.as_deref() != Some("Manual")
    }
}

/// `BGPFilter`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Filter {
    #[serde(rename = "importV4")]
    pub(crate) import4: Option<Vec<Rule>>,
    #[serde(rename = "importV6")]
    pub(crate) import6: Option<Vec<Rule>>,
    #[serde(rename = "exportV4")]
    pub(crate) export4: Option<Vec<Rule>>,
    #[serde(rename = "exportV6")]
    pub(crate) export6: Option<Vec<Rule>>,
}

/// A rule of a filter. An unknown field is an error: ignoring it could accept routes that the filter rejects.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) cidr: Option<String>,
    pub(crate) prefix_length: Option<Lengths>,
    pub(crate) match_operator: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) action: String,
}

/// A range of prefix lengths.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lengths {
    pub(crate) min: Option<u8>,
    pub(crate) max: Option<u8>,
}

/// A duration in Go's notation (`2m30s`) in seconds; `None` if it is shorter than 1 s or longer than 65534 s.
fn seconds(text: &str) -> Option<u32> {
    let (mut total, mut number) = (0f64, String::new());
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        number.clear();
        number.push_str(&rest[..digits]);
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let factor = match &rest[..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" | "" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = &rest[unit..];
    }
    (total >= 1.0 && total < f64::from(u16::MAX)).then_some(total as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_gos_notation() {
        for (text, wanted) in [
            ("120s", Some(120)),
            ("2m30s", Some(150)),
            ("1h", Some(3600)),
            ("1.5m", Some(90)),
            ("10ms", None),
            ("x", None),
            ("", None),
            ("999h", None),
        ] {
            assert_eq!(seconds(text), wanted, "{text}");
        }
    }

    #[test]
    fn the_next_hop_has_an_old_and_a_new_field() {
        let peer = |text: &str| serde_json::from_str::<Object<Peer>>(text).unwrap().spec;
        assert_eq!(peer(r#"{"spec":{"keepOriginalNextHop":true}}"#).next_hop(), NextHop::Keep);
        assert_eq!(
            peer(r#"{"spec":{"nextHopMode":"Self","keepOriginalNextHop":true}}"#).next_hop(),
            NextHop::Own
        );
        assert_eq!(peer(r#"{"spec":{"asNumber":"64600"}}"#).asn(), Some(64600));
    }
}
