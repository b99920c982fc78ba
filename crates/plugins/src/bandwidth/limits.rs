//! The limits: keys of the network's config, or the runtime's `bandwidth` capability (Kubernetes' annotations
//! `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`). The config takes precedence.

use podwire_cni_spec::{capability, json, Error};
use podwire_kernel::rt::tc::TokenBucket;
use podwire_kernel::shaping;
use serde_json::Value;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] =
    &["ingressRate", "egressRate", "ingressBurst", "egressBurst", "runtimeConfig.bandwidth"];

const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// A limit: `rate` bits a second, and `burst` bits at once after an idle period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits a second.
    pub rate: u64,
    /// Bits.
    pub burst: u64,
}

impl Limit {
    /// The token bucket that enforces it.
    pub fn bucket(&self) -> TokenBucket {
        shaping::bucket(self.rate, self.burst)
    }
}

/// The limits of one pod. The config's terms are from the pod's view: ingress is what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// On what the pod receives.
    pub into_pod: Option<Limit>,
    /// On what the pod sends.
    pub out_of_pod: Option<Limit>,
}

impl Limits {
    /// Reads and checks the limits of a plugin's config.
    pub fn read(config: &Value) -> Result<Limits, Error> {
        let is_configured = KEYS.iter().any(|key| json::get(config, key).is_some());
        let wanted: capability::Bandwidth = if is_configured {
            json::decode(config)?
        } else {
            capability::bandwidth(config)?.unwrap_or_default()
        };
        Ok(Limits {
            into_pod: limit("ingress", wanted.ingress_rate, wanted.ingress_burst)?,
            out_of_pod: limit("egress", wanted.egress_rate, wanted.egress_burst)?,
        })
    }

    /// Whether there is nothing to limit.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }
}

fn limit(direction: &str, rate: u64, burst: u64) -> Result<Option<Limit>, Error> {
    let wrong = |text: String| Err(Error::invalid_config(text));
    let refuse = |text: &str, hint: String| Err(Error::invalid_config(text).with_hint(hint));
    match (rate, burst) {
        (0, 0) => Ok(None),
        (_, 0) => refuse(
            "if rate is set, burst must also be set",
            format!("{direction}Rate is {rate} but {direction}Burst is not set"),
        ),
        (0, _) => refuse(
            "if burst is set, rate must also be set",
            format!("{direction}Burst is {burst} but {direction}Rate is not set"),
        ),
        // The kernel counts in bytes.
        (..8, _) => wrong(format!("{direction}Rate is {rate} bits a second: at least 8 are needed")),
        (_, ..8) => wrong(format!("{direction}Burst is {burst} bits: at least 8 are needed")),
        _ if burst / 8 >= u64::from(u32::MAX) => {
            refuse("burst cannot be more than 4GB", format!("{direction}Burst is {burst} bits"))
        }
        _ => Ok(Some(Limit { rate, burst })),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_config_overrides_the_runtime() {
        let runtime = json!({"runtimeConfig": {"bandwidth": {"IngressRate": 800, "IngressBurst": 1600}}});
        let limits = Limits::read(&runtime).unwrap();
        assert_eq!(limits, Limits { into_pod: Some(Limit { rate: 800, burst: 1600 }), out_of_pod: None });
        let mut both = runtime;
        both["egressRate"] = json!(80);
        both["EgressBurst"] = json!(160);
        let limits = Limits::read(&both).unwrap();
        assert_eq!(limits, Limits { into_pod: None, out_of_pod: Some(Limit { rate: 80, burst: 160 }) });
        assert!(Limits::read(&json!({"ingressRate": null})).unwrap().is_none());
    }

    #[test]
    fn an_incomplete_limit_is_refused_by_its_keys() {
        let error = |v: Value| Limits::read(&v).unwrap_err().msg;
        let hint = |v: Value| Limits::read(&v).unwrap_err().hint;
        assert_eq!(hint(json!({"egressRate": 800})), "egressRate is 800 but egressBurst is not set");
        assert_eq!(hint(json!({"ingressBurst": 800})), "ingressBurst is 800 but ingressRate is not set");
        assert!(error(json!({"ingressRate": 7, "ingressBurst": 800})).contains("ingressRate is 7"));
        let burst = u64::from(u32::MAX) * 8;
        let text = hint(json!({"ingressRate": 8, "ingressBurst": burst}));
        assert!(text.starts_with("ingressBurst is "), "{text}");
        assert!(error(json!({"ingressRate": -1, "ingressBurst": 1})).starts_with("ingressRate: "));
    }

    #[test]
    fn the_burst_that_containerd_sends_fits() {
        let burst = u32::MAX; // bits, whatever the rate
        let limits = Limits::read(&json!({"ingressRate": 1_000_000, "ingressBurst": burst})).unwrap();
        assert_eq!(limits.into_pod.unwrap().bucket().burst, burst / 8);
    }
}
