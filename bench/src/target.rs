//! The targets, as numbers. This table is the only place in code that has them.

use serde::Serialize;

use crate::statistics::Row;

/// The quantity that a target compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// The median latency must be at most this multiple of the other's.
    Latency,
    /// Operations per second must be at least this multiple of the other's.
    Rate,
}

/// A target for one scenario: the variant `of` compared with the variant `to`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The scenario's name.
    pub scenario: &'static str,
    verb: &'static str,
    of: &'static str,
    to: &'static str,
    measure: Measure,
    limit: f64,
}

const fn latency(scenario: &'static str, verb: &'static str, pair: [&'static str; 2], limit: f64) -> Target {
    Target { scenario, verb, of: pair[0], to: pair[1], measure: Measure::Latency, limit }
}

const fn rate(scenario: &'static str, verb: &'static str, pair: [&'static str; 2], limit: f64) -> Target {
    Target { scenario, verb, of: pair[0], to: pair[1], measure: Measure::Rate, limit }
}

const TO_PEER: [&str; 2] = ["ours", "peer"];
const FULL_TO_EMPTY: [&str; 2] = ["ours-full", "ours-empty"];

/// Every target.
pub const TARGETS: &[Target] = &[
    latency("version", "VERSION bridge", TO_PEER, 0.20),
    latency("version", "VERSION host-local", TO_PEER, 0.20),
    latency("version", "VERSION portmap", TO_PEER, 0.20),
    latency("host-local-10", "ADD", TO_PEER, 0.25),
    latency("host-local-10", "DEL", TO_PEER, 0.25),
    latency("host-local-10000", "ADD", TO_PEER, 0.02),
    latency("host-local-10000", "DEL", TO_PEER, 0.02),
    latency("bridge", "ADD", TO_PEER, 0.22),
    latency("bridge", "DEL", TO_PEER, 0.15),
    latency("portmap", "ADD", TO_PEER, 0.05),
    latency("portmap", "DEL", TO_PEER, 0.04),
    latency("portmap", "ADD", ["runtime", "peer"], 0.035),
    latency("portmap", "ADD", ["tool", "peer"], 0.07),
    rate("parallel-bridge", "ADD", TO_PEER, 4.5),
    rate("parallel-portmap", "ADD", TO_PEER, 12.0),
    latency("growth-ptp", "ADD", FULL_TO_EMPTY, 1.3),
    latency("growth-ptp", "DEL", FULL_TO_EMPTY, 1.3),
    latency("growth-portmap", "ADD", FULL_TO_EMPTY, 1.3),
    latency("growth-portmap", "DEL", FULL_TO_EMPTY, 1.3),
    latency("growth-bridge", "ADD", ["ours-full", "peer-full"], 0.22),
    latency("floor", "ADD", ["ours", "floor"], 1.5),
    latency("routed", "ADD", ["routed", "peer"], 0.2),
    latency("routed", "ADD", ["routed", "floor"], 1.5),
];

/// Whether a target is met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The target as text.
    pub target: String,
    /// The measured ratio; none if one of the variants was not measured.
    pub value: Option<f64>,
    /// Whether the ratio is within the limit.
    pub met: bool,
}

impl Target {
    /// Compares a scenario's rows with the target.
    pub fn judge(&self, rows: &[Row]) -> Verdict {
        let row = |name: &str| rows.iter().find(|row| row.verb == self.verb && row.variant == name);
        let value = row(self.of).zip(row(self.to)).map(|(of, to)| match self.measure {
            Measure::Latency => of.latency.p50 / to.latency.p50,
            Measure::Rate => of.per_second / to.per_second,
        });
        let value = value.filter(|value| value.is_finite());
        let met = value.is_some_and(|value| match self.measure {
            Measure::Latency => value <= self.limit,
            Measure::Rate => value >= self.limit,
        });
        Verdict { target: self.text(), value, met }
    }

    /// The target as text.
    pub fn text(&self) -> String {
        let Target { verb, of, to, limit, .. } = self;
        match self.measure {
            Measure::Latency => format!("{verb} {of}: p50 ≤ {limit} × {to}'s"),
            Measure::Rate => format!("{verb} {of}: ops/s ≥ {limit} × {to}'s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SCENARIOS;
    use crate::statistics::Distribution;

    #[test]
    fn every_target_names_variants_of_its_scenario() {
        for target in TARGETS {
            let scenario = SCENARIOS.iter().find(|s| s.name == target.scenario).unwrap();
            for name in [target.of, target.to] {
                assert!(scenario.variants.iter().any(|v| v.name == name), "{name} in {}", target.scenario);
            }
        }
        assert!(SCENARIOS.iter().all(|s| TARGETS.iter().any(|t| t.scenario == s.name)));
    }

    #[test]
    fn a_latency_has_an_upper_limit_and_a_rate_a_lower_one() {
        let row = |variant: &str, p50: f64, per_second: f64| Row {
            verb: "ADD".into(),
            variant: variant.into(),
            latency: Distribution { p50, ..Distribution::default() },
            per_second,
        };
        let rows = [row("peer", 100.0, 10.0), row("ours", 20.0, 50.0)];
        assert!(latency("x", "ADD", TO_PEER, 0.2).judge(&rows).met);
        assert!(!latency("x", "ADD", TO_PEER, 0.19).judge(&rows).met);
        assert!(rate("x", "ADD", TO_PEER, 5.0).judge(&rows).met);
        assert!(!rate("x", "ADD", TO_PEER, 5.1).judge(&rows).met);
        let missing = latency("x", "ADD", ["runtime", "peer"], 1.0).judge(&rows);
        assert_eq!((missing.met, missing.value), (false, None));
    }
}
