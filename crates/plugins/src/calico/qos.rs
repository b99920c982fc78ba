//! Traffic limits that a pod requests by annotations: Calico's `qos.projectcalico.org/*` and
//! `kubernetes.io/*-bandwidth`.

use std::collections::BTreeMap;

use podwire_agent_ipc::pods::StringMap;
use podwire_cni_spec::Error;

use super::annotation::{non_empty, refused};
use super::quantity;

/// A kind of limit.
struct Limit {
    /// Its name after `ingress` or `egress`.
    name: &'static str,
    least: u64,
    most: u64,
    /// The limit that must be set, too.
    requires: Option<&'static str>,
}

const fn limit(name: &'static str, least: u64, most: u64, requires: Option<&'static str>) -> Limit {
    Limit { name, least, most, requires }
}

/// All kinds; a limit comes after the one that it requires.
const LIMITS: [Limit; 7] = [
    limit("Bandwidth", 1000, 1_000_000_000_000_000, None),
    limit("Burst", 1000, 34_359_738_360, Some("Bandwidth")),
    limit("Peakrate", 1010, 1_010_000_000_000_000, Some("Bandwidth")),
    limit("Minburst", 1000, 100_000_000, Some("Peakrate")),
    limit("PacketRate", 1, 10_000, None),
    limit("PacketBurst", 1, 10_000, Some("PacketRate")),
    limit("MaxConnections", 1, 4_294_967_295, None),
];

/// The default of the second limit if only the first is set.
const DEFAULTS: [(&str, &str, u64); 2] =
    [("Bandwidth", "Burst", 4_294_967_296), ("PacketRate", "PacketBurst", 5)];

/// The limits by Calico's names, such as `ingressBandwidth`.
pub(super) fn limits(annotations: &StringMap) -> Result<BTreeMap<String, u64>, Error> {
    let mut limits = BTreeMap::new();
    for direction in ["ingress", "egress"] {
        for limit in &LIMITS {
            let Some((annotation, text)) = find(annotations, direction, limit.name) else { continue };
            let amount = limit.parse(&annotation, text)?;
            let is_missing = |required: &&str| !limits.contains_key(&format!("{direction}{required}"));
            if let Some(missing) = limit.requires.filter(is_missing) {
                let text = format!("{direction}{} requires {direction}{missing}", limit.name);
                return Err(refused(&annotation, &text));
            }
            limits.insert(format!("{direction}{}", limit.name), amount);
        }
        for (with, name, amount) in DEFAULTS {
            if limits.contains_key(&format!("{direction}{with}")) {
                limits.entry(format!("{direction}{name}")).or_insert(amount);
            }
        }
    }
    Ok(limits)
}

/// The annotation of a limit, and its text. Kubernetes' annotation counts if Calico's is absent.
fn find<'a>(annotations: &'a StringMap, direction: &str, limit: &str) -> Option<(String, &'a str)> {
    let calico = format!("qos.projectcalico.org/{direction}{limit}");
    if let Some(text) = non_empty(annotations, &calico) {
        return Some((calico, text));
    }
    let kubernetes = format!("kubernetes.io/{direction}-bandwidth");
    let text = non_empty(annotations, &kubernetes).filter(|_| limit == "Bandwidth")?;
    Some((kubernetes, text))
}

impl Limit {
    fn parse(&self, annotation: &str, text: &str) -> Result<u64, Error> {
        let Limit { least, most, .. } = self;
        match quantity::parse(text) {
            None => Err(refused(annotation, &format!("{text:?} is not an amount such as 10M"))),
            Some(amount) if !(*least..=*most).contains(&amount) => {
                Err(refused(annotation, &format!("{text} is out of range, it must be {least} to {most}")))
            }
            Some(amount) => Ok(amount),
        }
    }
}
