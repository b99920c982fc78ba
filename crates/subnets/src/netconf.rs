//! flannel's net-conf.json: the network of all pods.
//!
//! Where the store assigns subnets (etcd, embedded), the subnet keys matter, and [`NetConf::pools`] checks them as
//! flannel does. With Kubernetes a controller assigns pod CIDRs, and the subnet keys are ignored.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_cni_spec::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::node::PodCidrs;
use crate::pool::{self, Pool, PoolSpec, Pools};

/// The network config.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// The IPv4 network of all pods.
    pub network: Option<Ipv4Net>,
    /// The IPv6 network of all pods.
    pub ipv6_network: Option<Ipv6Net>,
    /// Whether pods have IPv4 addresses. The default is true.
    pub enable_ipv4: bool,
    /// Whether pods have IPv6 addresses.
    pub enable_ipv6: bool,
    /// Whether flannel uses nftables. Podwire always does.
    pub enable_nftables: bool,
    /// The prefix length of a node's IPv4 subnet. 0: flannel's default.
    pub subnet_len: u8,
    /// The first IPv4 subnet that is assigned.
    pub subnet_min: Option<Ipv4Addr>,
    /// The last.
    pub subnet_max: Option<Ipv4Addr>,
    /// The prefix length of a node's IPv6 subnet. 0: flannel's default.
    pub ipv6_subnet_len: u8,
    /// The first IPv6 subnet that is assigned.
    pub ipv6_subnet_min: Option<Ipv6Addr>,
    /// The last.
    pub ipv6_subnet_max: Option<Ipv6Addr>,
    /// The backend between nodes. `udp` if no backend is named, whatever flannel's documentation says.
    pub backend_type: String,
    /// The backend's options, [`backend_type`](NetConf::backend_type) included.
    pub backend: Map<String, Value>,
    /// The file or key, for errors.
    origin: String,
}

/// The JSON document. Networks and addresses are strings, parsed below.
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
    /// Parses a config. `origin` is the file or key, for errors.
    pub fn parse(origin: &str, text: &str) -> Result<NetConf> {
        let wrong = |why: String| Error::Config { origin: origin.into(), why };
        let value = json::parse(text.as_bytes()).map_err(|error| wrong(error.msg))?;
        let read: Document = json::decode(&value).map_err(|error| wrong(error.msg))?;
        let (backend_type, backend) = backend(read.backend).map_err(wrong)?;
        let too_long = |key: &str, len: u32| format!("{key} is {len}: no address has that many bits");
        let length = |key: &str, len: u32, bits: u32| {
            u8::try_from(len).ok().filter(|_| len <= bits).ok_or_else(|| wrong(too_long(key, len)))
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

    /// The pools of subnets, checked as flannel checks them for etcd.
    pub fn pools(&self) -> Result<Pools> {
        let wrong = |why: String| Error::Config { origin: self.origin.clone(), why };
        let v4 = || -> Result<Pool> {
            let spec = PoolSpec {
                network: self.network.filter(|net| net.prefix_len() > 0).map(IpNet::V4),
                len: self.subnet_len,
                min: self.subnet_min.filter(|ip| !ip.is_unspecified()).map(Into::into),
                max: self.subnet_max.filter(|ip| !ip.is_unspecified()).map(Into::into),
            };
            Pool::new(&pool::V4, spec).map_err(wrong)
        };
        let v6 = || -> Result<Pool> {
            let spec = PoolSpec {
                network: self.ipv6_network.filter(|net| net.prefix_len() > 0).map(IpNet::V6),
                len: self.ipv6_subnet_len,
                min: self.ipv6_subnet_min.filter(|ip| !ip.is_unspecified()).map(Into::into),
                max: self.ipv6_subnet_max.filter(|ip| !ip.is_unspecified()).map(Into::into),
            };
            Pool::new(&pool::V6, spec).map_err(wrong)
        };
        if !self.enable_ipv4 && !self.enable_ipv6 {
            return Err(wrong("EnableIPv4 and EnableIPv6 are both false: pods would have no address".into()));
        }
        Ok(Pools { v4: self.enable_ipv4.then(v4).transpose()?, v6: self.enable_ipv6.then(v6).transpose()? })
    }

    /// Checks the pod CIDRs that another component assigned to a node. They must be in the network: otherwise no other
    /// node sends packets for them here.
    pub fn check_pod_cidrs(&self, name: &str, pod_cidrs: PodCidrs) -> Result<()> {
        let outside = |pod_cidr: IpNet, network: Option<IpNet>| Error::OutsideOfNetwork {
            name: name.into(),
            pod_cidr,
            network: network.map_or("(none)".into(), |network| network.to_string()),
        };
        let networks = [
            (pod_cidrs.v4.map(IpNet::V4), self.network.map(IpNet::V4)),
            (pod_cidrs.v6.map(IpNet::V6), self.ipv6_network.map(IpNet::V6)),
        ];
        for (pod_cidr, network) in networks {
            match (pod_cidr, network) {
                (Some(pod_cidr), Some(network)) if network.contains(&pod_cidr) => {}
                (Some(pod_cidr), network) => return Err(outside(pod_cidr, network)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Checks that a node's pod CIDRs are not larger than the subnets that nodes get in etcd.
    pub fn check_size(&self, name: &str, pod_cidrs: PodCidrs) -> Result<()> {
        match self.pools()?.find_larger(pod_cidrs) {
            Some((pod_cidr, len)) => Err(Error::LargerThanSubnet { name: name.into(), pod_cidr, len }),
            None => Ok(()),
        }
    }
}

/// Parses a value of the document, if it is present.
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
        other => Err(format!("error decoding Backend property of config: {other} is not an object")),
    }
}

#[cfg(test)]
mod tests;
