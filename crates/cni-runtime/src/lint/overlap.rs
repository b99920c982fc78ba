//! Networks with overlapping address ranges: each has its own pool, so two pods of the node can get the same address.
//!
//! Only ranges of host-local in networks that the node routes count. Networks on separate VLANs may have the same addresses.

use std::net::IpAddr;

use podwire_cni_spec::capability::IpRange;
use podwire_cni_spec::{json, PluginConfig};
use serde_json::{Map, Value};

use crate::Network;

/// A range of addresses in a config.
pub(super) struct Range {
    /// The path of its subnet: `plugins[0].ipam.ranges[0][0].subnet`.
    pub key: String,
    pub first: IpAddr,
    pub last: IpAddr,
}

impl Range {
    fn of(key: String, config: &Value) -> Option<Range> {
        let range: IpRange = json::decode(config).ok()?;
        let (first, last) = (range.subnet.network(), range.subnet.broadcast());
        Some(Range {
            key: format!("{key}.subnet"),
            first: range.range_start.unwrap_or(first),
            last: range.range_end.unwrap_or(last),
        })
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4() && self.first <= other.last && other.first <= self.last
    }
}

/// The ranges from which pods of the network get addresses that the node routes.
pub(super) fn ranges(network: &Network) -> Vec<Range> {
    let plugins = network.list.plugins.iter().enumerate();
    let routed =
        plugins.filter(|(_, plugin)| plugin.ipam.as_deref() == Some("host-local") && is_routed(plugin));
    routed.flat_map(|(index, plugin)| of_plugin(index, &plugin.raw)).collect()
}

/// Whether the node has routes or rules for the plugin's pods.
fn is_routed(plugin: &PluginConfig) -> bool {
    let config = Value::Object(plugin.raw.clone());
    let is_on = |key| json::get(&config, key).and_then(Value::as_bool) == Some(true);
    match plugin.kind.as_str() {
        "bridge" => ["isGateway", "isDefaultGateway", "ipMasq"].into_iter().any(is_on),
        "ptp" | "calico" => true,
        _ => false,
    }
}

fn of_plugin(index: usize, config: &Map<String, Value>) -> Vec<Range> {
    let config = Value::Object(config.clone());
    let Some(ipam) = json::get(&config, "ipam") else { return Vec::new() };
    let path = format!("plugins[{index}].ipam");
    let sets = json::get(ipam, "ranges").and_then(Value::as_array).into_iter().flatten().enumerate();
    let listed = sets.flat_map(|(i, set)| {
        let set = set.as_array().into_iter().flatten().enumerate();
        set.map(move |(j, range)| (format!("ranges[{i}][{j}]"), range))
    });
    let listed = listed.filter_map(|(key, range)| Range::of(format!("{path}.{key}"), range));
    Range::of(path.clone(), ipam).into_iter().chain(listed).collect()
}
