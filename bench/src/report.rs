//! The report, as tables or as JSON.

use serde::Serialize;

use crate::scenario::Scenario;
use crate::statistics::Row;
use crate::target::Verdict;

/// A scenario's outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The scenario's name.
    pub scenario: String,
    /// What it measures.
    pub about: String,
    /// How many operations run at once.
    pub at_once: usize,
    /// Pods on a full node.
    pub pods: u32,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Which targets are met.
    pub verdicts: Vec<Verdict>,
    /// Variants whose programs are not installed.
    pub left_out: Vec<String>,
    /// Failed operations, failed checks, and leftovers.
    pub faults: Vec<String>,
}

impl Outcome {
    /// The outcome as a table, followed by a line for each target.
    pub fn table(&self, scenario: &Scenario) -> String {
        let first = scenario.variants[0].name;
        let wide = self.rows.iter().map(|row| row.verb.len()).max().unwrap_or(4).max(4);
        let mut text = format!("\n{}: {}\n", self.scenario, self.about);
        text += &format!(
            "  {:wide$}  {:10}  {:>5}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8}  p50/{first}\n",
            "verb", "variant", "n", "p50 ms", "p90 ms", "p99 ms", "max ms", "ops/s",
        );
        for row in &self.rows {
            let (d, ms) = (&row.latency, |micros: f64| format!("{:.3}", micros / 1e3));
            let base = self.rows.iter().find(|other| other.verb == row.verb && other.variant == first);
            let ratio = base.map_or("-".into(), |base| format!("{:.3}", d.p50 / base.latency.p50));
            text += &format!(
                "  {:wide$}  {:10}  {:>5}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8.1}  {ratio}\n",
                row.verb,
                row.variant,
                d.count,
                ms(d.p50),
                ms(d.p90),
                ms(d.p99),
                ms(d.max),
                row.per_second,
            );
        }
        for verdict in &self.verdicts {
            let word = if verdict.met { "PASS" } else { "MISS" };
            let value = verdict.value.map_or("not measured".into(), |value| format!("{value:.3}"));
            text += &format!("  {word}  {}: {value}\n", verdict.target);
        }
        for missing in &self.left_out {
            text += &format!("  left out: {missing}\n");
        }
        for fault in &self.faults {
            text += &format!("  FAULT {fault}\n");
        }
        text
    }
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program that wrote this, with its version.
    pub tool: &'static str,
    /// The machine's kernel.
    pub kernel: String,
    /// The number of its CPUs.
    pub cpus: usize,
    /// /proc/loadavg before and after the run.
    pub load: [String; 2],
    /// Whether plugins ran under real-time scheduling.
    pub realtime: bool,
    /// Whether this was a smoke test with few operations.
    pub quick: bool,
    /// The scenarios.
    pub outcomes: Vec<Outcome>,
}

/// The first line of a file under /proc, or nothing.
pub fn proc_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}
