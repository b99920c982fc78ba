//! flannel's net-conf.json: what the network of all pods is.
//!
//! Two readers use it differently. Where the store gives out ranges (etcd, embedded) everything about subnets matters, and
//! [`NetConf::pools`] checks it as flannel does. With Kubernetes the ranges come from the controller, and the subnet keys
//! are not looked at.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_cni_spec::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::pool::{self, Pool, Pools};
use crate::{Error, PodCidrs, Result};

/// The network's config, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// All pods' IPv4 addresses.
    pub network: Option<Ipv4Net>,
    /// All pods' IPv6 addresses.
    pub ipv6_network: Option<Ipv6Net>,
    /// Whether pods have IPv4 addresses. They do unless this says no.
    pub enable_ipv4: bool,
    /// Whether pods have IPv6 addresses.
    pub enable_ipv6: bool,
    /// Whether flannel was told to use nftables. Ours always does; the key is kept for who reads it.
    pub enable_nftables: bool,
    /// The size of a node's IPv4 range. Zero: flannel's choice.
    pub subnet_len: u8,
    /// The first IPv4 range that is given out.
    pub subnet_min: Option<Ipv4Addr>,
    /// The last.
    pub subnet_max: Option<Ipv4Addr>,
    /// The size of a node's IPv6 range. Zero: flannel's choice.
    pub ipv6_subnet_len: u8,
    /// The first IPv6 range that is given out.
    pub ipv6_subnet_min: Option<Ipv6Addr>,
    /// The last.
    pub ipv6_subnet_max: Option<Ipv6Addr>,
    /// The kind of road between nodes. `udp` if no backend is named, whatever flannel's documents say.
    pub backend_type: String,
    /// The backend's own options, [`backend_type`](NetConf::backend_type) included.
    pub backend: Map<String, Value>,
    /// The file's or key's text, for errors and to be kept.
    origin: String,
}

/// The document. Go's words for a number (`uint`) and for networks and addresses (strings, read by hand below).
#[derive(Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "Network")]
    network: Option<String>,
    #[serde(rename = "IPv6Network")]
    ipv6_network: Option<String>,
    #[serde(rename = "EnableIPv4")]
    enable_ipv4: bool,
    #[serde(rename = "EnableIPv6")]
    enable_ipv6: bool,
    #[serde(rename = "EnableNFTables")]
    enable_nftables: bool,
    #[serde(rename = "SubnetLen")]
    subnet_len: u32,
    #[serde(rename = "SubnetMin")]
    subnet_min: Option<String>,
    #[serde(rename = "SubnetMax")]
    subnet_max: Option<String>,
    #[serde(rename = "IPv6SubnetLen")]
    ipv6_subnet_len: u32,
    #[serde(rename = "IPv6SubnetMin")]
    ipv6_subnet_min: Option<String>,
    #[serde(rename = "IPv6SubnetMax")]
    ipv6_subnet_max: Option<String>,
    #[serde(rename = "Backend")]
    backend: Option<Value>,
}

impl Default for Document {
    fn default() -> Document {
        Document {
            network: None,
            ipv6_network: None,
            enable_ipv4: true,
            enable_ipv6: false,
            enable_nftables: false,
            subnet_len: 0,
            subnet_min: None,
            subnet_max: None,
            ipv6_subnet_len: 0,
            ipv6_subnet_min: None,
            ipv6_subnet_max: None,
            backend: None,
        }
    }
}

impl NetConf {
    /// Reads a config. `origin` is the file or key, for errors.
    pub fn parse(origin: &str, text: &str) -> Result<NetConf> {
        let wrong = |why: String| Error::Config { origin: origin.into(), why };
        let value = json::parse(text.as_bytes()).map_err(|error| wrong(error.msg))?;
        let read: Document = json::decode(&value).map_err(|error| wrong(error.msg))?;
        let (backend_type, backend) = backend(read.backend).map_err(wrong)?;
        let too_long = |key: &str, len: u32| format!("{key} is {len}: no address has that many bits");
        let length = |key: &str, len: u32, bits: u32| match len <= bits {
            true => Ok(u8::try_from(len).unwrap_or(u8::MAX)),
            false => Err(wrong(too_long(key, len))),
        };
        Ok(NetConf {
            network: given("Network", read.network).map_err(wrong)?.map(|net: Ipv4Net| net.trunc()),
            ipv6_network: given("IPv6Network", read.ipv6_network)
                .map_err(wrong)?
                .map(|net: Ipv6Net| net.trunc()),
            enable_ipv4: read.enable_ipv4,
            enable_ipv6: read.enable_ipv6,
            enable_nftables: read.enable_nftables,
            subnet_len: length("SubnetLen", read.subnet_len, 32)?,
            subnet_min: given("SubnetMin", read.subnet_min).map_err(wrong)?,
            subnet_max: given("SubnetMax", read.subnet_max).map_err(wrong)?,
            ipv6_subnet_len: length("IPv6SubnetLen", read.ipv6_subnet_len, 128)?,
            ipv6_subnet_min: given("IPv6SubnetMin", read.ipv6_subnet_min).map_err(wrong)?,
            ipv6_subnet_max: given("IPv6SubnetMax", read.ipv6_subnet_max).map_err(wrong)?,
            backend_type,
            backend,
            origin: origin.into(),
        })
    }

    /// What can be given out, checked as flannel checks it for etcd.
    pub fn pools(&self) -> Result<Pools> {
        let wrong = |why: String| Error::Config { origin: self.origin.clone(), why };
        let v4 = || -> Result<Pool> {
            let asked = pool::Asked {
                network: self.network.filter(|net| net.prefix_len() > 0).map(IpNet::V4),
                len: self.subnet_len,
                min: self.subnet_min.filter(|ip| !ip.is_unspecified()).map(Into::into),
                max: self.subnet_max.filter(|ip| !ip.is_unspecified()).map(Into::into),
            };
            Pool::check(&pool::V4, asked).map_err(wrong)
        };
        let v6 = || -> Result<Pool> {
            let asked = pool::Asked {
                network: self.ipv6_network.filter(|net| net.prefix_len() > 0).map(IpNet::V6),
                len: self.ipv6_subnet_len,
                min: self.ipv6_subnet_min.filter(|ip| !ip.is_unspecified()).map(Into::into),
                max: self.ipv6_subnet_max.filter(|ip| !ip.is_unspecified()).map(Into::into),
            };
            Pool::check(&pool::V6, asked).map_err(wrong)
        };
        if !self.enable_ipv4 && !self.enable_ipv6 {
            return Err(wrong("EnableIPv4 and EnableIPv6 are both false: pods would have no address".into()));
        }
        Ok(Pools { v4: self.enable_ipv4.then(v4).transpose()?, v6: self.enable_ipv6.then(v6).transpose()? })
    }

    /// Checks a range that somebody else gave to a node: it must be of the network, or no other node would send
    /// its packets here.
    pub fn check_pod_cidrs(&self, name: &str, ranges: PodCidrs) -> Result<()> {
        let outside = |range: IpNet, network: Option<IpNet>| Error::OutsideOfNetwork {
            name: name.into(),
            range,
            network: network.map_or("(none)".into(), |network| network.to_string()),
        };
        let networks = [
            (ranges.v4.map(IpNet::V4), self.network.map(IpNet::V4)),
            (ranges.v6.map(IpNet::V6), self.ipv6_network.map(IpNet::V6)),
        ];
        for (range, network) in networks {
            match (range, network) {
                (Some(range), Some(network)) if network.contains(&range) => {}
                (Some(range), network) => return Err(outside(range, network)),
                (None, _) => {}
            }
        }
        Ok(())
    }
}

/// A value of the document, if it is there. Go reads an empty string as no network, which is as good as none.
fn given<T: std::str::FromStr>(key: &str, text: Option<String>) -> std::result::Result<Option<T>, String>
where
    T::Err: std::fmt::Display,
{
    text.map(|text| text.trim().parse().map_err(|error| format!("{key}: {error}: {text:?}"))).transpose()
}

fn backend(backend: Option<Value>) -> std::result::Result<(String, Map<String, Value>), String> {
    let Some(backend) = backend else { return Ok(("udp".into(), Map::new())) };
    let kind = match json::get(&backend, "Type") {
        None => String::new(),
        Some(Value::String(kind)) => kind.clone(),
        Some(other) => {
            return Err(format!("error decoding Backend property of config: Type is {other}, not a string"))
        }
    };
    match backend {
        Value::Object(options) => Ok((kind, options)),
        other => Err(format!("error decoding Backend property of config: {other} is no object")),
    }
}

#[cfg(test)]
mod tests;
