//! Which kernel functions the time of a round trip goes to, sampled by `perf` where it runs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use outcome::Samples;

use crate::traffic::Ends;

const SECONDS: &str = "0.6";
const SAMPLES_PER_SECOND: &str = "4999";
/// Round trips between two looks at whether perf has ended.
const TRIPS: u32 = 500;
/// The first 15 bytes of this program's name, as the kernel knows it.
const COMM: &str = "podwire-bench-d";

/// Microseconds of a round trip in each function, without the functions that it calls. Functions of programs are one.
pub type Functions = HashMap<String, f64>;

/// Samples round trips on a CPU. `None` if perf does not run here.
pub fn sample(ends: &Ends, cpu: usize) -> Result<Option<Functions>> {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-C", &cpu.to_string(), "-F", SAMPLES_PER_SECOND, "-e", "cpu-clock"]);
    perf.args(["-o", "-", "--", "sleep", SECONDS]).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut perf) = perf.spawn() else { return Ok(None) };
    let mut output = perf.stdout.take().context("perf has no output")?;
    let reader = std::thread::spawn(move || {
        let mut data = Vec::new();
        output.read_to_end(&mut data).map(|_| data)
    });
    let mut micros = Samples::default();
    let status = loop {
        micros.add(ends.round_trips(TRIPS, cpu)?);
        if let Some(status) = perf.try_wait()? {
            break status;
        }
    };
    let data = reader.join().ok().context("a thread panicked")??;
    if !status.success() {
        return Ok(None);
    }
    Ok(Some(
        shares(&report(data)?).into_iter().map(|(name, share)| (name, share * micros.median())).collect(),
    ))
}

/// The text of `perf report`.
fn report(data: Vec<u8>) -> Result<String> {
    let mut perf = Command::new("perf");
    perf.args(["report", "-i", "-", "--stdio", "-q", "--no-children", "-g", "none", "--sort", "symbol"]);
    perf.args(["--comm", COMM, "--percentage", "relative"]);
    perf.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut perf = perf.spawn().context("start perf")?;
    let mut input = perf.stdin.take().context("perf has no input")?;
    let writer = std::thread::spawn(move || input.write_all(&data));
    let output = perf.wait_with_output()?;
    writer.join().ok().context("a thread panicked")??;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The share of each function.
fn shares(report: &str) -> HashMap<String, f64> {
    let mut all = HashMap::new();
    for line in report.lines() {
        let mut words = line.split_whitespace();
        let percent = words.next().and_then(|word| word.strip_suffix('%')?.parse::<f64>().ok());
        let (Some(percent), Some(space)) = (percent, words.next()) else { continue };
        let name = match space {
            "[k]" => words.next().unwrap_or_default(),
            _ => "(programs)",
        };
        *all.entry(name.to_owned()).or_default() += percent / 100.0;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_kernel_functions() {
        let text = "     6.14%  [k] nft_do_chain     -      -   \n\n 2.43%  [.] main::run  - -\n 1.57%  [.] memcpy - -\n# x\n";
        let all = shares(text);
        assert_eq!(all.len(), 2);
        assert!((all["nft_do_chain"] - 0.0614).abs() < 1e-9 && (all["(programs)"] - 0.04).abs() < 1e-9);
    }
}
