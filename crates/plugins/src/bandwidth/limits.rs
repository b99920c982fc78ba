//! The limits: keys of the network's config, or the runtime's `bandwidth` capability (Kubernetes' annotations
//! `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`). The config takes precedence.

use ipnet::IpNet;
use podwire_cni_spec::{addr, capability, json, Error};
use podwire_kernel::rt::tc::htb::Htb;
use podwire_kernel::rt::tc::TokenBucket;
use podwire_kernel::shaping;
use serde::Deserialize;
use serde_json::Value;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "ingressRate",
    "egressRate",
    "ingressBurst",
    "egressBurst",
    "unshapedSubnets",
    "shapedSubnets",
    "runtimeConfig.bandwidth",
];

const KEYS: [&str; 6] =
    ["ingressRate", "ingressBurst", "egressRate", "egressBurst", "unshapedSubnets", "shapedSubnets"];

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

    /// The limit for some destinations.
    fn for_some(&self, is_limited_by_default: bool, subnets: &[IpNet]) -> Htb {
        let TokenBucket { rate, burst, .. } = self.bucket();
        Htb::new(
            rate,
            burst,
            is_limited_by_default,
            subnets.iter().map(|subnet| (subnet.network(), subnet.prefix_len())),
        )
    }
}

/// Which packets are limited, by their destination. In the direction into the pod that is the pod's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destinations {
    /// All.
    #[default]
    All,
    /// Those in a subnet (`shapedSubnets`).
    In(Vec<IpNet>),
    /// Those in no subnet (`unshapedSubnets`).
    NotIn(Vec<IpNet>),
}

impl Destinations {
    /// The limit, if it is not for all destinations.
    pub fn limit(&self, limit: Limit) -> Option<Htb> {
        match self {
            Destinations::All => None,
            Destinations::In(subnets) => Some(limit.for_some(false, subnets)),
            Destinations::NotIn(subnets) => Some(limit.for_some(true, subnets)),
        }
    }
}

/// The limits of one pod. The config's terms are from the pod's view: ingress is what it receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// On what the pod receives.
    pub into_pod: Option<Limit>,
    /// On what the pod sends.
    pub out_of_pod: Option<Limit>,
    /// What they apply to.
    pub destinations: Destinations,
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
        let mut limits = Limits {
            into_pod: limit("ingress", wanted.ingress_rate, wanted.ingress_burst)?,
            out_of_pod: limit("egress", wanted.egress_rate, wanted.egress_burst)?,
            destinations: Destinations::All,
        };
        // Go's plugin looks at the subnets only if there is a limit.
        if !limits.is_none() {
            let runtime = || json::get(json::get(config, "runtimeConfig")?, "bandwidth");
            let source = if is_configured { Some(config) } else { runtime() };
            limits.destinations = source.map_or(Ok(Destinations::All), destinations)?;
        }
        Ok(limits)
    }

    /// Whether there is nothing to limit.
    pub fn is_none(&self) -> bool {
        self.into_pod.is_none() && self.out_of_pod.is_none()
    }
}

fn destinations(config: &Value) -> Result<Destinations, Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Conf {
        unshaped_subnets: Option<Vec<String>>,
        shaped_subnets: Option<Vec<String>>,
    }
    let Conf { unshaped_subnets, shaped_subnets } = json::decode(config)?;
    let (unshaped, shaped) = (unshaped_subnets.unwrap_or_default(), shaped_subnets.unwrap_or_default());
    let parse = |texts: &[String]| texts.iter().map(|text| subnet(text)).collect::<Result<Vec<_>, _>>();
    match (unshaped.as_slice(), shaped.as_slice()) {
        ([], []) => Ok(Destinations::All),
        (unshaped, []) => parse(unshaped).map(Destinations::NotIn),
        ([], shaped) => parse(shaped).map(Destinations::In),
        _ => {
            let text =
                "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded";
            Err(Error::invalid_config(text))
        }
    }
}

fn subnet(text: &str) -> Result<IpNet, Error> {
    let bad = |error: Error| {
        let go = format!("bad subnet {text:?} provided, details invalid CIDR address: {text}");
        Error::invalid_config(go).with_hint(error.msg)
    };
    addr::parse_net(text).map(|subnet| subnet.trunc()).map_err(bad)
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
        assert_eq!(limits, Limits { into_pod: Some(Limit { rate: 800, burst: 1600 }), ..Limits::default() });
        let mut both = runtime;
        both["egressRate"] = json!(80);
        both["EgressBurst"] = json!(160);
        let limits = Limits::read(&both).unwrap();
        assert_eq!(limits, Limits { out_of_pod: Some(Limit { rate: 80, burst: 160 }), ..Limits::default() });
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
    fn subnets_restrict_the_limits_of_their_source() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let read = |mut more: Value| {
            for (key, value) in [("egressRate", 800), ("egressBurst", 1600)] {
                more[key] = json!(value);
            }
            Limits::read(&more).unwrap().destinations
        };
        assert_eq!(read(json!({"shapedSubnets": null, "unshapedSubnets": []})), Destinations::All);
        assert_eq!(read(json!({"ShapedSubnets": ["10.1.2.3/8"]})), Destinations::In(nets(&["10.0.0.0/8"])));
        let both = json!({"unshapedSubnets": ["fd00::/8", "0.0.0.0/0"]});
        assert_eq!(read(both), Destinations::NotIn(nets(&["fd00::/8", "0.0.0.0/0"])));
        let runtime = json!({"ingressRate": 800, "ingressBurst": 800, "shapedSubnets": ["10.0.0.0/8"]});
        let limits = Limits::read(&json!({"runtimeConfig": {"bandwidth": runtime}})).unwrap();
        assert_eq!(limits.destinations, Destinations::In(nets(&["10.0.0.0/8"])));
        // Without limits nothing is shaped, and Go's plugin does not look at the subnets.
        assert!(Limits::read(&json!({"shapedSubnets": ["x"]})).unwrap().is_none());
    }

    #[test]
    fn the_burst_that_containerd_sends_fits() {
        let burst = u32::MAX; // bits, whatever the rate
        let limits = Limits::read(&json!({"ingressRate": 1_000_000, "ingressBurst": burst})).unwrap();
        assert_eq!(limits.into_pod.unwrap().bucket().burst, burst / 8);
    }
}
