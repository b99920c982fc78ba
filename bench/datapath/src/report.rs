//! The measurements of all rounds, and their table.

use std::collections::BTreeMap;

use outcome::Samples;
use serde::Serialize;

use crate::case::{Case, Measure, Network, Path, Setup};
use crate::rules::Passed;

/// The measurements of a case.
#[derive(Debug, Serialize)]
pub struct Measured {
    #[serde(skip)]
    name: String,
    pub network: Network,
    #[serde(flatten)]
    pub setup: Setup,
    pub path: Path,
    /// What an established packet of this path passes in nf_tables, there and back; not measured for the kernel alone.
    pub rules: Option<Passed>,
    /// One sample for each round, in order.
    samples: BTreeMap<Measure, Vec<f64>>,
}

impl Measured {
    pub fn new(case: &Case) -> Measured {
        Measured {
            name: case.name(),
            network: case.network,
            setup: case.setup,
            path: case.path,
            rules: None,
            samples: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, measure: Measure, sample: f64) {
        self.samples.entry(measure).or_default().push(sample);
    }

    fn samples(&self, measure: Measure) -> &[f64] {
        self.samples.get(&measure).map_or(&[], Vec::as_slice)
    }

    /// The median of all rounds; NaN if it was not measured.
    fn median(&self, measure: Measure) -> f64 {
        median(self.samples(measure).iter().copied())
    }
}

/// The measurements of all cases.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Report(pub Vec<Measured>);

impl Report {
    /// The measurements of a path.
    pub fn find(&self, network: Network, setup: Setup, path: Path) -> Option<&Measured> {
        let is_it = |one: &&Measured| (one.network, one.setup, one.path) == (network, setup, path);
        self.0.iter().find(is_it)
    }

    /// The ratio to the kernel alone. NaN if it was not measured.
    pub fn ratio(&self, one: &Measured, measure: Measure) -> f64 {
        self.ratio_to(one.path.raw(), one, measure)
    }

    /// The ratio to a path of the kernel alone: the median of the ratios of all rounds.
    fn ratio_to(&self, path: Path, one: &Measured, measure: Measure) -> f64 {
        let Some(raw) = self.find(Network::Raw, Setup::NONE, path) else { return f64::NAN };
        let rounds = one.samples(measure).iter().zip(raw.samples(measure));
        median(rounds.map(|(one, raw)| one / raw))
    }

    /// Prints a table for each path.
    pub fn print(&self) {
        for path in Path::ALL {
            let rows: Vec<&Measured> =
                self.0.iter().filter(|one| one.path == path && one.network != Network::Raw).collect();
            if !rows.is_empty() {
                self.print_path(path, &rows);
            }
        }
        println!("\n  the kernel alone, relative to a bare veth pair");
        print_columns("");
        for one in self.0.iter().filter(|one| one.network == Network::Raw) {
            let name = if one.path == Path::SameNode { "bare veth pair" } else { one.path.name() };
            let ratio = |measure| number(self.ratio_to(Path::SameNode, one, measure));
            print_row(name, &Measure::ALL.map(ratio), None);
        }
    }

    fn print_path(&self, path: Path, rows: &[&Measured]) {
        println!("\n  {}, relative to {}", path.name(), path.raw_name());
        print_columns("chains   rules");
        if let Some(raw) = self.find(Network::Raw, Setup::NONE, path.raw()) {
            let absolute = |measure: Measure| match raw.median(measure) {
                median if median.is_nan() => "–".into(),
                median => format!("{median:.1$} {0}", measure.unit(), if median < 1.0 { 3 } else { 1 }),
            };
            print_row("kernel alone", &Measure::ALL.map(absolute), None);
        }
        for one in rows {
            let ratios = Measure::ALL.map(|measure| number(self.ratio(one, measure)));
            print_row(&one.name, &ratios, one.rules.as_ref());
        }
    }
}

fn print_columns(last: &str) {
    print!("    {:40}", "");
    Measure::ALL.iter().for_each(|measure| print!("{:>13}", measure.name()));
    println!("   {last}");
}

fn print_row(name: &str, columns: &[String], rules: Option<&Passed>) {
    print!("    {name:40}");
    columns.iter().for_each(|column| print!("{column:>13}"));
    match rules {
        Some(rules) => println!("   {:>6}  {:>6}", rules.chains(), rules.rules()),
        None => println!(),
    }
}

fn number(ratio: f64) -> String {
    if ratio.is_nan() {
        "–".into()
    } else {
        format!("{ratio:.2}")
    }
}

fn median(all: impl Iterator<Item = f64>) -> f64 {
    let mut samples = Samples::default();
    all.for_each(|sample| samples.add(sample));
    samples.median()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(network: Network, micros: [f64; 3]) -> Measured {
        let samples = BTreeMap::from([(Measure::RoundTrip, micros.to_vec())]);
        let (name, rules, path) = (network.name().into(), None, Path::SameNode);
        Measured { name, network, setup: Setup::NONE, path, rules, samples }
    }

    #[test]
    fn a_ratio_compares_samples_of_the_same_round() {
        // The machine was slow in the second round.
        let raw = measured(Network::Raw, [10.0, 50.0, 12.0]);
        let report = Report(vec![raw, measured(Network::Ptp, [12.0, 60.0, 12.0])]);
        let ptp = report.find(Network::Ptp, Setup::NONE, Path::SameNode).unwrap();
        assert!((report.ratio(ptp, Measure::RoundTrip) - 1.2).abs() < 1e-9);
        assert!(report.ratio(ptp, Measure::Stream).is_nan());
        assert!(report.find(Network::Ptp, Setup::policies(1), Path::SameNode).is_none());
    }
}
