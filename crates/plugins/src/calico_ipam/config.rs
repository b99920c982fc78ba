//! The settings about addresses in the config and in `CNI_ARGS`.

use std::net::IpAddr;

use podwire_agent_ipc::addresses::AddressRequest;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::json;
use serde_json::Value;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] =
    &["ipam.assign_ipv4", "ipam.assign_ipv6", "ipam.ipv4_pools", "ipam.ipv6_pools", "ipam.agent_socket"];

/// The addresses to assign to the pod.
pub(super) fn requested_addresses(req: &Request<'_>) -> Result<AddressRequest> {
    let empty = Value::Null;
    let ipam = json::get(&req.config, "ipam").unwrap_or(&empty);
    let ips = addresses(req.args.get("IP").unwrap_or_default())?;
    let v4 = is_on(ipam, "assign_ipv4", true)?.then(|| pools(ipam, "ipv4_pools")).transpose()?;
    let v6 = is_on(ipam, "assign_ipv6", false)?.then(|| pools(ipam, "ipv6_pools")).transpose()?;
    if ips.is_empty() && v4.is_none() && v6.is_none() {
        let text = "ipam: neither assign_ipv4 nor assign_ipv6 is \"true\": the pod would get no address";
        return Err(podwire_cni_spec::Error::invalid_config(text).into());
    }
    let (namespace, pod) = pod(req).unwrap_or_default();
    Ok(AddressRequest { namespace, pod, ipv4_pools: v4, ipv6_pools: v6, ips })
}

/// The pod's namespace and name, if the runtime passes them.
pub(crate) fn pod(req: &Request<'_>) -> Option<(String, String)> {
    let arg = |key: &str| req.args.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
    arg("K8S_POD_NAMESPACE").zip(arg("K8S_POD_NAME"))
}

/// The handle that old releases of Calico used for the pod's addresses.
pub(super) fn legacy_handle(req: &Request<'_>) -> Option<String> {
    pod(req).map(|(namespace, pod)| format!("{namespace}.{pod}"))
}

/// One address, or one of each family, separated by a comma.
fn addresses(text: &str) -> Result<Vec<IpAddr>> {
    let wrong = || {
        let text =
            format!("CNI_ARGS: IP={text} is not an address such as 10.244.1.5, nor one of each family");
        podwire_cni_plugin::Error::from(podwire_cni_spec::Error::invalid_config(text))
    };
    let parts = text.split(',').filter(|_| !text.is_empty());
    let all: Vec<IpAddr> = parts.map(|part| part.parse().map_err(|_| wrong())).collect::<Result<_>>()?;
    if all.len() > 2 || matches!(all[..], [one, other] if one.is_ipv4() == other.is_ipv4()) {
        return Err(wrong());
    }
    Ok(all)
}

/// A boolean of the config. Calico writes them as strings; JSON booleans are accepted, too.
fn is_on(ipam: &Value, key: &str, default: bool) -> Result<bool> {
    match json::get(ipam, key) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(Value::String(text)) if text.is_empty() => Ok(default),
        Some(other) => {
            let text = format!("ipam.{key}: {other} is neither \"true\" nor \"false\"");
            Err(podwire_cni_spec::Error::invalid_config(text).into())
        }
    }
}

fn pools(ipam: &Value, key: &str) -> Result<Vec<String>> {
    let wrong = |value: &Value| {
        let text = format!("ipam.{key}: {value} is not a list of pools, by name or CIDR");
        podwire_cni_plugin::Error::from(podwire_cni_spec::Error::invalid_config(text))
    };
    match json::get(ipam, key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(names)) => {
            let name = |name: &Value| name.as_str().map(str::to_owned).ok_or_else(|| wrong(name));
            names.iter().map(name).collect()
        }
        Some(other) => Err(wrong(other)),
    }
}
