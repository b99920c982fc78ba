//! IP pools.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::json::{self, Unknown};
use super::key;
use super::record::Value;
use super::Error;
use crate::selector::{Labels, Selector};
use podwire_ip::IpFamily;

/// The use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Use {
    /// A pod.
    Workload,
    /// A node's tunnel.
    Tunnel,
    /// A service.
    LoadBalancer,
}

impl Use {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Use::Workload => "Workload",
            Use::Tunnel => "Tunnel",
            Use::LoadBalancer => "LoadBalancer",
        }
    }
}

/// The encapsulation of packets between pods on different nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// VXLAN over UDP.
    Vxlan,
    /// IPv4 in IPv4.
    Ipip,
}

/// How the pool is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AssignmentMode {
    /// For all nodes and namespaces that its selectors select.
    #[default]
    Automatic,
    /// Only on explicit request.
    Manual,
}

/// An `IPPool` object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    metadata: Map<String, Json>,
    spec: Spec,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cidr: IpNet,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    vxlan_mode: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ipip_mode: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nat_outgoing: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    disabled: bool,
    #[serde(rename = "disableBGPExport", default, skip_serializing_if = "std::ops::Not::not")]
    disable_bgp_export: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_size: Option<u8>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    node_selector: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    namespace_selector: String,
    #[serde(default, deserialize_with = "json::null_is_empty", skip_serializing_if = "Vec::is_empty")]
    allowed_uses: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    assignment_mode: Option<AssignmentMode>,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Pool {
    /// A pool with Calico's defaults.
    pub fn new(name: &str, cidr: IpNet) -> Pool {
        Pool {
            kind: "IPPool".into(),
            api_version: "projectcalico.org/v3".into(),
            metadata: [("name".to_owned(), name.into())].into_iter().collect(),
            spec: Spec {
                cidr: cidr.trunc(),
                vxlan_mode: "Never".into(),
                ipip_mode: "Never".into(),
                nat_outgoing: false,
                disabled: false,
                disable_bgp_export: false,
                block_size: None,
                node_selector: "all()".into(),
                namespace_selector: String::new(),
                allowed_uses: Vec::new(),
                assignment_mode: None,
                unknown: Unknown::new(),
            },
            unknown: Unknown::new(),
        }
    }

    /// Sets the prefix length of blocks.
    pub fn with_block_size(mut self, length: u8) -> Pool {
        self.spec.block_size = Some(length);
        self
    }

    /// Sets the node selector.
    pub fn for_nodes(mut self, selector: &str) -> Pool {
        self.spec.node_selector = selector.into();
        self
    }

    /// Sets the namespace selector.
    pub fn for_namespaces(mut self, selector: &str) -> Pool {
        self.spec.namespace_selector = selector.into();
        self
    }

    /// Sets the allowed uses.
    pub fn for_uses(mut self, uses: &[Use]) -> Pool {
        self.spec.allowed_uses = uses.iter().map(|one| one.name().to_owned()).collect();
        self
    }

    /// Sets the manual assignment mode.
    pub fn manual(mut self) -> Pool {
        self.spec.assignment_mode = Some(AssignmentMode::Manual);
        self
    }

    /// Disables the pool: it assigns no new addresses.
    pub fn disabled(mut self) -> Pool {
        self.spec.disabled = true;
        self
    }

    /// Enables the pool.
    pub(super) fn enabled(mut self) -> Pool {
        self.spec.disabled = false;
        self
    }

    /// A part of this pool, with its settings, as a new object.
    pub(super) fn part(&self, name: &str, cidr: IpNet) -> Pool {
        let mut part = self.clone();
        part.spec.cidr = cidr;
        part.metadata.retain(|key, _| ["labels", "annotations"].contains(&key.as_str()));
        part.metadata.insert("name".into(), name.into());
        part
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.metadata.get("name").and_then(Json::as_str).unwrap_or_default()
    }

    /// The key in a store.
    pub fn key(&self) -> String {
        format!("{}{}", key::POOLS, self.name())
    }

    /// The CIDR.
    pub fn cidr(&self) -> IpNet {
        self.spec.cidr.trunc()
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.spec.cidr.addr())
    }

    /// The prefix length of blocks. The default is 26 for IPv4 and 122 for IPv6, limited to what fits the pool.
    pub fn block_size(&self) -> u8 {
        let default = self.family().bits() - 6;
        let length = self.spec.block_size.filter(|length| *length > 0).unwrap_or(default);
        length.clamp(self.cidr().prefix_len(), self.family().bits()).max(self.family().bits() - 16)
    }

    /// The block that contains an address of the pool.
    pub(super) fn block_of(&self, ip: std::net::IpAddr) -> Option<IpNet> {
        let inside = self.cidr().contains(&ip);
        inside.then(|| IpNet::new(ip, self.block_size()).ok()).flatten().map(|net| net.trunc())
    }

    /// Whether traffic that leaves the cluster is masqueraded.
    pub fn nat_outgoing(&self) -> bool {
        self.spec.nat_outgoing
    }

    /// The encapsulation, and whether it is used only across subnets. Calico rejects a pool with both encapsulations.
    pub fn encapsulation(&self) -> Option<(Encapsulation, bool)> {
        let mode = |mode: &str| match mode {
            "Always" => Some(false),
            "CrossSubnet" => Some(true),
            _ => None,
        };
        let vxlan = mode(&self.spec.vxlan_mode).map(|cross| (Encapsulation::Vxlan, cross));
        vxlan.or_else(|| mode(&self.spec.ipip_mode).map(|cross| (Encapsulation::Ipip, cross)))
    }

    /// Sets the encapsulation. With `cross_subnet`, nodes in one subnet do not use it.
    pub fn with_encapsulation(mut self, encapsulation: Encapsulation, cross_subnet: bool) -> Pool {
        let mode = if cross_subnet { "CrossSubnet" } else { "Always" };
        match encapsulation {
            Encapsulation::Vxlan => self.spec.vxlan_mode = mode.into(),
            Encapsulation::Ipip => self.spec.ipip_mode = mode.into(),
        }
        self
    }

    /// Masquerades traffic that leaves the cluster.
    pub fn with_nat_outgoing(mut self) -> Pool {
        self.spec.nat_outgoing = true;
        self
    }

    /// Whether its blocks are exported by BGP.
    pub fn is_exported(&self) -> bool {
        !self.spec.disable_bgp_export
    }

    /// Whether it assigns addresses. A pool that is being deleted does not.
    pub fn is_enabled(&self) -> bool {
        !self.spec.disabled && !self.metadata.contains_key("deletionTimestamp")
    }

    /// The assignment mode.
    pub fn assignment_mode(&self) -> AssignmentMode {
        self.spec.assignment_mode.unwrap_or_default()
    }

    /// Whether it allows a use.
    pub fn allows(&self, wanted: Use) -> bool {
        match self.spec.allowed_uses.as_slice() {
            [] => wanted != Use::LoadBalancer,
            // Unknown uses are kept, and allow none of the known ones.
            uses => uses.iter().any(|one| one == wanted.name()),
        }
    }

    /// Whether it selects a node with these labels.
    pub fn selects_node(&self, labels: &Labels) -> Result<bool, Error> {
        self.selects(&self.spec.node_selector, labels)
    }

    /// Whether it selects a namespace with these labels.
    pub fn selects_namespace(&self, labels: &Labels) -> Result<bool, Error> {
        self.selects(&self.spec.namespace_selector, labels)
    }

    /// Whether it does not select all namespaces.
    pub(super) fn has_namespace_selector(&self) -> bool {
        !["", "all()"].contains(&self.spec.namespace_selector.trim())
    }

    fn selects(&self, selector: &str, labels: &Labels) -> Result<bool, Error> {
        let selector =
            Selector::parse(selector).map_err(|why| Error::Selector { pool: self.name().into(), why })?;
        Ok(selector.matches(labels))
    }
}

impl Value for Pool {
    fn decode(bytes: &[u8]) -> Result<Pool, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicos_object_is_kept_byte_by_byte() {
        let text = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"default-ipv4-ippool","uid":"1","creationTimestamp":"2026-08-22T13:33:20Z"},"spec":{"cidr":"10.244.0.0/16","vxlanMode":"Never","ipipMode":"Always","natOutgoing":true,"blockSize":26,"nodeSelector":"all()","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic","new":1},"status":{}}"#;
        let pool = Pool::decode(text.as_bytes()).unwrap();
        assert_eq!(pool.encode().unwrap(), text.as_bytes());
        assert_eq!((pool.name(), pool.block_size(), pool.nat_outgoing()), ("default-ipv4-ippool", 26, true));
        assert_eq!(pool.key(), "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool");
        assert!(pool.is_enabled() && pool.allows(Use::Tunnel) && !pool.allows(Use::LoadBalancer));
    }

    #[test]
    fn defaults_are_calicos() {
        let read = |spec: &str| {
            let text = format!(
                r#"{{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{{"name":"p"}},"spec":{spec}}}"#
            );
            Pool::decode(text.as_bytes()).unwrap()
        };
        let pool = read(r#"{"cidr":"10.244.0.0/16"}"#);
        assert_eq!((pool.block_size(), pool.assignment_mode()), (26, AssignmentMode::Automatic));
        assert!(pool.allows(Use::Workload) && pool.allows(Use::Tunnel) && !pool.allows(Use::LoadBalancer));
        assert!(pool.selects_node(&Labels::new()).unwrap());
        let newer = read(r#"{"cidr":"10.244.0.0/16","allowedUses":["Tunnel","HostSecondaryInterface"]}"#);
        assert!(newer.allows(Use::Tunnel) && !newer.allows(Use::Workload));
        assert_eq!(read(r#"{"cidr":"fd00::/48"}"#).block_size(), 122);
        assert_eq!(
            read(r#"{"cidr":"10.0.0.0/28","blockSize":26}"#).block_size(),
            28,
            "a block fits its pool"
        );
        assert_eq!(
            read(r#"{"cidr":"10.0.0.0/24","blockSize":30}"#).block_of("10.0.0.9".parse().unwrap()),
            Some("10.0.0.8/30".parse().unwrap())
        );
    }
}
