//! What a pod asks for by its annotations, and what its namespace asks for on its behalf. StringMap are read and checked before anything is changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_agent_ipc::pods::{IpNat, PodMetadata, StringMap};
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{json, Args, Error};
use podwire_kernel::Mac;
use serde_json::Value;

use super::quantity;
use crate::bandwidth::{Limit, Limits};

/// What annotations about a pod's network begin with.
const GROUP: &str = "cni.projectcalico.org/";

/// What a network's config lets its pods ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    /// The IPAM plugin's type. Addresses and pools can be asked for of Calico's only.
    pub(super) ipam: String,
    /// `feature_control.ip_addrs_no_ipam`.
    pub(super) without_ipam: bool,
    /// `feature_control.floating_ips`.
    pub(super) floating: bool,
}

impl Rights {
    fn has_calicos_ipam(&self) -> bool {
        self.ipam == "calico-ipam"
    }
}

/// The wishes, as far as they may be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    /// These addresses, of the pools.
    pub(super) addresses: Vec<IpAddr>,
    /// These addresses, whoever else may have them.
    pub(super) unmanaged: Vec<IpAddr>,
    /// Keys of the config's section `ipam` that are to be others.
    ipam: Vec<(&'static str, Value)>,
    /// The hardware address of the pod's end.
    pub(super) mac: Option<Mac>,
    /// Addresses outside that are to lead to the pod.
    floating: Vec<IpAddr>,
    /// Networks that it wants to send as.
    pub(super) prefixes: Vec<IpNet>,
    /// How much it may send and receive at most, by Calico's names.
    pub(super) limits: BTreeMap<String, u64>,
}

impl Wishes {
    /// Reads what is known of a pod.
    pub(super) fn read(pod: &PodMetadata, rights: &Rights) -> Result<Wishes, Error> {
        let own = |name: &str| said(&pod.annotations, &format!("{GROUP}{name}"));
        let shared =
            |name: &str| own(name).or_else(|| said(&pod.namespace_annotations, &format!("{GROUP}{name}")));
        let mut wishes = Wishes::default();
        match (own("ipAddrs"), own("ipAddrsNoIpam")) {
            (None, None) => {}
            (Some(_), Some(_)) => {
                let text =
                    "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time";
                return Err(refused("ipAddrs", text));
            }
            (Some(text), None) => {
                needs_calicos_ipam("ipAddrs", rights)?;
                wishes.addresses = addresses("ipAddrs", text)?;
            }
            (None, Some(text)) => {
                needs_calicos_ipam("ipAddrsNoIpam", rights)?;
                allowed("ipAddrsNoIpam", "ip_addrs_no_ipam", rights.without_ipam)?;
                wishes.unmanaged = addresses("ipAddrsNoIpam", text)?;
            }
        }
        if rights.has_calicos_ipam() {
            for (name, key) in [("ipv4pools", "ipv4_pools"), ("ipv6pools", "ipv6_pools")] {
                if let Some(text) = shared(name) {
                    wishes.ipam.push((key, list(name, text)?.into()));
                }
            }
            if let Some(text) = shared("ipFamilies") {
                wishes.ipam.extend(families(text)?);
            }
        }
        wishes.mac = own("hwAddr").map(mac).transpose()?;
        if let Some(text) = own("floatingIPs") {
            allowed("floatingIPs", "floating_ips", rights.floating)?;
            wishes.floating = each_address("floatingIPs", text)?;
        }
        if let Some(text) = own("allowedSourcePrefixes") {
            wishes.prefixes = prefixes(text)?;
        }
        wishes.limits = limits(&pod.annotations)?;
        Ok(wishes)
    }

    /// How fast it may send and receive.
    pub(super) fn bandwidth(&self) -> Limits {
        let amount = |way: &str, limit: &str| self.limits.get(&format!("{way}{limit}")).copied();
        let limit = |way: &str| {
            let (rate, burst) = (amount(way, "Bandwidth")?, amount(way, "Burst")?);
            Some(Limit { rate, burst })
        };
        Limits { into_pod: limit("ingress"), out_of_pod: limit("egress") }
    }

    /// The request to the IPAM plugin.
    pub(super) fn applied<'p>(&self, req: &Request<'p>) -> Result<Request<'p>> {
        let mut asked = req.clone();
        if let Some(ipam) = section(Arc::make_mut(&mut asked.config)) {
            for (key, value) in &self.ipam {
                json::set(ipam, key, value.clone());
            }
        }
        if !self.addresses.is_empty() {
            let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
            let others = req.args.iter().filter(|(key, _)| *key != "IP");
            let pairs = others.map(|(key, value)| (key.to_owned(), value.to_owned()));
            asked.args = Args::from_pairs(pairs.chain([("IP".to_owned(), addresses.join(","))]))?;
        }
        Ok(asked)
    }

    /// Which address inside each address outside leads to.
    pub(super) fn floating(&self, inside: &[IpAddr]) -> Result<Vec<IpNat>, Error> {
        let target = |outside: &IpAddr| {
            let same = |ip: &&IpAddr| ip.is_ipv4() == outside.is_ipv4();
            inside.iter().find(same).map(|inside| IpNat { internal: *inside, external: *outside }).ok_or_else(
                || refused("floatingIPs", &format!("the pod has no address of the family of {outside}")),
            )
        };
        self.floating.iter().map(target).collect()
    }

    /// An error of the IPAM plugin, with the annotation that led to it.
    pub(super) fn explain(&self, error: podwire_cni_plugin::Error) -> podwire_cni_plugin::Error {
        let asked = match (self.addresses.is_empty(), self.ipam.is_empty()) {
            (false, _) => "ipAddrs",
            (true, false) => "ipv4pools, ipv6pools or ipFamilies",
            (true, true) => return error,
        };
        let mut told = error.to_cni();
        told.msg = format!("error getting IP from IPAM: {} (annotation {GROUP}{asked})", told.msg);
        told.into()
    }
}

/// The section `ipam` of a config.
fn section(config: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    let config = config.as_object_mut()?;
    let key = config.keys().find(|key| key.eq_ignore_ascii_case("ipam"))?.clone();
    config.get_mut(&key)?.as_object_mut()
}

/// An annotation that says something.
fn said<'a>(annotations: &'a StringMap, name: &str) -> Option<&'a str> {
    annotations.get(name).map(String::as_str).filter(|text| !text.is_empty())
}

/// Why a pod cannot have what it asks for.
fn refused(annotation: &str, why: &str) -> Error {
    let name = match annotation.contains('/') {
        true => annotation.to_owned(),
        false => format!("{GROUP}{annotation}"),
    };
    Error::invalid_config(format!("{why} (annotation {name})"))
        .with_details("correct the annotation of the pod or of its namespace, or the network's config; the pod is connected when it makes sense")
}

fn needs_calicos_ipam(annotation: &str, rights: &Rights) -> Result<(), Error> {
    match rights.has_calicos_ipam() {
        true => Ok(()),
        false => {
            let why = format!("{annotation} is not compatible with configured IPAM: {}", rights.ipam);
            Err(refused(annotation, &why))
        }
    }
}

fn allowed(annotation: &str, feature: &str, is_on: bool) -> Result<(), Error> {
    match is_on {
        true => Ok(()),
        false => Err(refused(annotation, &format!("requested feature is not enabled: {feature}"))),
    }
}

/// A list of texts in JSON.
fn list(annotation: &str, text: &str) -> Result<Vec<String>, Error> {
    serde_json::from_str(text)
        .map_err(|error| refused(annotation, &format!("failed to parse '{text}' as JSON: {error}")))
}

fn each_address(annotation: &str, text: &str) -> Result<Vec<IpAddr>, Error> {
    let address =
        |ip: &String| ip.parse().map_err(|_| refused(annotation, &format!("invalid IP format: {ip}")));
    list(annotation, text)?.iter().map(address).collect()
}

/// One address of each family at most, and at least one.
fn addresses(annotation: &str, text: &str) -> Result<Vec<IpAddr>, Error> {
    let all = each_address(annotation, text)?;
    if all.is_empty() {
        return Err(refused(annotation, "it is specified but empty"));
    }
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        if all.iter().filter(|ip| ip.is_ipv4() == v4).count() > 1 {
            return Err(refused(annotation, &format!("cannot have more than one {family} address")));
        }
    }
    Ok(all)
}

/// Calico's config has these as texts.
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
        Ok(_) => Err(refused("hwAddr", &format!("{text} cannot be a device's: it is zero, or a group's"))),
        Err(_) => {
            Err(refused("hwAddr", &format!("failed to parse MAC {text:?}, write it like 1c:0c:0a:c0:ff:ee")))
        }
    }
}

fn prefixes(text: &str) -> Result<Vec<IpNet>, Error> {
    let name = "allowedSourcePrefixes";
    let prefix = |text: &String| {
        let wrong = || refused(name, &format!("failed to parse '{text}' as a CIDR"));
        text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| wrong())
    };
    list(name, text)?.iter().map(prefix).collect()
}

/// A limit: what it is called after `ingress` or `egress`, its bounds, and what it makes no sense without.
const LIMITS: [(&str, u64, u64, Option<&str>); 7] = [
    ("Bandwidth", 1000, 1_000_000_000_000_000, None),
    ("Burst", 1000, 34_359_738_360, Some("Bandwidth")),
    ("Peakrate", 1010, 1_010_000_000_000_000, Some("Bandwidth")),
    ("Minburst", 1000, 100_000_000, Some("Peakrate")),
    ("PacketRate", 1, 10_000, None),
    ("PacketBurst", 1, 10_000, Some("PacketRate")),
    ("MaxConnections", 1, 4_294_967_295, None),
];

/// What a limit is if only the one that it belongs to is said.
const DEFAULTS: [(&str, &str, u64); 2] =
    [("Bandwidth", "Burst", 4_294_967_296), ("PacketRate", "PacketBurst", 5)];

fn limits(annotations: &StringMap) -> Result<BTreeMap<String, u64>, Error> {
    let mut limits = BTreeMap::new();
    for way in ["ingress", "egress"] {
        for (limit, least, most, needs) in LIMITS {
            // Kubernetes' own annotation counts if Calico's is not there.
            let theirs = format!("kubernetes.io/{way}-bandwidth");
            let ours = format!("qos.projectcalico.org/{way}{limit}");
            let found = said(annotations, &ours).map(|text| (ours.as_str(), text));
            let found = found.or_else(|| {
                said(annotations, &theirs)
                    .filter(|_| limit == "Bandwidth")
                    .map(|text| (theirs.as_str(), text))
            });
            let Some((name, text)) = found else { continue };
            let amount = quantity::parse(text)
                .ok_or_else(|| refused(name, &format!("{text:?} is no amount such as 10M")))?;
            if !(least..=most).contains(&amount) {
                return Err(refused(name, &format!("{text} is unreasonable, it must be {least} to {most}")));
            }
            if let Some(missing) = needs.filter(|needs| !limits.contains_key(&format!("{way}{needs}"))) {
                return Err(refused(name, &format!("{way}{limit} makes no sense without {way}{missing}")));
            }
            limits.insert(format!("{way}{limit}"), amount);
        }
        for (with, limit, amount) in DEFAULTS {
            if limits.contains_key(&format!("{way}{with}")) {
                limits.entry(format!("{way}{limit}")).or_insert(amount);
            }
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn everything() -> Rights {
        Rights { ipam: "calico-ipam".into(), without_ipam: true, floating: true }
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Wishes, Error> {
        Wishes::read(&PodMetadata { annotations: texts(pairs), ..PodMetadata::default() }, &everything())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_pod_that_asks_for_nothing_wishes_nothing() {
        assert_eq!(read(&[]).unwrap(), Wishes::default());
        assert_eq!(read(&[("cni.projectcalico.org/ipAddrs", ""), ("app", "x")]).unwrap(), Wishes::default());
    }

    #[test]
    fn every_annotation_is_read_in_its_documented_form() {
        let wishes = read(&[
            ("cni.projectcalico.org/ipAddrs", r#"["10.0.0.1", "2001:db8::1"]"#),
            ("cni.projectcalico.org/hwAddr", "1c:0c:0a:c0:ff:ee"),
            ("cni.projectcalico.org/floatingIPs", r#"["192.0.2.7"]"#),
            ("cni.projectcalico.org/allowedSourcePrefixes", r#"["10.8.1.7/24"]"#),
            ("kubernetes.io/ingress-bandwidth", "10M"),
            ("qos.projectcalico.org/egressPacketRate", "100"),
        ])
        .unwrap();
        assert_eq!(wishes.addresses, [ip("10.0.0.1"), ip("2001:db8::1")]);
        assert_eq!(wishes.mac.unwrap().to_string(), "1c:0c:0a:c0:ff:ee");
        assert_eq!(
            wishes.floating(&[ip("10.0.0.1")]).unwrap(),
            [IpNat { internal: ip("10.0.0.1"), external: ip("192.0.2.7") }]
        );
        assert_eq!(wishes.prefixes, ["10.8.1.0/24".parse().unwrap()]);
        let limits: Vec<_> = wishes.limits.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
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
        assert_eq!(wishes.bandwidth(), Limits { into_pod: Some(fast), out_of_pod: None });
        let error = wishes.floating(&[ip("2001:db8::1")]).unwrap_err();
        assert!(error.msg.contains("floatingIPs"), "{error}");
    }

    #[test]
    fn a_pods_own_word_counts_more_than_its_namespaces() {
        let namespace = texts(&[
            ("cni.projectcalico.org/ipv4pools", r#"["shared"]"#),
            ("cni.projectcalico.org/ipv6pools", r#"["shared6"]"#),
            ("cni.projectcalico.org/ipFamilies", r#"["IPv6"]"#),
            ("cni.projectcalico.org/hwAddr", "not for all pods"),
        ]);
        let own = texts(&[("cni.projectcalico.org/ipv4pools", r#"["own", "10.0.0.0/24"]"#)]);
        let pod =
            PodMetadata { annotations: own, namespace_annotations: namespace, ..PodMetadata::default() };
        let wishes = Wishes::read(&pod, &everything()).unwrap();
        let expected = [
            ("ipv4_pools", serde_json::json!(["own", "10.0.0.0/24"])),
            ("ipv6_pools", serde_json::json!(["shared6"])),
            ("assign_ipv4", serde_json::json!("false")),
            ("assign_ipv6", serde_json::json!("true")),
        ];
        assert_eq!(wishes.ipam, expected);
        assert_eq!(wishes.mac, None);
        let rights = Rights { ipam: "host-local".into(), ..everything() };
        assert_eq!(Wishes::read(&pod, &rights).unwrap().ipam, [], "pools are Calico's");
    }

    #[test]
    fn nonsense_and_contradictions_are_refused_by_name() {
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
            ("kubernetes.io/ingress-bandwidth", "fast", "no amount"),
            ("kubernetes.io/egress-bandwidth", "1", "unreasonable"),
            ("qos.projectcalico.org/ingressBurst", "10k", "without ingressBandwidth"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.msg.contains(words) && error.msg.contains(name), "{error}");
        }
        let both = [(group("ipAddrs"), r#"["10.0.0.1"]"#), (group("ipAddrsNoIpam"), r#"["10.0.0.1"]"#)];
        let both: Vec<(&str, &str)> = both.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        assert!(read(&both).unwrap_err().msg.starts_with("can't have both annotations"));
    }

    #[test]
    fn what_the_config_does_not_allow_is_refused() {
        let ask = |name: &str, rights: Rights| {
            let annotations = texts(&[(&format!("cni.projectcalico.org/{name}"), r#"["10.0.0.1"]"#)]);
            Wishes::read(&PodMetadata { annotations, ..PodMetadata::default() }, &rights).unwrap_err().msg
        };
        let calicos = Rights { ipam: "calico-ipam".into(), ..Rights::default() };
        let others = Rights { ipam: "host-local".into(), ..everything() };
        assert!(ask("ipAddrs", others.clone())
            .starts_with("ipAddrs is not compatible with configured IPAM: host-local"));
        assert!(ask("ipAddrsNoIpam", others).starts_with("ipAddrsNoIpam is not compatible"));
        assert!(ask("ipAddrsNoIpam", calicos.clone())
            .starts_with("requested feature is not enabled: ip_addrs_no_ipam"));
        assert!(ask("floatingIPs", calicos).starts_with("requested feature is not enabled: floating_ips"));
    }
}
