//! `usePodCidr` and `usePodCidrIPv6`: host-local gives addresses of the range that the cluster has given to this node.

use std::borrow::Cow;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{self, Response};
use podwire_cni_plugin::{delegate, Command, Request, Result};
use podwire_cni_spec::json;
use serde_json::Value;

use crate::calico_ipam::asking::ask;
use crate::calico_ipam::unexpected;

/// The words, and what stands for them where no address is given.
const WORDS: [(&str, &str, &str); 2] =
    [("usePodCidr", "IPv4", "0.0.0.0/0"), ("usePodCidrIPv6", "IPv6", "::/0")];

/// The request with the node's ranges in place of the words, if there are any. Only who gets an address needs to know them.
pub(super) fn substituted<'r, 'p>(req: &'r Request<'p>) -> Result<Cow<'r, Request<'p>>> {
    if delegate::ipam(req) != Some("host-local") {
        return Ok(Cow::Borrowed(req));
    }
    let mut config = Value::clone(&req.config);
    let places = places(&mut config);
    if places.is_empty() {
        return Ok(Cow::Borrowed(req));
    }
    let is_needed = matches!(req.command, Command::Add | Command::Status);
    let ranges = if is_needed { ranges(req)? } else { Vec::new() };
    for place in places {
        let word = place.as_str().unwrap_or_default().to_owned();
        let Some((word, family, anything)) =
            WORDS.into_iter().find(|(known, ..)| known.eq_ignore_ascii_case(&word))
        else {
            continue;
        };
        let range = ranges.iter().find(|range| range.addr().is_ipv4() == (family == "IPv4"));
        *place = match (range, is_needed) {
            (Some(range), _) => range.to_string().into(),
            (None, false) => anything.into(),
            (None, true) => {
                let text = format!("{word} found but there is no {family} CIDR configured");
                let hint = "give the node a range of that family, or leave the word out of the config";
                return Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into());
            }
        };
    }
    Ok(Cow::Owned(Request { config: config.into(), ..req.clone() }))
}

fn ranges(req: &Request<'_>) -> Result<Vec<IpNet>> {
    let kubernetes = json::get(&req.config, "kubernetes");
    let node = kubernetes.and_then(|section| json::get(section, "node_name")).and_then(Value::as_str);
    let node = node.filter(|node| !node.is_empty()).map(str::to_owned);
    match ask(req, addresses::Request::PodCidrs { node })? {
        Response::PodCidrs { cidrs: ranges } => Ok(ranges),
        other => Err(unexpected(&other)),
    }
}

/// Everywhere that one of the words stands: `ipam.subnet` and `ipam.ranges[][].subnet`.
fn places(config: &mut Value) -> Vec<&mut Value> {
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
    let is_word = |value: &&mut Value| {
        let text = value.as_str().unwrap_or_default();
        WORDS.iter().any(|(word, ..)| word.eq_ignore_ascii_case(text))
    };
    found.into_iter().filter(|value| is_word(value)).collect()
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
    fn the_words_are_found_wherever_they_stand() {
        let mut config = json!({"ipam": {
            "type": "host-local", "subnet": "usepodcidr",
            "ranges": [[{"subnet": "usePodCidrIPv6"}], [{"subnet": "10.0.0.0/24"}, {"gateway": "10.0.0.1"}]],
        }});
        assert_eq!(places(&mut config).len(), 2);
        assert!(places(&mut json!({"ipam": {"subnet": "10.0.0.0/24"}})).is_empty());
        assert!(places(&mut json!({"ipam": 1})).is_empty());
    }
}
