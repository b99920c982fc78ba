//! Renders the delegate's config from flannel's config and from `subnet.env`.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{json, Error, Route};
use serde_json::{json, Map, Value};

use super::subnet::Subnet;

/// The default delegate.
const DELEGATE: &str = "bridge";
/// The key of the rendered config that holds the interface's name. Delegates ignore unknown keys.
pub(super) const IFNAME: &str = "podwire.ifname";

/// The complete config for the delegate. Without `subnet` it lacks ranges, and is sufficient for DEL and GC only.
pub(super) fn render(req: &Request<'_>, subnet: Option<&Subnet>) -> Result<Value> {
    let mut delegate = section(&req.config, "delegate")?;
    check(&delegate)?;
    // The delegate does the work, so it gets the runtime's settings.
    for key in ["runtimeConfig", "capabilities"] {
        if let Some(value) = json::get(&req.config, key) {
            json::set(&mut delegate, key, value.clone());
        }
    }
    default(&mut delegate, "type", json!(DELEGATE));
    if let Some(subnet) = subnet {
        // The delegate masquerades unless flanneld does.
        default(&mut delegate, "ipMasq", json!(!subnet.masquerades));
        default(&mut delegate, "mtu", json!(subnet.mtu));
    }
    if delegate.get("type") == Some(&json!(DELEGATE)) {
        default(&mut delegate, "isGateway", json!(true));
    }
    let ipam = ipam(&req.config, subnet)?;
    json::set(&mut delegate, "ipam", Value::Object(ipam));
    json::set(&mut delegate, "name", json!(req.network.as_str()));
    if let Some(version) = json::get(&req.config, "cniVersion") {
        json::set(&mut delegate, "cniVersion", version.clone());
    }
    if !req.ifname.is_empty() {
        json::set(&mut delegate, IFNAME, json!(req.ifname));
    }
    Ok(Value::Object(delegate))
}

/// An object of the config, empty if absent.
fn section(config: &Value, key: &str) -> Result<Map<String, Value>> {
    match json::get(config, key) {
        None => Ok(Map::new()),
        Some(Value::Object(section)) => Ok(section.clone()),
        Some(other) => {
            let text = format!("{key}: expected an object, found {other}");
            Err(Error::invalid_config(text).into())
        }
    }
}

fn check(delegate: &Map<String, Value>) -> Result<()> {
    let refused = |text: &str, hint: &str| Err(Error::invalid_config(text).with_details(hint).into());
    for (key, text, hint) in [
        (
            "name",
            "'delegate' dictionary must not have 'name' field, it'll be set by flannel",
            "remove delegate.name",
        ),
        (
            "ipam",
            "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
            "move delegate.ipam one level up, to ipam",
        ),
    ] {
        if has(delegate, key) {
            return refused(text, hint);
        }
    }
    match spelling(delegate, "type").map(|spelling| &delegate[&spelling]) {
        None => Ok(()),
        Some(Value::String(kind)) if kind == "flannel" => {
            refused("delegate.type: flannel cannot be its own delegate", "choose bridge or ptp, for example")
        }
        Some(Value::String(_)) => Ok(()),
        Some(_) => refused(
            "'delegate' dictionary, if present, must have (string) 'type' field",
            "delegate.type is the name of a plugin, such as bridge",
        ),
    }
}

/// The IPAM section: the node's subnets are the ranges, the whole network is a route.
fn ipam(config: &Value, subnet: Option<&Subnet>) -> Result<Map<String, Value>> {
    let mut ipam = section(config, "ipam")?;
    default(&mut ipam, "type", json!("host-local"));
    let Some(subnet) = subnet else { return Ok(ipam) };
    let ranges: Vec<Value> = subnet.subnets.iter().map(|net| json!([{"subnet": net.to_string()}])).collect();
    json::set(&mut ipam, "ranges", json!(ranges));
    let mut routes = match json::get(&Value::Object(ipam.clone()), "routes") {
        None => Vec::new(),
        Some(list) => {
            json::decode::<Vec<Route>>(list).map_err(|error| {
                let before = "failed to assemble Delegate IPAM: failed to read IPAM routes";
                Error { msg: format!("{before}: failed to parse ipam.routes: {}", error.msg), ..error }
            })?;
            list.as_array().cloned().unwrap_or_default()
        }
    };
    routes.extend(subnet.networks.iter().map(|net| json!({"dst": net.to_string()})));
    json::set(&mut ipam, "routes", json!(routes));
    Ok(ipam)
}

/// The key in the spelling of the section. A key with the value null counts as present.
fn spelling(section: &Map<String, Value>, key: &str) -> Option<String> {
    section.keys().find(|other| other.eq_ignore_ascii_case(key)).cloned()
}

fn has(section: &Map<String, Value>, key: &str) -> bool {
    spelling(section, key).is_some()
}

fn default(section: &mut Map<String, Value>, key: &str, value: Value) {
    if !has(section, key) {
        section.insert(key.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::{Command, Registry};
    use podwire_cni_spec::{Args, NetworkName, Version};

    use super::*;

    fn request(mut config: Value) -> Request<'static> {
        config["name"] = json!("cbr0");
        config["cniVersion"] = json!("1.0.0");
        Request {
            command: Command::Add,
            container: "c1".into(),
            ifname: "eth0".into(),
            netns: None,
            args: Args::default(),
            path: Vec::new(),
            network: NetworkName::parse("cbr0").unwrap(),
            version: Version::V1_0_0,
            config: config.into(),
            prev: None,
            registry: Registry::none(),
            busy: Vec::new(),
            signed_only: false,
            callers: Vec::new(),
            deadline: None,
            trace: Vec::new(),
        }
    }

    fn subnet() -> Subnet {
        let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect();
        Subnet {
            networks: nets(&["10.244.0.0/16", "fd00:244::/48"]),
            subnets: nets(&["10.244.1.0/24", "fd00:244:0:1::/64"]),
            mtu: 1450,
            masquerades: true,
        }
    }

    fn rendered(config: Value) -> Value {
        render(&request(config), Some(&subnet())).unwrap()
    }

    fn refusal(config: Value) -> (u32, String) {
        let error = render(&request(config), Some(&subnet())).unwrap_err().to_cni();
        (error.code, error.msg)
    }

    #[test]
    fn the_default_is_a_bridge_with_the_nodes_subnets() {
        assert_eq!(
            rendered(json!({"type": "flannel"})),
            json!({
                "name": "cbr0", "cniVersion": "1.0.0", "type": "bridge", "ipMasq": false, "mtu": 1450,
                "isGateway": true, "podwire.ifname": "eth0",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:0:1::/64"}]],
                    "routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd00:244::/48"}],
                },
            })
        );
    }

    #[test]
    fn keys_of_the_delegate_are_kept() {
        let config = rendered(json!({
            "delegate": {"type": "ptp", "ipMasq": true, "MTU": 1400, "hairpinMode": null},
            "ipam": {"type": "whereabouts", "routes": [{"dst": "192.168.0.0/16", "gw": "10.244.1.1"}]},
            "runtimeConfig": {"mac": "02:00:00:00:00:01"}, "capabilities": {"mac": true},
        }));
        assert_eq!(config["type"], "ptp");
        assert_eq!((&config["ipMasq"], &config["MTU"]), (&json!(true), &json!(1400)));
        assert!(config.get("mtu").is_none() && config.get("isGateway").is_none(), "{config}");
        assert_eq!(config["ipam"]["type"], "whereabouts");
        assert_eq!(config["ipam"]["routes"].as_array().map(Vec::len), Some(3));
        assert_eq!(config["ipam"]["routes"][0]["gw"], "10.244.1.1");
        assert_eq!(config["runtimeConfig"]["mac"], "02:00:00:00:00:01");
        assert_eq!(config["capabilities"]["mac"], true);
    }

    #[test]
    fn the_delegate_masquerades_if_flanneld_does_not() {
        let mut other = subnet();
        other.masquerades = false;
        assert_eq!(render(&request(json!({})), Some(&other)).unwrap()["ipMasq"], true);
    }

    #[test]
    fn without_a_subnet_the_config_has_no_ranges() {
        let config = render(&request(json!({"ipam": {"dataDir": "/x"}})), None).unwrap();
        assert_eq!(config["ipam"], json!({"dataDir": "/x", "type": "host-local"}));
        assert_eq!(config["type"], "bridge");
    }

    #[test]
    fn keys_that_flannel_sets_are_refused() {
        let start = "'delegate' dictionary must not have";
        assert!(refusal(json!({"delegate": {"name": "x"}})).1.starts_with(&format!("{start} 'name' field")));
        assert!(refusal(json!({"delegate": {"IPAM": {}}})).1.starts_with(&format!("{start} 'ipam' field")));
        assert_eq!(
            refusal(json!({"delegate": {"type": 5}})),
            (7, "'delegate' dictionary, if present, must have (string) 'type' field".into())
        );
        assert!(refusal(json!({"delegate": {"type": "flannel"}})).1.starts_with("delegate.type: "));
        assert!(refusal(json!({"delegate": "bridge"})).1.starts_with("delegate: expected an object"));
        assert!(refusal(json!({"ipam": []})).1.starts_with("ipam: expected an object"));
        let (code, text) = refusal(json!({"ipam": {"routes": [{"dst": "nowhere"}]}}));
        assert!(
            code == 7 && text.contains("failed to parse ipam.routes: ") && text.contains("nowhere"),
            "{text}"
        );
    }
}
