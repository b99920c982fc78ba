//! Mistakes in network configs.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;

use bench::Bench;
use podwire_cni_runtime::{ConfigFolder, Network};
use serde_json::{json, Value};

/// The networks of a directory, and what lint says about each.
fn lint(networks: &[(&str, Value)]) -> Vec<String> {
    let bench = Bench::new(&[]);
    for (name, plugin) in networks {
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]});
        fs::write(bench.root.join("net.d").join(format!("{name}.conflist")), list.to_string()).unwrap();
    }
    let loaded = ConfigFolder::new(bench.root.join("net.d")).load().networks;
    let runtime = bench.runtime();
    let warnings = |network: &Network| runtime.lint(network, &loaded);
    loaded.iter().flat_map(warnings).map(|warning| format!("{}: {}", warning.key, warning.text)).collect()
}

#[test]
fn networks_of_one_l2_segment_need_separate_addresses() {
    let pool = |subnet: &str| json!({"type": "host-local", "subnet": subnet});
    let with = |mut plugin: Value, subnet: &str| {
        plugin["ipam"] = pool(subnet);
        plugin
    };
    let bridge = |name: &str| json!({"type": "bridge", "bridge": name});
    let mut wrong = Vec::new();
    for (one, other, warnings) in [
        (with(bridge("a"), "10.1.0.0/24"), with(bridge("a"), "10.1.0.0/24"), 2),
        // Whichever contains the other.
        (with(bridge("a"), "10.1.0.0/16"), with(bridge("a"), "10.1.7.0/24"), 2),
        (with(bridge("a"), "10.1.7.0/24"), with(bridge("a"), "10.1.0.0/16"), 2),
        (with(bridge("a"), "10.1.0.0/24"), with(bridge("a"), "10.2.0.0/24"), 0),
        (with(bridge("a"), "10.1.0.0/24"), with(bridge("b"), "10.1.0.0/24"), 0),
        (with(json!({"type": "ptp"}), "10.1.0.0/24"), with(json!({"type": "calico"}), "10.1.0.0/25"), 2),
        (
            with(json!({"type": "macvlan", "master": "eth0"}), "10.1.0.0/24"),
            with(json!({"type": "ipvlan", "master": "eth0"}), "10.1.0.0/24"),
            2,
        ),
        (
            with(json!({"type": "vlan", "master": "eth0", "vlanId": 5}), "10.1.0.0/24"),
            with(json!({"type": "vlan", "master": "eth0", "vlanId": 6}), "10.1.0.0/24"),
            0,
        ),
    ] {
        let found = lint(&[("one", one.clone()), ("other", other.clone())]);
        let is_expected = |text: &String| {
            text.starts_with("plugins[0].ipam.subnet: the addresses overlap with those of network \"o")
        };
        if found.len() != warnings || !found.iter().all(is_expected) {
            wrong.push(format!("{one} and {other}: {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
