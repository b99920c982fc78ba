//! Where the addresses of a network's pods have to be unique: on the node, if it routes for them, and on the L2 segment
//! that they share with the pods of other networks.

use serde_json::Value;

use crate::json;

/// The bridge of the plugin bridge, if its config names none.
const DEFAULT_BRIDGE: &str = "cni0";

/// Where the addresses of a plugin's pods have to be unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressScope {
    /// The node has routes or rules for the pods.
    pub is_routed: bool,
    /// The L2 segment of the pods.
    pub segment: Option<L2Segment>,
}

/// An L2 segment, as far as configs name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct L2Segment {
    /// The bridge, or the parent interface; empty for that of the default route.
    pub link: String,
    /// The VLAN; 0 without.
    pub vlan: u64,
}

impl AddressScope {
    /// The scope of a plugin's config.
    pub fn of(plugin: &str, config: &Value) -> AddressScope {
        let key = |name: &str| json::get(config, name);
        let is_on = |name: &str| key(name).and_then(Value::as_bool) == Some(true);
        let segment = |link: &str, vlan: &str| {
            let (link, vlan) = (key(link).and_then(Value::as_str), key(vlan).and_then(Value::as_u64));
            Some(L2Segment { link: link.unwrap_or_default().to_owned(), vlan: vlan.unwrap_or(0) })
        };
        match plugin {
            "bridge" => {
                let mut segment = segment("bridge", "vlan");
                segment
                    .iter_mut()
                    .filter(|one| one.link.is_empty())
                    .for_each(|one| one.link = DEFAULT_BRIDGE.into());
                let is_routed = ["isGateway", "isDefaultGateway", "ipMasq"].into_iter().any(is_on);
                AddressScope { is_routed, segment }
            }
            "ptp" | "calico" => AddressScope { is_routed: true, segment: None },
            // The parent interface is in the pod.
            "macvlan" | "ipvlan" | "vlan" if is_on("linkInContainer") => AddressScope::default(),
            "macvlan" | "ipvlan" => AddressScope { is_routed: false, segment: segment("master", "") },
            "vlan" => AddressScope { is_routed: false, segment: segment("master", "vlanId") },
            _ => AddressScope::default(),
        }
    }

    /// Whether an address may not be in both scopes.
    pub fn meets(&self, other: &AddressScope) -> bool {
        (self.is_routed && other.is_routed) || (self.segment.is_some() && self.segment == other.segment)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scopes_meet_on_the_node_and_on_an_l2_segment() {
        let mut wrong = Vec::new();
        let scope = |(plugin, config): &(&str, Value)| AddressScope::of(plugin, config);
        for (one, other, expected) in [
            // One bridge.
            (("bridge", json!({})), ("bridge", json!({"bridge": "cni0"})), true),
            (("bridge", json!({"bridge": "a"})), ("bridge", json!({"Bridge": "a", "isGateway": true})), true),
            (("bridge", json!({"bridge": "a"})), ("bridge", json!({"bridge": "b"})), false),
            (
                ("bridge", json!({"bridge": "a", "vlan": 5})),
                ("bridge", json!({"bridge": "a", "vlan": 5})),
                true,
            ),
            (("bridge", json!({"bridge": "a", "vlan": 5})), ("bridge", json!({"bridge": "a"})), false),
            // The node routes for both.
            (("bridge", json!({"bridge": "a", "ipMasq": true})), ("ptp", json!({})), true),
            (("calico", json!({})), ("ptp", json!({})), true),
            (("bridge", json!({"bridge": "a", "ipMasq": false})), ("ptp", json!({})), false),
            // One parent interface.
            (("macvlan", json!({"master": "eth0"})), ("ipvlan", json!({"master": "eth0"})), true),
            (("macvlan", json!({"master": "eth0"})), ("macvlan", json!({"master": "eth1"})), false),
            (("macvlan", json!({})), ("macvlan", json!({})), true),
            (("macvlan", json!({"master": "br0"})), ("bridge", json!({"bridge": "br0"})), true),
            (
                ("vlan", json!({"master": "e", "vlanId": 7})),
                ("vlan", json!({"master": "e", "vlanId": 7})),
                true,
            ),
            (("vlan", json!({"master": "e", "vlanId": 7})), ("macvlan", json!({"master": "e"})), false),
            (
                ("macvlan", json!({"linkInContainer": true})),
                ("macvlan", json!({"linkInContainer": true})),
                false,
            ),
            (("loopback", json!({})), ("loopback", json!({})), false),
        ] {
            let found = [scope(&one).meets(&scope(&other)), scope(&other).meets(&scope(&one))];
            if found != [expected; 2] {
                wrong.push(format!("{one:?} and {other:?}: {found:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
