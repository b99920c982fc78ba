//! Networks with overlapping address ranges: each has its own pool, so two pods of the node can get the same address.
//!
//! Only ranges of host-local count, in networks whose pods the node routes or that share an L2 segment. Networks on separate
//! VLANs may have the same addresses.

use std::net::IpAddr;

use podwire_cni_spec::capability::IpRange;
use podwire_cni_spec::config::AddressScope;
use podwire_cni_spec::json;
use serde_json::{Map, Value};

use crate::Network;

/// A range of addresses in a config.
pub(super) struct Range {
    /// The path of its subnet: `plugins[0].ipam.ranges[0][0].subnet`.
    pub key: String,
    pub first: IpAddr,
    pub last: IpAddr,
    scope: AddressScope,
}

impl Range {
    fn of(key: String, config: &Value, scope: &AddressScope) -> Option<Range> {
        let range: IpRange = json::decode(config).ok()?;
        let (first, last) = (range.subnet.network(), range.subnet.broadcast());
        Some(Range {
            key: format!("{key}.subnet"),
            first: range.range_start.unwrap_or(first),
            last: range.range_end.unwrap_or(last),
            scope: scope.clone(),
        })
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.scope.meets(&other.scope)
            && self.first.is_ipv4() == other.first.is_ipv4()
            && self.first <= other.last
            && other.first <= self.last
    }
}

/// The ranges from which pods of the network get addresses.
pub(super) fn ranges(network: &Network) -> Vec<Range> {
    let plugins = network.list.plugins.iter().enumerate();
    let with_pool = plugins.filter(|(_, plugin)| plugin.ipam.as_deref() == Some("host-local"));
    with_pool.flat_map(|(index, plugin)| of_plugin(index, &plugin.kind, &plugin.raw)).collect()
}

fn of_plugin(index: usize, plugin: &str, config: &Map<String, Value>) -> Vec<Range> {
    let config = Value::Object(config.clone());
    let scope = AddressScope::of(plugin, &config);
    let Some(ipam) = json::get(&config, "ipam") else { return Vec::new() };
    let path = format!("plugins[{index}].ipam");
    let sets = json::get(ipam, "ranges").and_then(Value::as_array).into_iter().flatten().enumerate();
    let listed = sets.flat_map(|(i, set)| {
        let set = set.as_array().into_iter().flatten().enumerate();
        set.map(move |(j, range)| (format!("ranges[{i}][{j}]"), range))
    });
    let listed = listed.filter_map(|(key, range)| Range::of(format!("{path}.{key}"), range, &scope));
    Range::of(path.clone(), ipam, &scope).into_iter().chain(listed).collect()
}
