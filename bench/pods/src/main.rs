//! podwire-bench-pods: how long does a pod take, from nothing to an address that answers?
//!
//! Containerd with Debian's Go plugins, containerd with Podwire's plugins, and `podwire pod` take turns, pod by pod,
//! each on a separate stage: namespaces with real cgroups, the same network, the same host port for each pod. The clock
//! runs from before the request to after the first answer to a ping from the node. The pods differ: containerd also
//! creates a root file system and runs a container in it that holds the namespaces; a pod of podwire is the namespaces,
//! a process that holds them, and the network. So the ratio compares two ways to the same network, not two plugins.

mod contender;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Parser;
use outcome::{Promises, Samples};
use podwire_tests::differences;

use crate::contender::{contenders, Contender};

/// Pods that come and go before anything is measured.
const WARM_UP: usize = 2;
/// The promises: who takes at most which share of the time that containerd takes with Go plugins.
const PROMISES: [(&str, f64); 2] = [(contender::OURS, 0.6), (contender::PODWIRE, 0.15)];

/// Compares how long a whole pod takes, by containerd and by podwire.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-pods", version)]
struct Arguments {
    /// Pods for each contender
    #[arg(short = 'n', long, value_name = "N", default_value_t = 25)]
    ops: usize,
    /// Few pods: shows that all works, proves no number
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a promise is not kept
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-pods", arguments.enforce, || bench(&arguments))
}

/// What one contender took.
struct Taken {
    name: &'static str,
    millis: Samples,
}

/// Runs the rounds.
fn bench(arguments: &Arguments) -> Result<Promises> {
    println!("\npods: from nothing to an address that answers a ping");
    let mut contenders = match contenders() {
        Ok(contenders) => contenders,
        Err(why) => {
            println!("  left out: {why}");
            return Ok(Promises::default());
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
        contenders.iter().map(|one| Taken { name: one.name(), millis: Samples::default() }).collect();
    for n in 0..ops {
        // Each in turn is the first of a round.
        for turn in 0..contenders.len() {
            let at = (n + turn) % contenders.len();
            all[at].millis.add(round(contenders[at].as_mut(), WARM_UP + n)?);
        }
    }
    for (contender, before) in contenders.iter().zip(before) {
        nothing_is_left(contender.as_ref(), &before)?;
    }
    Ok(report(&all))
}

/// Nothing may be left of the pods. The kernel gets time for what it does later.
fn nothing_is_left(contender: &dyn Contender, before: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let left = differences(before, &contender.stage().traces());
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} leaves behind:{left}", contender.name());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One pod comes, answers, and goes; milliseconds until it answered.
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

/// Prints the table; says which promises were kept.
fn report(all: &[Taken]) -> Promises {
    let first = all[0].millis.median();
    println!("  {:24}{:>5}{:>11}{:>11}{:>11}  p50/first", "by", "n", "p50 ms", "p90 ms", "max ms");
    for Taken { name, millis } in all {
        let [median, p90, max] = [0.5, 0.9, 1.0].map(|share| millis.share(share));
        let (count, ratio) = (millis.count(), median / first);
        println!("  {name:24}{count:>5}{median:>11.1}{p90:>11.1}{max:>11.1}  {ratio:.3}");
    }
    let mut promises = Promises::default();
    for (name, limit) in PROMISES {
        let ratio = all.iter().find(|taken| taken.name == name).map(|taken| taken.millis.median() / first);
        let reported = ratio.map_or("not measured".into(), |it| format!("{it:.3}"));
        let kept = ratio.is_some_and(|ratio| ratio <= limit);
        promises.judge(kept, &format!("{name}: p50 ≤ {limit} × {}'s: {reported}", all[0].name));
    }
    promises
}
