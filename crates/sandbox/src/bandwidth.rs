//! Bandwidth limits of a pod, in Kubernetes' notation: `10M` is ten million bits a second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

/// Limits in bits a second. Ingress is traffic to the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// To the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// Kubernetes' annotations for the limits.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The largest burst that the plugins accept: kubelet limits only the rate.
const BURST: u64 = i32::MAX as u64;
/// The range that kubelet accepts: from 1k to 1P.
const MIN_RATE: u64 = 1000;
const MAX_RATE: u64 = 1_000_000_000_000_000;

impl Bandwidth {
    /// Takes missing limits from the annotations.
    pub fn or_annotated(
        self,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Bandwidth, podwire_cni_spec::Error> {
        let read = |key: &str| {
            let explain = |why| podwire_cni_spec::Error::env(format!("annotation {key}: {why}"));
            annotations.get(key).map(|text| rate(text).map_err(explain)).transpose()
        };
        let (ingress, egress) = (read(INGRESS)?, read(EGRESS)?);
        Ok(Bandwidth { ingress: self.ingress.or(ingress), egress: self.egress.or(egress) })
    }

    /// The capability argument; `None` without limits.
    pub(crate) fn argument(self) -> Option<Value> {
        let limits = [("ingress", self.ingress), ("egress", self.egress)];
        let mut argument = Map::new();
        for (name, rate) in limits.into_iter().filter_map(|(name, rate)| Some((name, rate?))) {
            argument.insert(format!("{name}Rate"), json!(rate));
            argument.insert(format!("{name}Burst"), json!(BURST));
        }
        (!argument.is_empty()).then_some(Value::Object(argument))
    }
}

/// Reads a rate: a number with a unit of Kubernetes, `800k`, `10M`, `1.5G`, `4Mi`.
pub fn rate(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let decimal = ["", "k", "M", "G", "T", "P"].iter().position(|known| *known == unit);
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi"].iter().position(|known| *known == unit);
    let factor = match (decimal, binary) {
        (Some(power), _) => 1000f64.powi(power as i32),
        (_, Some(power)) => 1024f64.powi(power as i32 + 1),
        _ => return Err(format!("{text:?}: unknown unit {unit:?}: k, M, G, T, P, Ki, Mi, Gi, Ti or Pi")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is not a rate such as 10M"))?;
    match (number * factor).round() as u64 {
        rate if (MIN_RATE..=MAX_RATE).contains(&rate) => Ok(rate),
        _ => Err(format!("{text:?} is not between 1k and 1P bits a second")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_kubernetes() {
        for (text, bits) in [
            ("800k", 800_000),
            ("10M", 10_000_000),
            ("1.5G", 1_500_000_000),
            ("4Mi", 4 << 20),
            ("5000", 5000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for bad in ["", "M", "10m", "10MB", "1", "2P", "-1M", "1.2.3M"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn annotations_set_missing_limits() {
        let annotations =
            BTreeMap::from([(INGRESS.to_owned(), "1M".to_owned()), (EGRESS.to_owned(), "2M".to_owned())]);
        let limits = Bandwidth { ingress: Some(7000), egress: None }.or_annotated(&annotations).unwrap();
        assert_eq!(limits, Bandwidth { ingress: Some(7000), egress: Some(2_000_000) });
        let argument = json!({"ingressRate": 7000, "ingressBurst": 2147483647u64, "egressRate": 2000000, "egressBurst": 2147483647u64});
        assert_eq!(limits.argument(), Some(argument));
        assert_eq!(Bandwidth::default().argument(), None);
        let invalid = BTreeMap::from([(EGRESS.to_owned(), "fast".to_owned())]);
        assert!(Bandwidth::default()
            .or_annotated(&invalid)
            .unwrap_err()
            .msg
            .starts_with("annotation kubernetes.io/egress"));
    }
}
