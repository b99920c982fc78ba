//! The profile: which base chains and which kernel functions the time of a round trip goes to.

use anyhow::Result;

use crate::case::{Case, Network, Path};
use crate::functions::{self, Functions};
use crate::report::Report;

/// Functions that are shown of a path.
const SHOWN: usize = 8;

/// Prints the profile of each path. The cases of the kernel alone come first.
pub fn print(cases: &[Case], report: &Report, cpu: usize) -> Result<()> {
    println!("\n  profile of a round trip: its base chains, with the number of rules that it evaluates in them, and the");
    println!("  microseconds in kernel functions; in brackets the difference to the kernel alone");
    let mut raw: Vec<(Path, Functions)> = Vec::new();
    for (case, measured) in cases.iter().zip(&report.0) {
        if case.network == Network::Raw {
            raw.extend(functions::sample(&case.ends, cpu)?.map(|functions| (case.path, functions)));
            continue;
        }
        println!("    {}, {}", case.name(), case.path.name());
        if let Some(rules) = &measured.rules {
            rules.print();
        }
        if let Some((_, raw)) = raw.iter().find(|(path, _)| *path == case.path.raw()) {
            print_functions(&functions::sample(&case.ends, cpu)?.unwrap_or_default(), raw);
        }
    }
    if raw.is_empty() {
        println!("    left out: kernel functions, because perf does not run here");
    }
    Ok(())
}

/// Prints the functions that take the most time in addition to the kernel alone.
fn print_functions(functions: &Functions, raw: &Functions) {
    let difference = |name: &String, micros: f64| micros - raw.get(name).copied().unwrap_or_default();
    let mut all: Vec<_> =
        functions.iter().map(|(name, micros)| (difference(name, *micros), *micros, name)).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (difference, micros, name) in all.iter().take(SHOWN) {
        println!("      {micros:>6.2} ({difference:+.2})  {name}");
    }
}
