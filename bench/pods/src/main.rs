//! podwire-bench-pods: the time from the request for a pod to the first answer of its address.
//!
//! Containerd with Debian's Go plugins, containerd with Podwire's plugins, and `podwire pod` take turns, pod by pod,
//! each on a separate stage: namespaces with real cgroups, the same network, the same host port for each pod. The clock
//! runs from before the request to after the first answer to a ping from the node. The pods differ. containerd also
//! creates a root file system, and runs a container in it that holds the namespaces. A pod of podwire has the
//! namespaces, a process that holds them, and the network. So the ratio does not compare plugins alone.

mod contender;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Parser;
use outcome::{Samples, Targets};
use podwire_tests::differences;

use crate::contender::{contenders, Contender};

/// Pods that are started and removed before the measurement.
const WARM_UP: usize = 2;
/// The targets: a contender's maximal share of the time that containerd takes with Go plugins.
const TARGETS: [(&str, f64); 2] = [(contender::OURS, 0.6), (contender::PODWIRE, 0.15)];

/// Compares how long containerd and podwire take to start a whole pod.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-pods", version)]
struct Arguments {
    /// Pods for each contender
    #[arg(short = 'n', long, value_name = "N", default_value_t = 25)]
    ops: usize,
    /// Few pods: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-pods", arguments.enforce, || bench(&arguments))
}

/// The times of one contender.
struct Measured {
    name: &'static str,
    millis: Samples,
}

/// Runs the rounds.
fn bench(arguments: &Arguments) -> Result<Targets> {
    println!("\npods: from the request to the first answer to a ping");
    let mut contenders = match contenders() {
        Ok(contenders) => contenders,
        Err(why) => {
            println!("  left out: {why}");
            return Ok(Targets::default());
        }
    };
    let mut before = Vec::new();
    for contender in &mut contenders {
        for n in 0..WARM_UP {
            round(contender.as_mut(), n)?;
        }
        before.push(contender.stage().traces());
    }
    let ops = if arguments.quick { 3 } else { arguments.ops };
    let mut all: Vec<_> =
        contenders.iter().map(|one| Measured { name: one.name(), millis: Samples::default() }).collect();
    for n in 0..ops {
        // Another contender begins each round.
        for turn in 0..contenders.len() {
            let at = (n + turn) % contenders.len();
            all[at].millis.add(round(contenders[at].as_mut(), WARM_UP + n)?);
        }
    }
    for (contender, before) in contenders.iter().zip(before) {
        check_leftovers(contender.as_ref(), &before)?;
    }
    Ok(report(&all))
}

/// Checks that nothing is left of the pods. The kernel gets a minute for deferred work.
fn check_leftovers(contender: &dyn Contender, before: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let left = differences(before, &contender.stage().traces());
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} left behind:{left}", contender.name());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a pod, waits for its answer, and removes it. Returns the milliseconds until it answered.
fn round(contender: &mut dyn Contender, n: usize) -> Result<f64> {
    let name = format!("pod-{n}");
    let port = 10_000 + u16::try_from(n)?;
    let start = Instant::now();
    let pod = contender.run(&name, port).with_context(|| contender.name())?;
    let answers = contender.stage().pings(None, &pod.address);
    let millis = start.elapsed().as_secs_f64() * 1e3;
    ensure!(answers, "{}: {} does not answer", contender.name(), pod.address);
    contender.remove(&pod.id)?;
    Ok(millis)
}

/// Prints the table, and which targets are met.
fn report(all: &[Measured]) -> Targets {
    let first = all[0].millis.median();
    println!("  {:24}{:>5}{:>11}{:>11}{:>11}  p50/first", "by", "n", "p50 ms", "p90 ms", "max ms");
    for Measured { name, millis } in all {
        let [median, p90, max] = [0.5, 0.9, 1.0].map(|share| millis.quantile(share));
        let (count, ratio) = (millis.count(), median / first);
        println!("  {name:24}{count:>5}{median:>11.1}{p90:>11.1}{max:>11.1}  {ratio:.3}");
    }
    let mut targets = Targets::default();
    for (name, limit) in TARGETS {
        let measured = all.iter().find(|measured| measured.name == name);
        let ratio = measured.map(|measured| measured.millis.median() / first);
        let text = ratio.map_or("not measured".into(), |ratio| format!("{ratio:.3}"));
        let is_met = ratio.is_some_and(|ratio| ratio <= limit);
        targets.report(is_met, &format!("{name}: p50 ≤ {limit} × {}'s: {text}", all[0].name));
    }
    targets
}
