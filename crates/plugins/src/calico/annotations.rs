//! The network settings that a pod requests by its annotations, or that its namespace requests for it. ADD reads and
//! checks all of them before it changes anything.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_agent_ipc::pods::{IpNat, PodMetadata};
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{json, Args, Error};
use podwire_ip::IpFamily;
use podwire_kernel::Mac;
use serde_json::Value;

use super::annotation::{non_empty, refused, PREFIX};
use super::qos;
use crate::bandwidth::{Limit, Limits};

/// The annotations that a network's config permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Permissions {
    /// The IPAM plugin's type. Only calico-ipam supports requests for addresses and pools.
    pub(super) ipam: String,
    /// `feature_control.ip_addrs_no_ipam`.
    pub(super) no_ipam: bool,
    /// `feature_control.floating_ips`.
    pub(super) floating_ips: bool,
}

impl Permissions {
    fn has_calico_ipam(&self) -> bool {
        self.ipam == "calico-ipam"
    }
}

/// The settings that a pod requests, parsed and permitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    /// Requested addresses of the pools.
    pub(super) addresses: Vec<IpAddr>,
    /// Requested addresses that no IPAM plugin assigns; other pods may have them, too.
    pub(super) unmanaged: Vec<IpAddr>,
    /// Overrides of keys in the config's section `ipam`.
    ipam: Vec<(&'static str, Value)>,
    /// The hardware address of the pod's end.
    pub(super) mac: Option<Mac>,
    /// External addresses that are translated to the pod's.
    floating_ips: Vec<IpAddr>,
    /// Networks whose addresses the pod may use as source.
    pub(super) source_prefixes: Vec<IpNet>,
    /// Traffic limits by Calico's names.
    pub(super) limits: BTreeMap<String, u64>,
}

impl Annotations {
    /// Reads the annotations of a pod and its namespace.
    pub(super) fn read(pod: &PodMetadata, permissions: &Permissions) -> Result<Annotations, Error> {
        let own = |name: &str| non_empty(&pod.annotations, &format!("{PREFIX}{name}"));
        let of_namespace = |name: &str| non_empty(&pod.namespace_annotations, &format!("{PREFIX}{name}"));
        let own_or_namespace = |name: &str| own(name).or_else(|| of_namespace(name));
        let mut requested = Annotations::default();
        match (own("ipAddrs"), own("ipAddrsNoIpam")) {
            (None, None) => {}
            (Some(_), Some(_)) => {
                let text =
                    "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time";
                return Err(refused("ipAddrs", text));
            }
            (Some(text), None) => {
                require_calico_ipam("ipAddrs", permissions)?;
                requested.addresses = addresses("ipAddrs", text)?;
            }
            (None, Some(text)) => {
                require_calico_ipam("ipAddrsNoIpam", permissions)?;
                require_feature("ipAddrsNoIpam", "ip_addrs_no_ipam", permissions.no_ipam)?;
                requested.unmanaged = addresses("ipAddrsNoIpam", text)?;
            }
        }
        if permissions.has_calico_ipam() {
            for (name, key) in [("ipv4pools", "ipv4_pools"), ("ipv6pools", "ipv6_pools")] {
                if let Some(text) = own_or_namespace(name) {
                    requested.ipam.push((key, list(name, text)?.into()));
                }
            }
            if let Some(text) = own_or_namespace("ipFamilies") {
                requested.ipam.extend(families(text)?);
            }
        }
        requested.mac = own("hwAddr").map(mac).transpose()?;
        if let Some(text) = own("floatingIPs") {
            require_feature("floatingIPs", "floating_ips", permissions.floating_ips)?;
            requested.floating_ips = each_address("floatingIPs", text)?;
        }
        if let Some(text) = own("allowedSourcePrefixes") {
            requested.source_prefixes = source_prefixes(text)?;
        }
        requested.limits = qos::limits(&pod.annotations)?;
        Ok(requested)
    }

    /// The bandwidth limits.
    pub(super) fn bandwidth(&self) -> Limits {
        let amount = |direction: &str, limit: &str| self.limits.get(&format!("{direction}{limit}")).copied();
        let limit = |direction: &str| {
            let (rate, burst) = (amount(direction, "Bandwidth")?, amount(direction, "Burst")?);
            Some(Limit { rate, burst })
        };
        Limits { into_pod: limit("ingress"), out_of_pod: limit("egress"), ..Limits::default() }
    }

    /// The request to the IPAM plugin, with these settings.
    pub(super) fn apply_to<'p>(&self, req: &Request<'p>) -> Result<Request<'p>> {
        let mut changed = req.clone();
        if let Some(ipam) = ipam_section(Arc::make_mut(&mut changed.config)) {
            for (key, value) in &self.ipam {
                json::set(ipam, key, value.clone());
            }
        }
        if !self.addresses.is_empty() {
            let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
            let others = req.args.iter().filter(|(key, _)| *key != "IP");
            let pairs = others.map(|(key, value)| (key.to_owned(), value.to_owned()));
            changed.args = Args::from_pairs(pairs.chain([("IP".to_owned(), addresses.join(","))]))?;
        }
        Ok(changed)
    }

    /// The pod's address that each floating IP is translated to, with the floating IP.
    pub(super) fn floating_ips(&self, of_pod: &[IpAddr]) -> Result<Vec<IpNat>, Error> {
        let target = |external: &IpAddr| {
            let is_same_family = |ip: &&IpAddr| ip.is_ipv4() == external.is_ipv4();
            of_pod
                .iter()
                .find(is_same_family)
                .map(|internal| IpNat { internal: *internal, external: *external })
                .ok_or_else(|| {
                    refused("floatingIPs", &format!("the pod has no address of the family of {external}"))
                })
        };
        self.floating_ips.iter().map(target).collect()
    }

    /// Adds the annotation that caused it to an error of the IPAM plugin.
    pub(super) fn explain(&self, error: podwire_cni_plugin::Error) -> podwire_cni_plugin::Error {
        let annotation = if !self.addresses.is_empty() {
            "ipAddrs"
        } else if !self.ipam.is_empty() {
            "ipv4pools, ipv6pools or ipFamilies"
        } else {
            return error;
        };
        let mut error = error.to_cni();
        error.msg = format!("error getting IP from IPAM: {} (annotation {PREFIX}{annotation})", error.msg);
        error.into()
    }
}

/// The section `ipam` of a config.
fn ipam_section(config: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    let config = config.as_object_mut()?;
    let key = config.keys().find(|key| key.eq_ignore_ascii_case("ipam"))?.clone();
    config.get_mut(&key)?.as_object_mut()
}

fn require_calico_ipam(annotation: &str, permissions: &Permissions) -> Result<(), Error> {
    if permissions.has_calico_ipam() {
        return Ok(());
    }
    let why = format!("{annotation} is not compatible with configured IPAM: {}", permissions.ipam);
    Err(refused(annotation, &why))
}

fn require_feature(annotation: &str, feature: &str, is_enabled: bool) -> Result<(), Error> {
    if is_enabled {
        return Ok(());
    }
    Err(refused(annotation, &format!("requested feature is not enabled: {feature}")))
}

/// A JSON list of strings.
fn list(annotation: &str, text: &str) -> Result<Vec<String>, Error> {
    serde_json::from_str(text)
        .map_err(|error| refused(annotation, &format!("failed to parse '{text}' as JSON: {error}")))
}

fn each_address(annotation: &str, text: &str) -> Result<Vec<IpAddr>, Error> {
    let address =
        |ip: &String| ip.parse().map_err(|_| refused(annotation, &format!("invalid IP format: {ip}")));
    list(annotation, text)?.iter().map(address).collect()
}

/// One or two addresses, at most one of each family.
fn addresses(annotation: &str, text: &str) -> Result<Vec<IpAddr>, Error> {
    let all = each_address(annotation, text)?;
    if all.is_empty() {
        return Err(refused(annotation, "it is specified but empty"));
    }
    for family in IpFamily::ALL {
        if all.iter().filter(|ip| IpFamily::of(**ip) == family).count() > 1 {
            return Err(refused(annotation, &format!("cannot have more than one {family} address")));
        }
    }
    Ok(all)
}

/// The keys for `ipFamilies`. Calico's config has booleans as strings.
fn families(text: &str) -> Result<[(&'static str, Value); 2], Error> {
    let wanted = list("ipFamilies", text)?;
    if wanted.is_empty() || wanted.iter().any(|family| !["IPv4", "IPv6"].contains(&family.as_str())) {
        return Err(refused("ipFamilies", &format!("error parsing ipFamilies: {text}")));
    }
    let is_wanted = |family: &str| Value::from(wanted.iter().any(|one| one == family).to_string());
    Ok([("assign_ipv4", is_wanted("IPv4")), ("assign_ipv6", is_wanted("IPv6"))])
}

fn mac(text: &str) -> Result<Mac, Error> {
    match text.parse::<Mac>() {
        Ok(mac) if mac.is_usable() => Ok(mac),
        Ok(_) => {
            Err(refused("hwAddr", &format!("{text} cannot be a device's address: it is zero, or a group's")))
        }
        Err(_) => {
            Err(refused("hwAddr", &format!("failed to parse MAC {text:?}, write it like 1c:0c:0a:c0:ff:ee")))
        }
    }
}

fn source_prefixes(text: &str) -> Result<Vec<IpNet>, Error> {
    let name = "allowedSourcePrefixes";
    let prefix = |text: &String| {
        let wrong = || refused(name, &format!("failed to parse '{text}' as a CIDR"));
        text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| wrong())
    };
    list(name, text)?.iter().map(prefix).collect()
}

#[cfg(test)]
mod tests {
    use podwire_agent_ipc::pods::StringMap;

    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn everything() -> Permissions {
        Permissions { ipam: "calico-ipam".into(), no_ipam: true, floating_ips: true }
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Annotations, Error> {
        Annotations::read(&PodMetadata { annotations: texts(pairs), ..PodMetadata::default() }, &everything())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_pod_without_annotations_requests_nothing() {
        assert_eq!(read(&[]).unwrap(), Annotations::default());
        assert_eq!(
            read(&[("cni.projectcalico.org/ipAddrs", ""), ("app", "x")]).unwrap(),
            Annotations::default()
        );
    }

    #[test]
    fn every_annotation_is_read_in_its_documented_form() {
        let requested = read(&[
            ("cni.projectcalico.org/ipAddrs", r#"["10.0.0.1", "2001:db8::1"]"#),
            ("cni.projectcalico.org/hwAddr", "1c:0c:0a:c0:ff:ee"),
            ("cni.projectcalico.org/floatingIPs", r#"["192.0.2.7"]"#),
            ("cni.projectcalico.org/allowedSourcePrefixes", r#"["10.8.1.7/24"]"#),
            ("kubernetes.io/ingress-bandwidth", "10M"),
            ("qos.projectcalico.org/egressPacketRate", "100"),
        ])
        .unwrap();
        assert_eq!(requested.addresses, [ip("10.0.0.1"), ip("2001:db8::1")]);
        assert_eq!(requested.mac.unwrap().to_string(), "1c:0c:0a:c0:ff:ee");
        assert_eq!(
            requested.floating_ips(&[ip("10.0.0.1")]).unwrap(),
            [IpNat { internal: ip("10.0.0.1"), external: ip("192.0.2.7") }]
        );
        assert_eq!(requested.source_prefixes, ["10.8.1.0/24".parse().unwrap()]);
        let limits: Vec<_> = requested.limits.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        assert_eq!(
            limits,
            [
                ("egressPacketBurst", 5),
                ("egressPacketRate", 100),
                ("ingressBandwidth", 10_000_000),
                ("ingressBurst", 4_294_967_296)
            ]
        );
        let fast = Limit { rate: 10_000_000, burst: 4_294_967_296 };
        assert_eq!(requested.bandwidth(), Limits { into_pod: Some(fast), ..Limits::default() });
        let error = requested.floating_ips(&[ip("2001:db8::1")]).unwrap_err();
        assert!(error.msg.contains("floatingIPs"), "{error}");
    }

    #[test]
    fn annotations_of_the_pod_override_those_of_its_namespace() {
        let namespace = texts(&[
            ("cni.projectcalico.org/ipv4pools", r#"["shared"]"#),
            ("cni.projectcalico.org/ipv6pools", r#"["shared6"]"#),
            ("cni.projectcalico.org/ipFamilies", r#"["IPv6"]"#),
            ("cni.projectcalico.org/hwAddr", "not for all pods"),
        ]);
        let own = texts(&[("cni.projectcalico.org/ipv4pools", r#"["own", "10.0.0.0/24"]"#)]);
        let pod =
            PodMetadata { annotations: own, namespace_annotations: namespace, ..PodMetadata::default() };
        let requested = Annotations::read(&pod, &everything()).unwrap();
        let expected = [
            ("ipv4_pools", serde_json::json!(["own", "10.0.0.0/24"])),
            ("ipv6_pools", serde_json::json!(["shared6"])),
            ("assign_ipv4", serde_json::json!("false")),
            ("assign_ipv6", serde_json::json!("true")),
        ];
        assert_eq!(requested.ipam, expected);
        assert_eq!(requested.mac, None);
        let permissions = Permissions { ipam: "host-local".into(), ..everything() };
        assert_eq!(Annotations::read(&pod, &permissions).unwrap().ipam, [], "pools are Calico's");
    }

    #[test]
    fn invalid_annotations_are_refused_by_name() {
        let group = |name: &str| format!("cni.projectcalico.org/{name}");
        for (name, text, words) in [
            ("ipAddrs", "10.0.0.1", "failed to parse '10.0.0.1' as JSON"),
            ("ipAddrs", "[]", "specified but empty"),
            ("ipAddrs", r#"["10.0.0.1/24"]"#, "invalid IP format: 10.0.0.1/24"),
            ("ipAddrs", r#"["10.0.0.1", "10.0.0.2"]"#, "cannot have more than one IPv4 address"),
            ("ipAddrsNoIpam", r#"["fd00::1", "fd00::2"]"#, "cannot have more than one IPv6 address"),
            ("ipv4pools", "pods", "failed to parse 'pods' as JSON"),
            ("ipv6pools", r#"{"a": 1}"#, "as JSON"),
            ("ipFamilies", r#"["IPv5"]"#, "error parsing ipFamilies"),
            ("ipFamilies", "[]", "error parsing ipFamilies"),
            ("hwAddr", "1c:0c", "failed to parse MAC"),
            ("hwAddr", "01:00:5e:00:00:01", "a group's"),
            ("floatingIPs", "[1]", "as JSON"),
            ("allowedSourcePrefixes", r#"["10.8.0.0"]"#, "failed to parse '10.8.0.0' as a CIDR"),
        ] {
            let error = read(&[(&group(name), text)]).unwrap_err();
            assert_eq!(error.code, podwire_cni_spec::code::INVALID_CONFIG, "{error}");
            assert!(error.msg.contains(words) && error.msg.contains(&group(name)), "{name} {text}: {error}");
        }
        for (name, text, words) in [
            ("kubernetes.io/ingress-bandwidth", "fast", "not an amount"),
            ("kubernetes.io/egress-bandwidth", "1", "out of range"),
            ("qos.projectcalico.org/ingressBurst", "10k", "requires ingressBandwidth"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.msg.contains(words) && error.msg.contains(name), "{error}");
        }
        let both = [(group("ipAddrs"), r#"["10.0.0.1"]"#), (group("ipAddrsNoIpam"), r#"["10.0.0.1"]"#)];
        let both: Vec<(&str, &str)> = both.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        assert!(read(&both).unwrap_err().msg.starts_with("can't have both annotations"));
    }

    #[test]
    fn annotations_that_the_config_does_not_permit_are_refused() {
        let ask = |name: &str, permissions: Permissions| {
            let annotations = texts(&[(&format!("cni.projectcalico.org/{name}"), r#"["10.0.0.1"]"#)]);
            Annotations::read(&PodMetadata { annotations, ..PodMetadata::default() }, &permissions)
                .unwrap_err()
                .msg
        };
        let calicos = Permissions { ipam: "calico-ipam".into(), ..Permissions::default() };
        let others = Permissions { ipam: "host-local".into(), ..everything() };
        assert!(ask("ipAddrs", others.clone())
            .starts_with("ipAddrs is not compatible with configured IPAM: host-local"));
        assert!(ask("ipAddrsNoIpam", others).starts_with("ipAddrsNoIpam is not compatible"));
        assert!(ask("ipAddrsNoIpam", calicos.clone())
            .starts_with("requested feature is not enabled: ip_addrs_no_ipam"));
        assert!(ask("floatingIPs", calicos).starts_with("requested feature is not enabled: floating_ips"));
    }
}
