//! The promises about the path of a packet.

use outcome::Targets;

use crate::case::{subject, Measure, Network, Path, Setup};
use crate::report::Report;

/// A promise: a ratio to the kernel alone.
struct Promise {
    measure: Measure,
    network: Network,
    setup: Setup,
    path: Path,
    limit: Limit,
}

/// What the ratio may be.
enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// At most this multiple of the ratio of another network with another setup on the same path.
    Of(f64, Network, Setup),
}

use Limit::{AtLeast, AtMost, Of};
use Measure::{Connection, Cpu, RoundTrip, Streams};
use Network::{Calico, Flannel, Go, Ours, Ptp};
use Path::{Direct, SameNode, Vxlan};

const NONE: Setup = Setup::NONE;
const ONE: Setup = Setup::policies(1);
const MANY: Setup = Setup::policies(1000);
const FAST: Setup = Setup::FAST;

/// All promises. Without policies the limit is the peer's ratio in the same run; the peer has no policies.
const PROMISES: &[Promise] = &[
    promise(RoundTrip, Ours, NONE, SameNode, Of(1.0, Go, NONE)),
    promise(RoundTrip, Flannel, NONE, SameNode, Of(1.0, Go, NONE)),
    promise(RoundTrip, Ptp, NONE, SameNode, Of(1.0, Go, NONE)),
    promise(RoundTrip, Calico, NONE, SameNode, Of(1.0, Go, NONE)),
    promise(RoundTrip, Flannel, ONE, SameNode, AtMost(1.52)),
    promise(RoundTrip, Ptp, ONE, SameNode, AtMost(1.38)),
    promise(RoundTrip, Calico, ONE, SameNode, AtMost(1.38)),
    promise(RoundTrip, Flannel, MANY, SameNode, Of(1.01, Flannel, ONE)),
    promise(RoundTrip, Ptp, MANY, SameNode, Of(1.01, Ptp, ONE)),
    promise(RoundTrip, Calico, MANY, SameNode, Of(1.01, Calico, ONE)),
    promise(Connection, Ours, NONE, SameNode, Of(1.0, Go, NONE)),
    promise(RoundTrip, Flannel, FAST, SameNode, AtMost(1.06)),
    promise(RoundTrip, Ptp, FAST, SameNode, AtMost(1.06)),
    promise(RoundTrip, Calico, FAST, SameNode, AtMost(1.06)),
    promise(RoundTrip, Ptp, FAST, Direct, AtMost(1.1)),
    promise(RoundTrip, Flannel, FAST, Vxlan, AtMost(1.1)),
    promise(RoundTrip, Calico, FAST, Vxlan, AtMost(1.1)),
    promise(Streams, Flannel, FAST, SameNode, AtLeast(0.97)),
    promise(Streams, Ptp, FAST, SameNode, AtLeast(0.97)),
    promise(Streams, Calico, FAST, SameNode, AtLeast(0.97)),
    promise(Cpu, Flannel, FAST, SameNode, Of(1.0, Go, NONE)),
    promise(Cpu, Ptp, FAST, SameNode, Of(1.0, Go, NONE)),
    promise(Cpu, Calico, FAST, SameNode, Of(1.0, Go, NONE)),
    promise(Connection, Flannel, FAST, SameNode, Of(1.0, Go, NONE)),
    promise(Connection, Ptp, FAST, SameNode, Of(1.0, Go, NONE)),
    promise(Connection, Calico, FAST, SameNode, Of(1.0, Go, NONE)),
];

const fn promise(measure: Measure, network: Network, setup: Setup, path: Path, limit: Limit) -> Promise {
    Promise { measure, network, setup, path, limit }
}

/// Reports which promises are met. A promise that was not measured is missed.
pub fn check(report: &Report) -> Targets {
    let mut targets = Targets::default();
    println!();
    for Promise { measure, network, setup, path, limit } in PROMISES {
        let ratio_of = |network, setup| {
            let found = report.find(network, setup, *path);
            found.map_or(f64::NAN, |one| report.ratio(one, *measure))
        };
        let ratio = ratio_of(*network, *setup);
        let (is_met, text) = match *limit {
            AtMost(limit) => (ratio <= limit, format!("≤ {limit}")),
            AtLeast(limit) => (ratio >= limit, format!("≥ {limit}")),
            Of(factor, other, its_setup) => {
                let limit = factor * ratio_of(other, its_setup);
                (ratio <= limit, format!("≤ {factor} × {}, {limit:.2}", subject(other, its_setup)))
            }
        };
        let name = format!("{}, {}: {}", subject(*network, *setup), path.name(), measure.name());
        let measured = if ratio.is_nan() { "not measured".into() } else { format!("{ratio:.2}") };
        targets.report(is_met, &format!("{name} {text}: {measured}"));
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
        let measured = Arguments::parse_from(["podwire-bench-datapath"]).setups();
        for promise in PROMISES {
            assert!(measured.contains(&promise.setup), "{:?}", promise.setup);
        }
    }
}
