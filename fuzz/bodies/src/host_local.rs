//! The ranges of host-local: its config, and the order in which it allocates addresses.

use podwire_cni_spec::capability::IpRange;
use podwire_cni_spec::json;
use podwire_ipam::{range_sets, RangeSet, RangeSpec};
use serde_json::{json, Value};

use crate::status;

/// How many addresses of a set are checked.
const MAX_ADDRESSES: usize = 300;

/// The bytes are the `ipam` section, or else a subnet.
pub fn run(bytes: &[u8]) {
    let mut section =
        json::parse(bytes).unwrap_or_else(|_| json!({"subnet": String::from_utf8_lossy(bytes)}));
    status::without_files(&mut section);
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "host-local", "ipam": section});
    let host_local = status::plugin("host-local");
    status::call(host_local, config.to_string().as_bytes());
    let runtime = json!({"cniVersion": "1.1.0", "name": "net", "ipam": {}, "runtimeConfig": {"ipRanges": section["ranges"]}});
    status::call(host_local, runtime.to_string().as_bytes());
    if let Some(sets) = sets(&section) {
        sets.iter().for_each(check_order);
    }
}

fn sets(section: &Value) -> Option<Vec<RangeSet>> {
    let lists: Vec<Vec<IpRange>> =
        json::get(section, "ranges").and_then(|list| json::decode(list).ok()).unwrap_or_default();
    let own: Option<IpRange> = json::decode(section).ok();
    let spec = |range: IpRange| RangeSpec {
        key: "range".into(),
        subnet: range.subnet,
        start: range.range_start,
        end: range.range_end,
        gateway: range.gateway,
        exclude: range.exclude,
        reserve: range.reserve,
    };
    let lists = own.map(|range| vec![range]).into_iter().chain(lists);
    range_sets(lists.map(|list| list.into_iter().map(spec).collect()).collect()).ok()
}

/// Checks that each candidate is in the set, has the prefix of its range, is not a gateway, and is offered once.
fn check_order(set: &RangeSet) {
    let mut seen = std::collections::HashSet::new();
    let mut last = None;
    for candidate in set.after(None).take(MAX_ADDRESSES) {
        assert!(set.contains(candidate.ip) && set.offers(candidate.ip));
        assert_eq!(set.find(candidate.ip), Some(candidate.range));
        assert_eq!(candidate.range.assign(candidate.ip).addr(), candidate.ip);
        assert!(seen.insert(candidate.ip), "{} is offered twice", candidate.ip);
        last = Some(candidate.ip);
    }
    // The order is a cycle: after any address, the search finds candidates again.
    let again: Vec<_> = set.after(last).take(MAX_ADDRESSES).collect();
    assert_eq!(again.is_empty(), seen.is_empty());
}
