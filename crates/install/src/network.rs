//! The network configs that install can generate.

use ipnet::IpNet;
use podwire_ip::IpFamily;
use serde_json::{json, Map, Value};

use crate::{Error, Result};

/// A network config to generate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Its kind.
    pub kind: NetworkKind,
    /// Its name.
    pub name: String,
    /// The pods' subnets: at most one of each family.
    pub subnets: Vec<IpNet>,
    /// The parent interface, for `macvlan`.
    pub master: Option<String>,
    /// The CNI version that every runtime of the directory supports.
    pub version: &'static str,
    /// A newer version, for runtimes that can choose.
    pub newer: Option<&'static str>,
}

/// The kinds of networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Pods on a bridge of the node, masqueraded.
    Bridge,
    /// A veth pair for each pod, routed and masqueraded.
    Ptp,
    /// Pods on the L2 segment of one of the node's interfaces.
    Macvlan,
    /// The network of a flannel daemon, from its subnet file.
    Flannel,
}

/// A subnet that no well-known cluster or runtime uses by default.
pub const DEFAULT_SUBNET: &str = "10.66.0.0/16";

impl NetworkSpec {
    /// The conflist.
    pub fn to_list(&self) -> Result<Vec<u8>> {
        let chained = [
            json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
            json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }),
            json!({ "type": "firewall" }),
        ];
        let main = match self.kind {
            NetworkKind::Bridge => json!({
                "type": "bridge", "bridge": "podwire0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": self.ipam(false)?,
            }),
            NetworkKind::Ptp => json!({ "type": "ptp", "ipMasq": true, "ipam": self.ipam(true)? }),
            NetworkKind::Macvlan => {
                let master =
                    self.master.as_ref().ok_or_else(|| Error::Network("macvlan needs --master".into()))?;
                json!({ "type": "macvlan", "master": master, "ipam": self.ipam(true)? })
            }
            NetworkKind::Flannel => {
                json!({ "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } })
            }
        };
        if self.kind != NetworkKind::Macvlan && self.master.is_some() {
            return Err(Error::Network("--master is for macvlan only".into()));
        }
        if self.kind == NetworkKind::Flannel && !self.subnets.is_empty() {
            return Err(Error::Network("the flannel daemon assigns the subnet: remove --subnet".into()));
        }
        let mut list = Map::new();
        list.insert("cniVersion".into(), self.version.into());
        if let Some(newer) = self.newer {
            list.insert("cniVersions".into(), json!([self.version, newer]));
        }
        list.insert("name".into(), self.name.clone().into());
        // Macvlan pods are reached directly: the node forwards nothing for them.
        let rest = chained.into_iter().filter(|_| self.kind != NetworkKind::Macvlan);
        list.insert("plugins".into(), std::iter::once(main).chain(rest).collect());
        Ok(podwire_cni_spec::json::pretty(&Value::Object(list)).into_bytes())
    }

    fn ipam(&self, default_route: bool) -> Result<Value> {
        if self.subnets.is_empty() {
            return Err(Error::Network("the network needs --subnet".into()));
        }
        let is_repeated = |family: IpFamily| {
            self.subnets.iter().filter(|subnet| IpFamily::of_net(**subnet) == family).count() > 1
        };
        if IpFamily::ALL.into_iter().any(is_repeated) {
            return Err(Error::Network("--subnet may be given once for IPv4 and once for IPv6".into()));
        }
        if let Some(odd) = self.subnets.iter().find(|subnet| subnet.trunc() != **subnet) {
            return Err(Error::Network(format!(
                "{odd} is an address, not a subnet: did you mean {}?",
                odd.trunc()
            )));
        }
        let ranges: Vec<_> =
            self.subnets.iter().map(|subnet| json!([{ "subnet": subnet.to_string() }])).collect();
        let mut ipam = json!({ "type": "host-local", "ranges": ranges });
        if default_route {
            let default = |subnet: &IpNet| format!("{}/0", IpFamily::of_net(*subnet).unspecified());
            ipam["routes"] = self.subnets.iter().map(|subnet| json!({ "dst": default(subnet) })).collect();
        }
        Ok(ipam)
    }
}

impl NetworkKind {
    /// Whether it needs subnets.
    pub fn has_subnets(self) -> bool {
        self != NetworkKind::Flannel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: NetworkKind, subnets: &[&str]) -> NetworkSpec {
        let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
        let master = (kind == NetworkKind::Macvlan).then(|| "eth0".to_owned());
        NetworkSpec { kind, name: "podwire".into(), subnets, master, version: "1.0.0", newer: Some("1.1.0") }
    }

    #[test]
    fn every_kind_is_a_valid_conflist() {
        for kind in [NetworkKind::Bridge, NetworkKind::Ptp, NetworkKind::Macvlan, NetworkKind::Flannel] {
            let subnets: &[&str] = if kind.has_subnets() { &["10.1.0.0/24", "fd00::/64"] } else { &[] };
            let text = spec(kind, subnets).to_list().unwrap();
            let list = podwire_cni_spec::NetworkList::parse(&text).unwrap();
            assert_eq!(
                (list.name.as_str(), list.version),
                ("podwire", podwire_cni_spec::Version::V1_1_0),
                "{kind:?}"
            );
            assert!(!list.plugins.is_empty());
            // Runtimes from before `cniVersions` see only this.
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["cniVersion"], "1.0.0");
        }
    }

    #[test]
    fn invalid_specs_are_refused() {
        let error = |spec: NetworkSpec| spec.to_list().unwrap_err().to_string();
        assert!(error(spec(NetworkKind::Bridge, &[])).contains("needs --subnet"));
        assert!(error(spec(NetworkKind::Bridge, &["10.1.0.0/24", "10.2.0.0/24"])).contains("once for IPv4"));
        assert!(error(spec(NetworkKind::Ptp, &["10.1.0.7/24"])).contains("did you mean 10.1.0.0/24?"));
        assert!(error(NetworkSpec { master: None, ..spec(NetworkKind::Macvlan, &["10.1.0.0/24"]) })
            .contains("--master"));
        assert!(error(spec(NetworkKind::Flannel, &["10.1.0.0/24"])).contains("remove --subnet"));
    }
}
