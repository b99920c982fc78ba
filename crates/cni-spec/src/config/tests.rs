use proptest::prelude::*;
use serde_json::{json, Map};

use super::*;
use crate::{code, ContainerId, IfName};

const LIST: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "disableCheck": "true",
    "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}, "dns": {"nameservers": ["1.1.1.1"]}, "x": {"Y": 1.5}},
        {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": false, "mac": "True"}}
    ]
}"#;

fn list() -> NetworkList {
    NetworkList::parse(LIST.as_bytes()).unwrap()
}

fn refused(v: Value) -> Error {
    NetworkList::parse(v.to_string().as_bytes()).unwrap_err()
}

#[test]
fn a_list_has_its_plugins_in_order() {
    let list = list();
    assert_eq!((list.name.as_str(), list.version), ("pods", Version::V1_0_0));
    assert!(list.disable_check && !list.disable_gc && !list.load_only_inlined_plugins);
    let [bridge, portmap] = &list.plugins[..] else { panic!("two plugins") };
    assert_eq!((bridge.kind.as_str(), bridge.ipam.as_deref()), ("bridge", Some("host-local")));
    assert_eq!(bridge.dns.nameservers, ["1.1.1.1"]);
    assert_eq!(bridge.raw["x"], json!({"Y": 1.5}), "unknown keys stay");
    assert_eq!(portmap.capabilities, ["mac", "portMappings"]);
    assert_eq!(portmap.ipam, None);
    assert_eq!(list.bytes, LIST.as_bytes());
}

#[test]
fn the_named_keys_of_a_list_are_read() {
    for key in NetworkList::KEYS {
        let mut list = json!({"name": "n", "plugins": []});
        list[key] = json!({"no": ["such value"]});
        let error = NetworkList::parse(list.to_string().as_bytes()).expect_err(key);
        assert!(error.msg.contains(&format!(": {key}: ")), "{key}: {error}");
    }
}

#[test]
fn keys_come_in_any_case_and_booleans_as_strings() {
    let v = json!({"CNIVersion": "0.4.0", "Name": "n", "DisableCheck": "FALSE", "disablegc": true,
                   "LoadOnlyInlinedPlugins": "True", "Plugins": [{"Type": "x", "IPAM": {"TYPE": "y"}}]});
    let list = NetworkList::parse(v.to_string().as_bytes()).unwrap();
    assert!(!list.disable_check && list.disable_gc && list.load_only_inlined_plugins);
    assert_eq!((list.version, list.plugins[0].ipam.as_deref()), (Version::V0_4_0, Some("y")));
}

#[test]
fn the_highest_known_version_is_spoken() {
    let version = |extra: Value| {
        let mut v = json!({"name": "n"});
        v.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        NetworkList::parse(v.to_string().as_bytes()).map(|list| list.version)
    };
    assert_eq!(version(json!({})), Ok(Version::V0_1_0));
    assert_eq!(version(json!({"cniVersion": "", "cniVersions": []})), Ok(Version::V0_1_0));
    assert_eq!(version(json!({"cniVersions": ["0.3.1", "1.0.0", "0.4.0"]})), Ok(Version::V1_0_0));
    assert_eq!(version(json!({"cniVersions": ["1.0.0", "1.2.0", "9.0"]})), Ok(Version::V1_0_0));
    assert_eq!(version(json!({"cniVersion": "1.1.0", "cniVersions": ["0.3.1"]})), Ok(Version::V1_1_0));
    assert_eq!(version(json!({"cniVersion": "1.2.0", "cniVersions": ["0.3.1"]})), Ok(Version::V0_3_1));
    for unknown in [json!({"cniVersion": "1.2.0"}), json!({"cniVersions": ["1.2.0", "0.5.0"]})] {
        assert_eq!(version(unknown).unwrap_err().code, code::INCOMPATIBLE_VERSION);
    }
    let error = version(json!({"cniVersions": ["1.0.0", "latest"]})).unwrap_err();
    assert_eq!(error.code, code::INVALID_CONFIG);
    assert!(error.msg.contains("cniVersions[1]: invalid version \"latest\""), "{error}");
}

#[test]
fn plugins_may_come_from_the_folder() {
    let list = NetworkList::parse(br#"{"name": "n", "cniVersion": "1.0.0"}"#);
    let mut list = list.unwrap();
    assert!(list.plugins.is_empty());
    list.push_plugin(PluginConfig::from_bytes(br#"{"type": "tuning"}"#).unwrap());
    assert_eq!(list.plugins[0].kind, "tuning");
    assert!(NetworkList::parse(br#"{"name": "n", "plugins": []}"#).is_ok());
    let error = refused(json!({"name": "n", "loadOnlyInlinedPlugins": true}));
    assert!(error.msg.ends_with("`loadOnlyInlinedPlugins` is true, and no 'plugins' key"), "{error}");
}

#[test]
fn errors_name_the_key_and_what_was_found() {
    let text = |v: Value| refused(v).to_string();
    let list = "error parsing configuration list: ";
    assert_eq!(text(json!({})), format!("{list}no name"));
    assert_eq!(text(json!({"name": 5})), format!("{list}name: invalid type: integer `5`, expected a string"));
    assert!(text(json!({"name": "a/b"}))
        .starts_with(&format!("{list}name: invalid characters found in network name")));
    assert!(text(json!({"name": "n", "disableGC": "yes"}))
        .starts_with(&format!("{list}disableGC: invalid value: string \"yes\"")));
    assert_eq!(
        text(json!({"name": "n", "plugins": {}})),
        format!("{list}plugins: invalid type: an object, expected an array")
    );
    assert!(text(json!([])).starts_with(&format!("{list}invalid type: an array")));
    let plugin = |v: Value| text(json!({"name": "n", "plugins": [{"type": "ok"}, v]}));
    let second = "failed to parse plugin config 1: error parsing configuration: ";
    assert!(plugin(json!({})).starts_with(&format!("{second}missing 'type'")));
    assert!(plugin(json!(null)).starts_with(second));
    assert!(plugin(json!({"type": "../sh"})).starts_with(&format!("{second}invalid plugin name: ../sh")));
    assert!(plugin(json!({"type": "x", "capabilities": {"mac": 1}}))
        .starts_with(&format!("{second}capabilities.mac: invalid type: integer `1`")));
    assert_eq!(
        plugin(json!({"type": "x", "ipam": {"type": []}})),
        format!("{second}ipam.type: invalid type: sequence, expected a string")
    );
    let error = NetworkList::parse(b"{").unwrap_err();
    assert_eq!(error.code, code::DECODE);
    assert!(error.msg.starts_with("error parsing configuration list: invalid JSON at line 1"), "{error}");
}

#[test]
fn a_single_config_becomes_a_list_of_one() {
    let list =
        NetworkList::from_single(br#"{"cniVersion":"0.2.0","name":"n","type":"bridge","a":null}"#).unwrap();
    assert_eq!((list.version, list.plugins[0].kind.as_str()), (Version::V0_2_0, "bridge"));
    let text = r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"cniVersion":"0.2.0","name":"n","type":"bridge","a":null}]}"#;
    assert_eq!(String::from_utf8(list.bytes.clone()).unwrap(), text);
    assert_eq!(NetworkList::parse(&list.bytes), Ok(list));

    let error = NetworkList::from_single(LIST.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("missing 'type'; 'plugins' is there"), "{error}");
    assert_eq!(NetworkList::from_single(br#"{"type":"x"}"#).unwrap_err().code, code::INVALID_CONFIG);
}

#[test]
fn a_request_is_addressed_and_carries_what_the_capabilities_ask_for() {
    let list = list();
    let runtime = json!({"portMappings": [{"HostPort": 1}], "bandwidth": {}, "aliases": {}});
    let Value::Object(runtime) = runtime else { panic!() };
    let prev = json!({"cniVersion": "1.0.0"});
    let request = list.plugins[1].request(&list, Some(&prev), &runtime);
    let expected = r#"{"type":"portmap","capabilities":{"portMappings":true,"bandwidth":false,"mac":"True"},"name":"pods","cniVersion":"1.0.0","runtimeConfig":{"portMappings":[{"HostPort":1}]},"prevResult":{"cniVersion":"1.0.0"}}"#;
    assert_eq!(request.to_string(), expected);

    let request = list.plugins[0].request(&list, None, &runtime);
    assert_eq!(json::get(&request, "runtimeConfig"), None, "no capability, no runtimeConfig");
    assert_eq!(json::get(&request, "prevResult"), None);
    assert_eq!(request["x"], json!({"Y": 1.5}));
}

#[test]
fn a_request_overrides_what_the_plugin_said_about_itself() {
    let plugin = json!({"CNIVersion": "0.1.0", "type": "x", "Name": "other", "name": "another"});
    let plugin = PluginConfig::parse(plugin).unwrap();
    let request = plugin.request(&list(), None, &Map::new());
    assert_eq!(request.to_string(), r#"{"type":"x","name":"pods","cniVersion":"1.0.0"}"#);
}

#[test]
fn a_gc_request_lists_the_valid_under_both_keys() {
    let list = list();
    let valid = [(ContainerId::parse("c1").unwrap(), IfName::parse("eth0").unwrap())];
    let request = list.plugins[0].gc_request(&list, &valid);
    let expected = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert_eq!(request["cni.dev/valid-attachments"], expected);
    assert_eq!(request["cni.dev/attachments"], expected);
    assert_eq!(request["name"], "pods");
    let read = valid_attachments(&request).unwrap().unwrap();
    assert_eq!((read[0].container_id.as_str(), read[0].ifname.as_str()), ("c1", "eth0"));
    let empty = list.plugins[0].gc_request(&list, &[]);
    assert_eq!(valid_attachments(&empty), Ok(Some(vec![])), "nothing valid is not nothing said");
}

proptest! {
    #[test]
    fn a_mutilated_list_never_panics(text in "[\\[\\]{}:,\"a-z0-9.]{0,9}", at in 0..LIST.len(), cut in 0..20usize) {
        let rest = LIST.get(at + cut..).unwrap_or_default();
        let broken = format!("{}{text}{rest}", &LIST[..at]);
        let _ = NetworkList::from_single(broken.as_bytes());
        if let Ok(list) = NetworkList::parse(broken.as_bytes()) {
            for plugin in &list.plugins {
                let request = plugin.request(&list, None, &Map::new());
                prop_assert_eq!(json::get(&request, "type"), Some(&json!(plugin.kind)));
            }
        }
    }
}
