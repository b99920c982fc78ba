//! Network configs: lists, single configs, and the parsers of all plugins.

use std::collections::BTreeMap;

use podwire_cni_spec::{capability, json, NetworkList, PluginConfig};
use serde::Deserialize;
use serde_json::Value;

use crate::status;

/// Has keys of each type that the plugins' configs use.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(dead_code)]
struct Everything {
    bridge: String,
    is_gateway: bool,
    #[serde(deserialize_with = "json::lenient::bool")]
    disable_check: bool,
    mtu: u32,
    vlan: i64,
    priority: u8,
    rate: f64,
    sysctl: BTreeMap<String, String>,
    ranges: Vec<Vec<capability::IpRange>>,
    routes: Vec<podwire_cni_spec::Route>,
    dns: podwire_cni_spec::Dns,
    ipam: Option<Box<Everything>>,
    anything: Option<Value>,
    kind: Option<Kind>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
enum Kind {
    Plain,
    With(u16),
    Pair(String, i8),
    Named { key: Option<bool> },
}

/// A list that parses also parses from the bytes that it keeps, and each plugin's request has its name and version.
pub fn run(bytes: &[u8]) {
    for list in [NetworkList::parse(bytes), NetworkList::from_single(bytes)].into_iter().flatten() {
        assert_eq!(NetworkList::parse(&list.bytes).as_ref(), Ok(&list));
        for plugin in &list.plugins {
            let request = plugin.request(&list, None, &Default::default());
            assert_eq!(json::get(&request, "name").and_then(Value::as_str), Some(list.name.as_str()));
            assert_eq!(
                json::get(&request, "cniVersion").and_then(Value::as_str),
                Some(list.version.as_str())
            );
            let _ = podwire_cni_spec::valid_attachments(&request);
        }
    }
    if let Ok(plugin) = PluginConfig::from_bytes(bytes) {
        assert!(!plugin.kind.contains('/'));
    }
    let parsed = json::parse(bytes);
    if let Err(error) = &parsed {
        assert!(error.code == podwire_cni_spec::code::DECODE && error.msg.len() < 1000, "{error}");
    }
    if let Ok(value) = &parsed {
        if let Err(error) = json::decode::<Everything>(value) {
            assert_eq!(error.code, podwire_cni_spec::code::INVALID_CONFIG);
        }
        capabilities(value);
        assert!(json::parse(json::pretty(value).as_bytes()).is_ok());
    }
    plugins(bytes, parsed.ok());
}

fn capabilities(config: &Value) {
    let _ = (capability::port_mappings(config), capability::bandwidth(config), capability::ip_ranges(config));
    let _ = (capability::ips(config), capability::mac(config), capability::dns(config));
}

fn plugins(bytes: &[u8], parsed: Option<Value>) {
    let stdin = match parsed {
        None => bytes.to_vec(),
        Some(mut value) => {
            status::without_files(&mut value);
            // Without a valid version and name, most plugins would stop before they read the rest.
            if let Some(object) = value.as_object_mut() {
                json::set(object, "cniVersion", "1.1.0".into());
                json::set(object, "name", "net".into());
            }
            value.to_string().into_bytes()
        }
    };
    // noop answers with whatever its config contains, so there is nothing to check.
    for plugin in podwire_plugins::PLUGINS.iter().filter(|plugin| plugin.name() != "noop") {
        status::call(*plugin, &stdin);
    }
}
