//! flannel's annotations on a Node object.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use crate::go_json;
use crate::netconf::NetConf;
use crate::node::{Backend, LeaseTerm, Node, PodCidrs, Registration, Underlay};

/// The names of the annotations, with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotations {
    prefix: String,
}

type Map = BTreeMap<String, String>;

impl Annotations {
    /// Checks a prefix as flannel does: `fqdn`, `fqdn/` or `fqdn/name`, which gets a trailing hyphen.
    pub fn new(prefix: &str) -> Result<Annotations, String> {
        let (domain, name) = match prefix.split_once('/') {
            Some((_, rest)) if rest.contains('/') => {
                return Err(format!("prefix can contain at most single slash: {prefix:?}"));
            }
            Some((domain, name)) => (domain, name),
            None => (prefix, ""),
        };
        let plain = |text: &str| {
            !text.is_empty() && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'))
        };
        let labels: Vec<&str> = domain.split('.').collect();
        let is_valid = labels.len() >= 2 && labels.into_iter().all(plain) && (name.is_empty() || plain(name));
        let hyphen = if name.is_empty() || name.ends_with('-') { "" } else { "-" };
        if !is_valid {
            return Err(format!("prefix must be in a format: fqdn/[0-9a-z-_]*, and is {prefix:?}"));
        }
        Ok(Annotations { prefix: format!("{domain}/{name}{hyphen}") })
    }

    /// The full name of an annotation.
    pub fn name(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    fn get<'m>(&self, map: &'m Map, of: &str) -> Option<&'m str> {
        map.get(&self.name(of)).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Whether flannel or podwire manages the node.
    pub(super) fn is_managed(&self, map: &Map) -> bool {
        self.get(map, "kube-subnet-manager") == Some("true")
    }

    /// The annotations with this prefix. Others are not kept in memory.
    pub(super) fn own(&self, map: Map) -> Map {
        map.into_iter().filter(|(name, _)| name.starts_with(&self.prefix)).collect()
    }

    /// Parses a node's record.
    pub(super) fn read(
        &self,
        name: &str,
        map: &Map,
        pod_cidrs: PodCidrs,
        conf: &NetConf,
    ) -> Result<Node, String> {
        if !self.is_managed(map) {
            return Err(format!("it has no annotation {}", self.name("kube-subnet-manager")));
        }
        let (v4, v6) = (conf.enable_ipv4, conf.enable_ipv6);
        let underlay = Underlay {
            v4: if v4 { Some(self.address::<Ipv4Addr>(map, "public-ip")?) } else { None },
            v6: if v6 { Some(self.address::<Ipv6Addr>(map, "public-ipv6")?) } else { None },
        };
        let data = |of: &str, enabled: bool| match self.get(map, of) {
            Some(text) if enabled => {
                let value: Value = serde_json::from_str(text)
                    .map_err(|error| format!("annotation {}: {error}: {text:?}", self.name(of)))?;
                Ok::<_, String>(Some(value).filter(|value| !value.is_null()))
            }
            _ => Ok(None),
        };
        let kind = self.get(map, "backend-type").unwrap_or_default().to_string();
        let backend =
            Backend { kind, data: data("backend-data", v4)?, data_v6: data("backend-v6-data", v6)? };
        Ok(Node { name: name.into(), pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent })
    }

    fn address<T: std::str::FromStr>(&self, map: &Map, of: &str) -> Result<T, String>
    where
        T::Err: std::fmt::Display,
    {
        let name = self.name(of);
        let text = self.get(map, of).ok_or_else(|| format!("it has no annotation {name}"))?;
        text.parse().map_err(|error| format!("annotation {name}: {error}: {text:?}"))
    }

    /// The addresses that the administrator has set on the node. Invalid ones are ignored.
    pub(super) fn requested_underlay(&self, map: &Map) -> Underlay {
        Underlay {
            v4: self.get(map, "node-public-ip").and_then(|text| text.parse().ok()),
            v6: self.get(map, "node-public-ipv6").and_then(|text| text.parse().ok()),
        }
    }

    /// The annotations of this node as flannel writes them, given the current ones. A backend without data has `null`.
    pub(super) fn write(&self, registration: &Registration, current: &Map) -> Map {
        let Registration { underlay, backend, .. } = registration;
        let json = |data: &Option<Value>| data.as_ref().map_or("null".into(), go_json::compact);
        let (data, data_v6) = (json(&backend.data), json(&backend.data_v6));
        let kind = backend.kind.as_str();
        let mut map = Map::new();
        let mut set = |of: &str, text: String| map.insert(self.name(of), text);
        set("backend-type", kind.into());
        if let Some(ip) = underlay.v4.filter(|_| kind != "vxlan" || data != "null") {
            set("backend-data", data);
            set("public-ip", self.get(current, "public-ip-overwrite").map_or(ip.to_string(), String::from));
        }
        let has_v6 = match kind {
            "vxlan" | "wireguard" => data_v6 != "null",
            "host-gw" | "extension" => true,
            _ => false,
        };
        if let Some(ip) = underlay.v6.filter(|_| has_v6) {
            set("backend-v6-data", data_v6);
            set(
                "public-ipv6",
                self.get(current, "public-ipv6-overwrite").map_or(ip.to_string(), String::from),
            );
        }
        set("kube-subnet-manager", "true".into());
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Vtep, WireguardPeer};

    fn flannels() -> Annotations {
        Annotations::new("flannel.alpha.coreos.com").unwrap()
    }

    fn map(entries: &[(&str, &str)]) -> Map {
        entries.iter().map(|(of, text)| (flannels().name(of), text.to_string())).collect()
    }

    fn conf(text: &str) -> NetConf {
        NetConf::parse("x", text).unwrap()
    }

    #[test]
    fn prefixes_are_checked_as_in_flannel() {
        let name = |prefix: &str| Annotations::new(prefix).map(|annotations| annotations.name("public-ip"));
        assert_eq!(name("flannel.alpha.coreos.com").unwrap(), "flannel.alpha.coreos.com/public-ip");
        assert_eq!(name("example.com/").unwrap(), "example.com/public-ip");
        assert_eq!(name("example.com/net").unwrap(), "example.com/net-public-ip");
        assert_eq!(name("example.com/net-").unwrap(), "example.com/net-public-ip");
        assert!(name("a.b/c/d").unwrap_err().starts_with("prefix can contain at most single slash"));
        for bad in ["", "flannel", "Example.com", "a..b", "a.b/C", "a.b/c d", ".a"] {
            assert!(name(bad).unwrap_err().starts_with("prefix must be in a format"), "{bad}");
        }
    }

    #[test]
    fn a_vxlan_node_writes_what_flannel_writes() {
        let vtep = Vtep { vni: 1, mac: "12:c6:65:89:b4:e3".into() };
        let underlay = Underlay { v4: "192.0.2.1".parse().ok(), v6: None };
        let backend = Backend::vxlan(Some(vtep), None);
        let registration = Registration { underlay, backend, ..Registration::default() };
        let expected = [
            ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
            ("backend-type", "vxlan"),
            ("kube-subnet-manager", "true"),
            ("public-ip", "192.0.2.1"),
        ];
        assert_eq!(flannels().write(&registration, &Map::new()), map(&expected));
        let current = map(&[("public-ip-overwrite", "203.0.113.9")]);
        assert_eq!(
            flannels().write(&registration, &current)["flannel.alpha.coreos.com/public-ip"],
            "203.0.113.9"
        );
    }

    #[test]
    fn both_families_and_backends_without_data_are_written() {
        let underlay = Underlay { v4: "192.0.2.1".parse().ok(), v6: "2001:db8::1".parse().ok() };
        let write = |backend: Backend| {
            let registration = Registration { underlay, backend, ..Registration::default() };
            flannels().write(&registration, &Map::new())
        };
        let expected = [
            ("backend-data", "null"),
            ("backend-type", "host-gw"),
            ("backend-v6-data", "null"),
            ("kube-subnet-manager", "true"),
            ("public-ip", "192.0.2.1"),
            ("public-ipv6", "2001:db8::1"),
        ];
        assert_eq!(write(Backend::named("host-gw")), map(&expected));
        let ipip = write(Backend::named("ipip"));
        assert!(!ipip.contains_key("flannel.alpha.coreos.com/public-ipv6"), "ipip has only IPv4");
        let peer = WireguardPeer { public_key: "k+/a=".into(), port: 51821 };
        let wireguard = write(Backend::wireguard(None, Some(peer)));
        assert_eq!(
            wireguard["flannel.alpha.coreos.com/backend-v6-data"],
            r#"{"PublicKey":"k+/a=","Port":51821}"#
        );
        assert_eq!(wireguard["flannel.alpha.coreos.com/backend-data"], "null");
    }

    #[test]
    fn written_annotations_are_parsed() {
        let vtep = |last: u8| Some(Vtep { vni: 1, mac: format!("c6:00:00:00:00:{last:02x}") });
        let underlay = Underlay { v4: "192.0.2.1".parse().ok(), v6: "2001:db8::1".parse().ok() };
        let backend = Backend::vxlan(vtep(1), vtep(2));
        let registration = Registration { underlay, backend: backend.clone(), ..Registration::default() };
        let written = flannels().write(&registration, &Map::new());
        let both = conf(r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00::/48"}"#);
        let node = flannels().read("a", &written, PodCidrs::default(), &both).unwrap();
        assert_eq!((node.underlay, node.backend), (underlay, backend));
        let v4 = conf(r#"{"Network": "10.244.0.0/16"}"#);
        let node = flannels().read("a", &written, PodCidrs::default(), &v4).unwrap();
        assert_eq!((node.underlay.v6, node.backend.data_v6), (None, None), "a disabled family is ignored");
    }

    #[test]
    fn invalid_annotations_are_reported() {
        let v4 = conf(r#"{"Network": "10.244.0.0/16"}"#);
        let why = |entries: &[(&str, &str)]| {
            flannels().read("a", &map(entries), PodCidrs::default(), &v4).unwrap_err()
        };
        assert_eq!(why(&[]), "it has no annotation flannel.alpha.coreos.com/kube-subnet-manager");
        let managed = ("kube-subnet-manager", "true");
        assert_eq!(why(&[managed]), "it has no annotation flannel.alpha.coreos.com/public-ip");
        assert!(why(&[managed, ("public-ip", "x")]).contains("public-ip: invalid IPv4 address syntax: \"x\""));
        assert!(
            why(&[managed, ("public-ip", "1.2.3.4"), ("backend-data", "{")]).contains("backend-data: EOF")
        );
    }
}
