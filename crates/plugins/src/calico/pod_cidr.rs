//! `usePodCidr` and `usePodCidrIPv6`: placeholders in host-local's config for the node's pod CIDRs.

use std::borrow::Cow;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{self, Response};
use podwire_cni_plugin::{delegate, Command, Request, Result};
use podwire_cni_spec::json;
use podwire_ip::IpFamily;
use serde_json::Value;

use crate::calico_ipam::request::{call, unexpected};

const PLACEHOLDERS: [(&str, IpFamily); 2] = [("usePodCidr", IpFamily::V4), ("usePodCidrIPv6", IpFamily::V6)];

/// The request with the node's pod CIDRs in place of the placeholders. Only ADD and STATUS need the CIDRs: the other
/// commands get `0.0.0.0/0` or `::/0`.
pub(super) fn substitute<'r, 'p>(req: &'r Request<'p>) -> Result<Cow<'r, Request<'p>>> {
    if delegate::ipam(req) != Some("host-local") {
        return Ok(Cow::Borrowed(req));
    }
    let mut config = Value::clone(&req.config);
    let values = placeholders(&mut config);
    if values.is_empty() {
        return Ok(Cow::Borrowed(req));
    }
    let is_needed = matches!(req.command, Command::Add | Command::Status);
    let cidrs = if is_needed { pod_cidrs(req)? } else { Vec::new() };
    for value in values {
        let Some((name, family)) = value.as_str().and_then(find_placeholder) else { continue };
        let cidr = cidrs.iter().find(|cidr| IpFamily::of_net(**cidr) == family);
        *value = match cidr {
            Some(cidr) => cidr.to_string().into(),
            None if !is_needed => format!("{}/0", family.unspecified()).into(),
            None => {
                let text = format!("{name} found but there is no {family} CIDR configured");
                let hint = "give the node a pod CIDR of that family, or remove the key from the config";
                return Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into());
            }
        };
    }
    Ok(Cow::Owned(Request { config: config.into(), ..req.clone() }))
}

fn find_placeholder(text: &str) -> Option<(&'static str, IpFamily)> {
    PLACEHOLDERS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text))
}

/// The node's pod CIDRs, from the agent.
fn pod_cidrs(req: &Request<'_>) -> Result<Vec<IpNet>> {
    let kubernetes = json::get(&req.config, "kubernetes");
    let node = kubernetes.and_then(|section| json::get(section, "node_name")).and_then(Value::as_str);
    let node = node.filter(|node| !node.is_empty()).map(str::to_owned);
    match call(req, addresses::Request::PodCidrs { node })? {
        Response::PodCidrs { cidrs } => Ok(cidrs),
        other => Err(unexpected(&other)),
    }
}

/// The values that are placeholders, of `ipam.subnet` and `ipam.ranges[][].subnet`.
fn placeholders(config: &mut Value) -> Vec<&mut Value> {
    let mut found = Vec::new();
    let Some(ipam) = find(config, "ipam").and_then(Value::as_object_mut) else { return found };
    for (key, value) in ipam.iter_mut() {
        match key.to_ascii_lowercase().as_str() {
            "subnet" => found.push(value),
            "ranges" => {
                let sets = value.as_array_mut().into_iter().flatten();
                let ranges = sets.filter_map(Value::as_array_mut).flatten();
                found.extend(ranges.filter_map(|range| find(range, "subnet")));
            }
            _ => {}
        }
    }
    found.into_iter().filter(|value| value.as_str().and_then(find_placeholder).is_some()).collect()
}

fn find<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    let object = value.as_object_mut()?;
    object.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_found_in_every_subnet() {
        let mut config = json!({"ipam": {
            "type": "host-local", "subnet": "usepodcidr",
            "ranges": [[{"subnet": "usePodCidrIPv6"}], [{"subnet": "10.0.0.0/24"}, {"gateway": "10.0.0.1"}]],
        }});
        assert_eq!(placeholders(&mut config).len(), 2);
        assert!(placeholders(&mut json!({"ipam": {"subnet": "10.0.0.0/24"}})).is_empty());
        assert!(placeholders(&mut json!({"ipam": 1})).is_empty());
    }
}
