//! The networks that can be had by name.

use ipnet::IpNet;
use serde_json::{json, Map, Value};

use crate::{Error, Result};

/// What a network that we write is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Design {
    /// Its kind.
    pub shape: Shape,
    /// Its name.
    pub name: String,
    /// The pods' addresses: one of each family at most.
    pub subnets: Vec<IpNet>,
    /// The interface of the node that pods share, for `macvlan`.
    pub master: Option<String>,
    /// The version that every runtime of the folder understands.
    pub version: &'static str,
    /// A newer version, for runtimes that choose.
    pub newer: Option<&'static str>,
}

/// The kinds of networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Pods on a bridge of the node, masqueraded.
    Bridge,
    /// A cable for each pod, routed and masqueraded.
    Ptp,
    /// Pods on the wire of one of the node's interfaces.
    Macvlan,
    /// What a flannel daemon says in its subnet file.
    Flannel,
}

/// Addresses that no well-known cluster or runtime takes by itself.
pub const DEFAULT_SUBNET: &str = "10.66.0.0/16";

impl Design {
    /// As a config list.
    pub fn to_list(&self) -> Result<Vec<u8>> {
        let chained = [
            json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
            json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }),
            json!({ "type": "firewall" }),
        ];
        let main = match self.shape {
            Shape::Bridge => json!({
                "type": "bridge", "bridge": "podwire0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": self.ipam(false)?,
            }),
            Shape::Ptp => json!({ "type": "ptp", "ipMasq": true, "ipam": self.ipam(true)? }),
            Shape::Macvlan => {
                let master =
                    self.master.as_ref().ok_or_else(|| Error::Network("macvlan needs --master".into()))?;
                json!({ "type": "macvlan", "master": master, "ipam": self.ipam(true)? })
            }
            Shape::Flannel => {
                json!({ "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } })
            }
        };
        if self.shape != Shape::Macvlan && self.master.is_some() {
            return Err(Error::Network("--master is for macvlan only".into()));
        }
        if self.shape == Shape::Flannel && !self.subnets.is_empty() {
            return Err(Error::Network(
                "flannel's daemon says which addresses pods have: no --subnet".into(),
            ));
        }
        let mut list = Map::new();
        list.insert("cniVersion".into(), self.version.into());
        if let Some(newer) = self.newer {
            list.insert("cniVersions".into(), json!([self.version, newer]));
        }
        list.insert("name".into(), self.name.clone().into());
        // Pods on somebody's wire are reached directly: the node forwards nothing for them.
        let rest = chained.into_iter().filter(|_| self.shape != Shape::Macvlan);
        list.insert("plugins".into(), std::iter::once(main).chain(rest).collect());
        Ok(podwire_cni_spec::json::pretty(&Value::Object(list)).into_bytes())
    }

    fn ipam(&self, default_route: bool) -> Result<Value> {
        if self.subnets.is_empty() {
            return Err(Error::Network("the network needs --subnet".into()));
        }
        let both = |v4: bool| self.subnets.iter().filter(|subnet| subnet.addr().is_ipv4() == v4).count() > 1;
        if both(true) || both(false) {
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
            let everywhere = |subnet: &IpNet| if subnet.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            ipam["routes"] = self.subnets.iter().map(|subnet| json!({ "dst": everywhere(subnet) })).collect();
        }
        Ok(ipam)
    }
}

impl Shape {
    /// Whether it needs subnets.
    pub fn has_subnets(self) -> bool {
        self != Shape::Flannel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(shape: Shape, subnets: &[&str]) -> Design {
        let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
        let master = (shape == Shape::Macvlan).then(|| "eth0".to_owned());
        Design { shape, name: "podwire".into(), subnets, master, version: "1.0.0", newer: Some("1.1.0") }
    }

    #[test]
    fn every_shape_is_a_list_that_runtimes_read() {
        for shape in [Shape::Bridge, Shape::Ptp, Shape::Macvlan, Shape::Flannel] {
            let subnets: &[&str] = if shape.has_subnets() { &["10.1.0.0/24", "fd00::/64"] } else { &[] };
            let text = design(shape, subnets).to_list().unwrap();
            let list = podwire_cni_spec::NetworkList::parse(&text).unwrap();
            assert_eq!(
                (list.name.as_str(), list.version),
                ("podwire", podwire_cni_spec::Version::V1_1_0),
                "{shape:?}"
            );
            assert!(!list.plugins.is_empty());
            // Runtimes from before `cniVersions` see only this.
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["cniVersion"], "1.0.0");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let wrong = |design: Design| design.to_list().unwrap_err().to_string();
        assert!(wrong(design(Shape::Bridge, &[])).contains("needs --subnet"));
        assert!(wrong(design(Shape::Bridge, &["10.1.0.0/24", "10.2.0.0/24"])).contains("once for IPv4"));
        assert!(wrong(design(Shape::Ptp, &["10.1.0.7/24"])).contains("did you mean 10.1.0.0/24?"));
        assert!(
            wrong(Design { master: None, ..design(Shape::Macvlan, &["10.1.0.0/24"]) }).contains("--master")
        );
        assert!(wrong(design(Shape::Flannel, &["10.1.0.0/24"])).contains("no --subnet"));
    }
}
