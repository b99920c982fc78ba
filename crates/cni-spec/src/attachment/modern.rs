//! Results since 0.3.0: lists of interfaces, addresses and routes that refer to each other.

use serde::Deserialize;
use serde_json::{json, Map, Value};

use super::{Attachment, Dns, Interface, Ip, Route};
use crate::{json, Error, Version};

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Document {
    interfaces: Vec<Interface>,
    ips: Vec<Ip>,
    routes: Vec<Route>,
    dns: Dns,
}

pub(super) fn read(v: &Value, version: Version) -> Result<Attachment, Error> {
    let Document { mut interfaces, mut ips, routes, dns } = json::decode(v)?;
    if version < Version::V1_0_0 {
        interfaces = interfaces.iter().map(before_1_0).collect();
    }
    // Go's host-device sets interface 0 for the address of a device without an interface.
    for ip in &mut ips {
        ip.interface = ip.interface.filter(|index| *index < interfaces.len());
    }
    Ok(Attachment { interfaces, ips, routes, dns })
}

pub(super) fn write(attachment: &Attachment, version: Version) -> Result<Value, Error> {
    if let Some(path) = dangling(attachment) {
        // containerd panics on such a result.
        return Err(Error::internal(path));
    }
    let old = version < Version::V1_0_0;
    let interfaces =
        attachment.interfaces.iter().map(
            |interface| {
                if old {
                    json!(before_1_0(interface))
                } else {
                    json!(interface)
                }
            },
        );
    let ips = attachment.ips.iter().map(|ip| if old { with_family(ip) } else { json!(ip) });
    let routes = attachment.routes.iter().map(|route| json!(route));

    let mut result = Map::new();
    result.insert("cniVersion".to_owned(), json!(version));
    let lists: [(&str, Vec<Value>); 3] =
        [("interfaces", interfaces.collect()), ("ips", ips.collect()), ("routes", routes.collect())];
    for (key, list) in lists {
        if !list.is_empty() {
            result.insert(key.to_owned(), Value::Array(list));
        }
    }
    if old || !attachment.dns.is_empty() {
        result.insert("dns".to_owned(), json!(attachment.dns));
    }
    Ok(Value::Object(result))
}

/// What versions before 1.0.0 can say about an interface.
fn before_1_0(interface: &Interface) -> Interface {
    Interface {
        name: interface.name.clone(),
        mac: interface.mac.clone(),
        sandbox: interface.sandbox.clone(),
        ..Interface::default()
    }
}

/// An address as versions before 1.0.0 print it: its family comes first.
fn with_family(ip: &Ip) -> Value {
    let family = if crate::addr::canonical_net(ip.address).addr().is_ipv4() { "4" } else { "6" };
    let mut object = Map::new();
    object.insert("version".to_owned(), json!(family));
    if let Value::Object(rest) = json!(ip) {
        object.extend(rest);
    }
    Value::Object(object)
}

/// The complaint about an address that names an interface which is not there.
fn dangling(attachment: &Attachment) -> Option<String> {
    let count = attachment.interfaces.len();
    let of = |(i, ip): (usize, &Ip)| ip.interface.filter(|index| *index >= count).map(|index| (i, index));
    let (i, index) = attachment.ips.iter().enumerate().find_map(of)?;
    Some(format!("ips[{i}].interface: index {index} is out of range, the number of interfaces is {count}"))
}
