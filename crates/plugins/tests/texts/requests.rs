//! Texts of the library that every Go plugin is built with: environment, names, versions, results.

use podwire_cni_spec::Version;
use podwire_plugins::PLUGINS;
use serde_json::json;

use crate::test_pod::with_pod;
use crate::{add, compare, text, Request, Row};

#[test]
fn environment_and_names() {
    with_pod(|pod| {
        let good = Request::of(pod, "ADD");
        let config = r#"{"cniVersion": "1.1.0", "name": "net", "type": "loopback"}"#;
        let rows = [
            (Request { verb: "NOPE".into(), ..good.clone() }, config, "unknown CNI_COMMAND: NOPE"),
            (
                Request { container: String::new(), netns: String::new(), ..good.clone() },
                config,
                "required env variables [CNI_CONTAINERID,CNI_NETNS] missing",
            ),
            (
                Request { container: "a b".into(), ..good.clone() },
                config,
                "invalid characters in containerID; a b",
            ),
            (
                Request { ifname: "0123456789abcdef".into(), ..good.clone() },
                config,
                "interface name is too long; interface name should be less than 16 characters",
            ),
            (Request { ifname: "..".into(), ..good.clone() }, config, "interface name is . or .."),
            (
                Request { ifname: "a/b".into(), ..good.clone() },
                config,
                "interface name contains / or : or whitespace characters",
            ),
            (good.clone(), r#"{"cniVersion": "1.1.0"}"#, "missing network name"),
            (
                good.clone(),
                r#"{"cniVersion": "1.1.0", "name": "a b"}"#,
                "invalid characters found in network name; a b",
            ),
            (
                Request { netns: "/proc/thread-self/ns/net".into(), ..good.clone() },
                config,
                "plugin's netns and netns from CNI_NETNS should not be the same",
            ),
            (Request { args: "A".into(), ..good }, config, "ARGS: invalid pair \"A\""),
        ];
        let wrong: Vec<_> = rows
            .into_iter()
            .map(|(request, config, expected)| (text(&request.send("loopback", config)), expected))
            .filter(|(found, expected)| found != expected)
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

/// A verb that the config's version does not have, for every plugin.
#[test]
fn verbs_of_later_versions() {
    let later = [
        ("CHECK", Version::V0_3_1, "config version does not allow CHECK"),
        ("GC", Version::V1_0_0, "config version does not allow GC"),
        ("STATUS", Version::V1_0_0, "config version does not allow STATUS"),
    ];
    with_pod(|pod| {
        let mut rows = Vec::new();
        for plugin in PLUGINS {
            for (verb, version, text) in later {
                if plugin.versions().contains(&version) {
                    let config = json!({"cniVersion": version.as_str()});
                    rows.push(Row { verb, ..add(plugin.name(), config, text) });
                }
            }
        }
        assert!(rows.len() > 2 * PLUGINS.len(), "{} rows", rows.len());
        compare(pod, rows);
    });
}

/// Versions 0.1.0 and 0.2.0 have no result without an address.
#[test]
fn results_without_addresses() {
    with_pod(|pod| {
        let text = "cannot convert: no valid IP addresses";
        let mut rows = Vec::new();
        for version in ["0.1.0", "0.2.0"] {
            rows.push(add("bridge", json!({"cniVersion": version, "bridge": "br9"}), text));
            rows.push(add("static", json!({"cniVersion": version, "ipam": {}}), text));
        }
        compare(pod, rows);
    });
}
