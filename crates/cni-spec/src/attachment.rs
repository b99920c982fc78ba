//! The result of ADD: what a container got from the network.
//!
//! The specification calls it "result" and changed its shape three times. [`Attachment`] is the newest shape,
//! which holds everything that the older ones can say; [`Attachment::from_json`] and [`Attachment::to_json`] speak
//! every version, with the losses that each has:
//!
//! | version | interfaces | addresses | routes | `dns` when empty |
//! |---|---|---|---|---|
//! | 1.0.0, 1.1.0 | everything | all | everything | left out |
//! | 0.3.0 – 0.4.0 | name, mac, sandbox | all, each with its `version` | everything | `{}` |
//! | 0.1.0, 0.2.0 | none | the first of each family | `dst` and `gw` of those families | `{}` |

mod legacy;
mod modern;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{code, json, Error, Version};

/// Interfaces, addresses, routes and name servers of one container on one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Every interface that was created, in the container and on the host.
    pub interfaces: Vec<Interface>,
    /// The container's addresses.
    pub ips: Vec<Ip>,
    /// The container's routes.
    pub routes: Vec<Route>,
    /// Name servers for the container.
    pub dns: Dns,
}

/// An interface in the container or on the host. Empty texts and a zero MTU are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Its name in its namespace.
    pub name: String,
    /// The hardware address, lower-case with colons.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU; 0 is absent (1.x only).
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The path of the network namespace that it is in; empty on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The socket of a user-space interface (1.x only).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI address of a device (1.x only).
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// Which of [`Attachment::interfaces`] has it. Address managers leave it out.
    #[serde(default, deserialize_with = "index", skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address with its host bits, and the prefix length of its subnet: `10.1.0.5/16`.
    #[serde(with = "crate::addr::net")]
    pub address: IpNet,
    /// The gateway of the subnet.
    #[serde(default, with = "crate::addr::optional_ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route of the container. Also the shape of `routes` in the configs of address managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination, with host bits if the author wrote any.
    #[serde(with = "crate::addr::net")]
    pub dst: IpNet,
    /// The next hop. None means the gateway of the address, or the link itself if that has none either.
    #[serde(default, with = "crate::addr::optional_ip", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The path MTU. Zero is absent.
    #[serde(default, deserialize_with = "positive", skip_serializing_if = "is_unset")]
    pub mtu: Option<u32>,
    /// The maximal segment size to advertise. Zero is absent.
    #[serde(default, deserialize_with = "positive", skip_serializing_if = "is_unset")]
    pub advmss: Option<u32>,
    /// The metric: lower is preferred. Zero is absent.
    #[serde(default, deserialize_with = "positive", skip_serializing_if = "is_unset")]
    pub priority: Option<u32>,
    /// The routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope: 0 global, 253 link, 254 host (`rt_scope_t` in `linux/rtnetlink.h`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
}

/// What goes into `resolv.conf`. Also the shape of `dns` in configs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to try for short names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options such as `ndots:5`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Attachment {
    /// Decodes a result of the version that it names, or of `fallback` if it names none. `null` is an empty attachment.
    ///
    /// Errors have code 6 and begin with the path of the value, except for an unknown version (code 1).
    pub fn from_json(v: &Value, fallback: Version) -> Result<Attachment, Error> {
        if v.is_null() {
            return Ok(Attachment::default());
        }
        let read = match stated_version(v)?.unwrap_or(fallback) {
            Version::V0_1_0 | Version::V0_2_0 => legacy::read(v),
            version => modern::read(v, version),
        };
        read.map_err(undecodable)
    }

    /// Encodes a result of a version. Fails for 0.1.0 and 0.2.0 without an address, which they require, and if an address names
    /// an interface that does not exist.
    pub fn to_json(&self, version: Version) -> Result<Value, Error> {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => legacy::write(self, version),
            _ => modern::write(self, version),
        }
    }
}

impl Ip {
    /// An address without gateway and interface.
    pub fn new(address: IpNet) -> Self {
        Ip { address, gateway: None, interface: None }
    }
}

impl Route {
    /// A route without attributes.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

impl Dns {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

/// The `cniVersion` of a result, in any spelling of the key: libcni itself once wrote `CNIVersion`.
fn stated_version(v: &Value) -> Result<Option<Version>, Error> {
    #[derive(Deserialize)]
    struct Stamp {
        #[serde(rename = "cniVersion", default)]
        version: String,
    }
    let stamp: Stamp = json::decode(v).map_err(undecodable)?;
    if stamp.version.is_empty() {
        return Ok(None);
    }
    let unknown = || {
        Error::new(code::INCOMPATIBLE_VERSION, format!("unsupported CNI result version {:?}", stamp.version))
    };
    Version::parse(&stamp.version).map(Some).ok_or_else(unknown)
}

/// A result is what a plugin printed, not what an operator configured.
fn undecodable(error: Error) -> Error {
    Error { code: code::DECODE, ..error }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_unset(n: &Option<u32>) -> bool {
    n.unwrap_or(0) == 0
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<u32>::deserialize(deserializer)?.filter(|n| *n > 0))
}

/// Plugins built with the first 0.3.0 libraries say -1 for "none".
fn index<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    Ok(Option::<i64>::deserialize(deserializer)?.and_then(|index| usize::try_from(index).ok()))
}

#[cfg(test)]
mod tests;
