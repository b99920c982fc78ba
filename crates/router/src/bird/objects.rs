//! Calico's objects about BGP, as far as they say something here.

use serde::Deserialize;
use serde_json::Value;

use podwire_block_ipam::parse_asn;

/// The cluster's AS, if nothing else is said.
pub(super) const DEFAULT_AS: u32 = 64512;
/// How long peers keep a node's routes while it is away, in seconds.
pub(super) const RESTART: u32 = 120;

/// An object, without what all objects have.
#[derive(Debug, Deserialize)]
pub(super) struct Object<T> {
    #[serde(default)]
    pub(super) spec: T,
}

/// `BGPConfiguration`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Configuration {
    pub(super) node_to_node_mesh_enabled: Option<bool>,
    as_number: Option<Value>,
    pub(super) listen_port: Option<u16>,
    node_mesh_max_restart_time: Option<String>,
    pub(super) node_mesh_password: Option<Value>,
    pub(super) ignored_interfaces: Option<Vec<String>>,
}

impl Configuration {
    pub(super) fn number(&self) -> Option<u32> {
        self.as_number.as_ref().and_then(parse_asn)
    }

    pub(super) fn restart(&self) -> Option<u32> {
        self.node_mesh_max_restart_time.as_deref().and_then(seconds)
    }

    /// With what a node's own configuration says.
    pub(super) fn overlaid(self, own: Configuration) -> Configuration {
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
pub(super) struct Peer {
    pub(super) node: Option<String>,
    pub(super) node_selector: Option<String>,
    #[serde(rename = "peerIP")]
    pub(super) peer_ip: Option<String>,
    as_number: Option<Value>,
    pub(super) peer_selector: Option<String>,
    #[serde(rename = "localASNumber")]
    local_as_number: Option<Value>,
    keep_original_next_hop: bool,
    next_hop_mode: Option<String>,
    pub(super) password: Option<Value>,
    pub(super) source_address: Option<String>,
    max_restart_time: Option<String>,
    keepalive_time: Option<String>,
    #[serde(rename = "numAllowedLocalASNumbers")]
    pub(super) allowed_local: Option<u32>,
    #[serde(rename = "ttlSecurity")]
    pub(super) ttl_security: Option<u8>,
    pub(super) reachable_by: Option<String>,
    pub(super) filters: Option<Vec<String>>,
    reverse_peering: Option<String>,
    pub(super) local_workload_selector: Option<String>,
}

/// Which next hop a peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    Auto,
    Own,
    Keep,
}

impl Peer {
    pub(super) fn number(&self) -> Option<u32> {
        self.as_number.as_ref().and_then(parse_asn)
    }

    pub(super) fn local_number(&self) -> Option<u32> {
        self.local_as_number.as_ref().and_then(parse_asn)
    }

    pub(super) fn restart(&self) -> Option<u32> {
        self.max_restart_time.as_deref().and_then(seconds)
    }

    pub(super) fn keepalive(&self) -> Option<u32> {
        self.keepalive_time.as_deref().and_then(seconds)
    }

    pub(super) fn next_hop(&self) -> NextHop {
        match (self.next_hop_mode.as_deref(), self.keep_original_next_hop) {
            (Some("Self"), _) => NextHop::Own,
            (Some("Keep"), _) | (None, true) => NextHop::Keep,
            _ => NextHop::Auto,
        }
    }

    /// Whether nodes that a selector names speak to those who named them, too.
    pub(super) fn is_mutual(&self) -> bool {
        self.reverse_peering.as_deref() != Some("Manual")
    }
}

/// `BGPFilter`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Filter {
    #[serde(rename = "importV4")]
    pub(super) import4: Option<Vec<Rule>>,
    #[serde(rename = "importV6")]
    pub(super) import6: Option<Vec<Rule>>,
    #[serde(rename = "exportV4")]
    pub(super) export4: Option<Vec<Rule>>,
    #[serde(rename = "exportV6")]
    pub(super) export6: Option<Vec<Rule>>,
}

/// A rule of a filter. What is not known here must not be passed over: it would let through what somebody forbids.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) cidr: Option<String>,
    pub(super) prefix_length: Option<Lengths>,
    pub(super) match_operator: Option<String>,
    pub(super) source: Option<String>,
    pub(super) interface: Option<String>,
    pub(super) action: String,
}

/// Lengths of prefixes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lengths {
    pub(super) min: Option<u8>,
    pub(super) max: Option<u8>,
}

/// A duration as Go writes it (`2m30s`), in seconds.
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
    fn durations_are_gos() {
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
    fn next_hops_have_two_spellings() {
        let peer = |text: &str| serde_json::from_str::<Object<Peer>>(text).unwrap().spec;
        assert_eq!(peer(r#"{"spec":{"keepOriginalNextHop":true}}"#).next_hop(), NextHop::Keep);
        assert_eq!(
            peer(r#"{"spec":{"nextHopMode":"Self","keepOriginalNextHop":true}}"#).next_hop(),
            NextHop::Own
        );
        assert_eq!(peer(r#"{"spec":{"asNumber":"64600"}}"#).number(), Some(64600));
    }
}
