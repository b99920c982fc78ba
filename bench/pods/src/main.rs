//! podwire-bench-pods: how long does a pod take, from nothing to an address that answers?
//!
//! containerd with Debian's Go plugins, containerd with our plugins, and `podwire`'s own pods, one after the other, pod by
//! pod, on stages of their own: namespaces with real cgroups, the same network, the same host port for each pod. The clock runs from
//! before the request to after the first answer to a ping from the node. What a pod is differs: containerd also makes a root
//! file system and runs a container in it that holds the namespaces; podwire's pod is the namespaces, a process that holds them, and
//! the network. So the ratio is that of two ways to the same network, not of two plugins.

mod contender;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Parser;
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
    match bench(&Arguments::parse()) {
        Ok(well) => ExitCode::from(u8::from(!well)),
        Err(error) => {
            eprintln!("podwire-bench-pods: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What one contender took.
struct Samples {
    name: &'static str,
    /// Milliseconds, in order of size.
    millis: Vec<f64>,
}

impl Samples {
    fn share(&self, share: f64) -> f64 {
        let last = self.millis.len() - 1;
        self.millis[(last as f64 * share).round() as usize]
    }
}

/// Runs the rounds; says whether all was well.
fn bench(arguments: &Arguments) -> Result<bool> {
    println!("\npods: from nothing to an address that answers a ping");
    let mut contenders = match contenders() {
        Ok(contenders) => contenders,
        Err(why) => {
            println!("  left out: {why}");
            return Ok(true);
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
        contenders.iter().map(|one| Samples { name: one.name(), millis: Vec::new() }).collect();
    for n in 0..ops {
        // Each in turn is the first of a round.
        for turn in 0..contenders.len() {
            let at = (n + turn) % contenders.len();
            all[at].millis.push(round(contenders[at].as_mut(), WARM_UP + n)?);
        }
    }
    for (contender, before) in contenders.iter().zip(before) {
        let left = differences(&before, &contender.stage().traces());
        ensure!(left.is_empty(), "{} leaves behind:{left}", contender.name());
    }
    all.iter_mut().for_each(|samples| samples.millis.sort_by(f64::total_cmp));
    Ok(report(&all) || !arguments.enforce)
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

/// Prints the table; says whether the promises were kept.
fn report(all: &[Samples]) -> bool {
    let first = all[0].share(0.5);
    println!("  {:24}{:>5}{:>11}{:>11}{:>11}  p50/first", "by", "n", "p50 ms", "p90 ms", "max ms");
    for samples in all {
        let [median, p90, max] = [0.5, 0.9, 1.0].map(|share| samples.share(share));
        let (name, count, ratio) = (samples.name, samples.millis.len(), median / first);
        println!("  {name:24}{count:>5}{median:>11.1}{p90:>11.1}{max:>11.1}  {ratio:.3}");
    }
    let judge = |(name, limit): (&str, f64)| {
        let ratio = all.iter().find(|samples| samples.name == name).map(|samples| samples.share(0.5) / first);
        let kept = ratio.is_some_and(|ratio| ratio <= limit);
        let (word, told) = (
            if kept { "PASS" } else { "MISS" },
            ratio.map_or("not measured".into(), |it| format!("{it:.3}")),
        );
        println!("  {word}  {name}: p50 ≤ {limit} × {}'s: {told}", all[0].name);
        kept
    };
    PROMISES.map(judge).into_iter().all(|kept| kept)
}
