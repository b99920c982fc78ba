//! Results of 0.1.0 and 0.2.0: at most one address of each family, each with its own routes, no interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use super::{Attachment, Dns, Ip, Route};
use crate::addr::canonical_net;
use crate::{json, Error, Version};

#[derive(Deserialize)]
struct Document {
    ip4: Option<Family>,
    ip6: Option<Family>,
    #[serde(default)]
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct Family {
    #[serde(with = "crate::addr::net")]
    ip: IpNet,
    #[serde(default, with = "crate::addr::optional_ip", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

pub(super) fn read(v: &Value) -> Result<Attachment, Error> {
    let Document { ip4, ip6, dns } = json::decode(v)?;
    let mut attachment = Attachment { dns, ..Attachment::default() };
    for family in [ip4, ip6].into_iter().flatten() {
        attachment.ips.push(Ip { address: family.ip, gateway: family.gateway, interface: None });
        attachment.routes.extend(family.routes);
    }
    Ok(attachment)
}

pub(super) fn write(attachment: &Attachment, version: Version) -> Result<Value, Error> {
    let mut result = Map::new();
    result.insert("cniVersion".to_owned(), json!(version));
    let families = [("ip4", true), ("ip6", false)];
    for (key, is_v4) in families {
        if let Some(family) = family(attachment, is_v4) {
            result.insert(key.to_owned(), json!(family));
        }
    }
    if result.len() == 1 {
        return Err(Error::internal("cannot convert: no valid IP addresses")
            .with_hint(format!("a result of version {version} needs at least one")));
    }
    result.insert("dns".to_owned(), json!(attachment.dns));
    Ok(Value::Object(result))
}

/// The first address of a family, and all routes to that family without their attributes.
fn family(attachment: &Attachment, is_v4: bool) -> Option<Family> {
    let same = |net: IpNet| canonical_net(net).addr().is_ipv4() == is_v4;
    let ip = attachment.ips.iter().find(|ip| same(ip.address))?;
    let routes = attachment.routes.iter().filter(|route| same(route.dst));
    let routes = routes.map(|route| Route::new(route.dst, route.gw)).collect();
    Some(Family { ip: ip.address, gateway: ip.gateway, routes })
}
