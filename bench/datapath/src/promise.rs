//! The promises about the path of a packet.

use outcome::Targets;

use crate::case::{subject, Measure, Network, Path};
use crate::report::Report;

/// A promise: a ratio to the kernel alone.
struct Promise {
    measure: Measure,
    network: Network,
    policies: usize,
    path: Path,
    at_most: Limit,
}

/// The largest ratio.
enum Limit {
    /// This one.
    Ratio(f64),
    /// This multiple of the ratio of another network on the same path.
    Of(f64, Network, usize),
}

use Limit::{Of, Ratio};
use Measure::{Connection, RoundTrip};
use Network::{Calico, Flannel, Go, Ours, Ptp};
use Path::SameNode;

/// All promises. The limit without policies is the peer's ratio in the same run; the peer has no policies.
const PROMISES: &[Promise] = &[
    promise(RoundTrip, Ours, 0, Of(1.0, Go, 0)),
    promise(RoundTrip, Flannel, 0, Of(1.0, Go, 0)),
    promise(RoundTrip, Ptp, 0, Of(1.0, Go, 0)),
    promise(RoundTrip, Calico, 0, Of(1.0, Go, 0)),
    promise(RoundTrip, Flannel, 1, Ratio(1.52)),
    promise(RoundTrip, Ptp, 1, Ratio(1.38)),
    promise(RoundTrip, Calico, 1, Ratio(1.38)),
    promise(RoundTrip, Flannel, 1000, Of(1.01, Flannel, 1)),
    promise(RoundTrip, Ptp, 1000, Of(1.01, Ptp, 1)),
    promise(RoundTrip, Calico, 1000, Of(1.01, Calico, 1)),
    promise(Connection, Ours, 0, Of(1.0, Go, 0)),
];

const fn promise(measure: Measure, network: Network, policies: usize, at_most: Limit) -> Promise {
    Promise { measure, network, policies, path: SameNode, at_most }
}

/// Reports which promises are met. A promise that was not measured is missed.
pub fn check(report: &Report) -> Targets {
    let mut targets = Targets::default();
    println!();
    for promise in PROMISES {
        let Promise { measure, network, policies, path, at_most } = promise;
        let ratio_of = |network, policies| {
            let found = report.find(network, policies, *path);
            found.map_or(f64::NAN, |one| report.ratio(one, *measure))
        };
        let (limit, text) = match *at_most {
            Ratio(limit) => (limit, format!("{limit}")),
            Of(factor, other, its_policies) => {
                let limit = factor * ratio_of(other, its_policies);
                (limit, format!("{factor} × {}, {limit:.2}", subject(other, its_policies)))
            }
        };
        let ratio = ratio_of(*network, *policies);
        let name = format!("{}, {}: {}", subject(*network, *policies), path.name(), measure.name());
        let measured = if ratio.is_nan() { "not measured".into() } else { format!("{ratio:.2}") };
        targets.report(ratio <= limit, &format!("{name} ≤ {text}: {measured}"));
    }
    targets
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Arguments;

    #[test]
    fn a_run_without_options_measures_what_is_promised() {
        let measured = Arguments::parse_from(["podwire-bench-datapath"]).policies;
        for promise in PROMISES {
            assert!(measured.contains(&promise.policies), "{} policies", promise.policies);
        }
    }
}
