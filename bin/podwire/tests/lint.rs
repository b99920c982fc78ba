//! `podwire cni lint`: what it finds in network configs, and where.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{json, Value};

/// A config directory, deleted with the test.
struct Configs(PathBuf);

impl Configs {
    fn new() -> Configs {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("podwire-lint-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Configs(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    /// The lines of the output, sorted, and the exit status.
    fn lint(&self, words: &[&str]) -> (Vec<String>, i32) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwire"));
        let output = command.args(["cni", "lint", "--conf-dir"]).arg(&self.0).args(words).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut lines: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        (lines, output.status.code().unwrap())
    }
}

impl Drop for Configs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TYPOS: &str = r#"{
  "cniVersion": "1.1.0",
  "name": "typos",
  "disableCheque": true,
  "plugins": [
    {"type": "link", "unknownToUs": 1},
    {
      "type": "bridge", "BRIDGE": "br9", "_comment": "x", "example.org/key": 1,
      "isDefaultGatway": true, "subnet": "10.0.0.0/8",
      "capabilities": {"portMapings": true, "mac": true},
      "vlanTrunk": [{"id": 5}, {"minId": 1, "maximum": 7}],
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24", "gatway": "10.0.0.1"}]],
        "routes": [{"dst": "0.0.0.0/0", "via": "10.0.0.1"}]}
    },
    {"type": "flannel", "delegate": {"hairpinmode": true, "isGatway": true}},
    {"type": "ptp", "ipam": {"type": "whereabouts", "anything": 1}, "args": {"cni": {"labels": []}}}
  ]
}"#;

#[test]
fn misspelt_keys_are_reported_with_file_line_and_suggestion() {
    let configs = Configs::new();
    let file = configs.write("30-typos.conflist", TYPOS);
    let expected = [
        "4: disableCheque: a network list has no such key, so it has no effect; did you mean disableCheck?",
        "9: plugins[1].isDefaultGatway: bridge has no such key, so it has no effect; did you mean isDefaultGateway?",
        "9: plugins[1].subnet: bridge has no such key, so it has no effect; did you mean ipam.subnet?",
        "12: plugins[1].ipam.ranges[0][0].gatway: bridge has no such key, so it has no effect; did you mean gateway?",
        "13: plugins[1].ipam.routes[0].via: bridge has no such key, so it has no effect",
        "11: plugins[1].vlanTrunk[1].maximum: bridge has no such key, so it has no effect",
        "10: plugins[1].capabilities.portMapings: bridge has no such capability, so it has no effect",
        "15: plugins[2].delegate.isGatway: bridge has no such key, so it has no effect; did you mean isGateway?",
    ];
    let mut expected: Vec<String> = expected.iter().map(|line| format!("warning: {file}:{line}")).collect();
    expected.sort();
    assert_eq!(configs.lint(&[&file]), (expected.clone(), 1));
    assert_eq!(configs.lint(&["typos"]), (expected, 1), "by the name of the network");
    let (json, _) = configs.lint(&["--json"]);
    assert!(json.iter().any(|line| line.trim() == r#""suggestion": "disableCheck""#), "{json:#?}");
}

const TYPES: &str = r#"{
  "cniVersion": "1.1.0",
  "name": "types",
  "plugins": [
    {"type": "brdige"},
    {
      "type": "bridge",
      "ipam": {"type": "host_local"}
    },
    {"type": "flannel", "delegate": {"type": "macvaln"}},
    {"type": "weave-net"},
    {"type": "portmapper"}
  ]
}"#;

/// A type that resembles none may be on another machine, and one that is installed is not misspelt.
#[test]
fn misspelt_plugin_types_are_reported_unless_they_are_installed() {
    let configs = Configs::new();
    let file = configs.write("types.conflist", TYPES);
    let line = |line: u8, key: &str, kind: &str, meant: &str| {
        format!("warning: {file}:{line}: {key}: no plugin {kind:?} is installed; did you mean {meant}?")
    };
    let mut expected = vec![
        line(5, "plugins[0].type", "brdige", "bridge"),
        line(8, "plugins[1].ipam.type", "host_local", "host-local"),
        line(10, "plugins[2].delegate.type", "macvaln", "macvlan"),
        line(12, "plugins[4].type", "portmapper", "portmap"),
    ];
    expected.sort();
    assert_eq!(configs.lint(&[&file]), (expected.clone(), 1));
    let plugins = configs.write("bin/portmapper", "");
    let plugins = PathBuf::from(plugins).parent().unwrap().display().to_string();
    expected.retain(|line| !line.contains("portmapper"));
    assert_eq!(configs.lint(&[&file, "--plugin-dir", &plugins]), (expected, 1));
}

#[test]
fn plugins_of_the_subdirectory_are_checked_and_invalid_files_reported() {
    let configs = Configs::new();
    configs.write("10-a.conflist", r#"{"cniVersion": "1.0.0", "name": "a", "plugins": []}"#);
    let extra = configs.write("a/5-tune.conf", "{\"type\": \"tuning\",\n \"sysctls\": {}}");
    let text = "tuning has no such key, so it has no effect; did you mean sysctl?";
    assert_eq!(configs.lint(&[]), (vec![format!("warning: {extra}:2: sysctls: {text}")], 1));
    fs::remove_file(extra).unwrap();
    let single =
        r#"{"cniVersion": "1.0.0", "name": "a", "type": "tuning", "sysctl": {"net.core.somaxconn": "1"}}"#;
    configs.write("10-a.conflist", "{");
    configs.write("20-a.conf", single);
    let (lines, status) = configs.lint(&[]);
    assert!(lines.len() == 1 && lines[0].starts_with("problem: ") && status == 1, "{lines:?}");
    assert_eq!(configs.lint(&["a"]), (vec!["no warnings: 1 network checked".to_owned()], 0));
}

/// A network of a bridge or of macvlan, with these addresses.
fn network(name: &str, plugin: &Value, ipam: &Value) -> String {
    let (mut plugin, mut ipam) = (plugin.clone(), ipam.clone());
    ipam["type"] = "host-local".into();
    plugin["ipam"] = ipam;
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}).to_string()
}

#[test]
fn networks_that_the_node_routes_must_not_overlap() {
    let (bridge, vlan) = (json!({"type": "bridge", "isGateway": true}), json!({"type": "bridge", "vlan": 5}));
    let ptp = json!({"type": "ptp"});
    let (wide, narrow) = (json!({"subnet": "10.1.0.0/16"}), json!({"ranges": [[{"subnet": "10.1.7.0/24"}]]}));
    let low = json!({"subnet": "10.1.0.0/16", "rangeEnd": "10.1.6.255"});
    for (one, other, overlap) in [
        (network("a", &bridge, &wide), network("b", &ptp, &narrow), true),
        (network("a", &bridge, &low), network("b", &ptp, &narrow), false),
        (network("a", &vlan, &wide), network("b", &ptp, &narrow), false),
        (network("a", &bridge, &wide), network("a", &ptp, &narrow), false),
        (network("a", &bridge, &wide), network("b", &ptp, &json!({"subnet": "fd00::/64"})), false),
    ] {
        let configs = Configs::new();
        let (a, b) = (configs.write("1.conflist", &one), configs.write("2.conflist", &other));
        let text = |file: &str, key: &str, name: &str, other: &str| {
            format!(
                "warning: {file}:1: plugins[0].ipam.{key}: the addresses overlap with those of network {name:?} in \
                 {other}: pods of both can get the same address"
            )
        };
        let both = vec![text(&a, "subnet", "b", &b), text(&b, "ranges[0][0].subnet", "a", &a)];
        let none = vec!["no warnings: 2 networks checked".to_owned()];
        let expected = if overlap { (both, 1) } else { (none, 0) };
        assert_eq!(configs.lint(&[]), expected, "{one} {other}");
    }
}
