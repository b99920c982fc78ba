//! podwire-bench-scale: the cost of an agent in a large cluster.
//!
//! One agent runs alone on a machine in namespaces. Thousands of nodes exist only in its source: a real etcd with
//! flannel's keys, or a stand-in API server. Everything on the agent's side is real: the program, its client, its
//! kernel.

mod site;
mod source;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use clap::Parser;
use outcome::{Samples, Targets};

use crate::site::Site;
use crate::source::{Api, Etcd, Simulated, Source};

/// The targets: memory in MB, the share of a core when idle in percent, and the cost of a node at the full size as a
/// multiple of its cost at a tenth of the size.
const MEMORY: f64 = 40.0;
const IDLE: f64 = 0.2;
const FLAT: f64 = 1.5;
/// The nodes that join one by one.
const JOINING: usize = 9;

/// Measures an agent with thousands of simulated peers.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-scale", version)]
struct Arguments {
    /// Simulated nodes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5000)]
    nodes: usize,
    /// 300 nodes and a short idle time: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-scale", arguments.enforce, || bench(&arguments))
}

/// The measurements with one source and one number of nodes.
struct Measured {
    source: &'static str,
    nodes: usize,
    /// The time from the agent's start to the last route.
    start: Duration,
    /// The median time from a node's joining to its route, in milliseconds.
    one: f64,
    memory: (f64, f64),
    idle: f64,
}

impl Measured {
    /// Microseconds for each node during the start.
    fn each(&self) -> f64 {
        self.start.as_secs_f64() * 1e6 / self.nodes as f64
    }
}

fn bench(arguments: &Arguments) -> Result<Targets> {
    println!("\nscale: an agent and its simulated peers");
    let (nodes, rest) = if arguments.quick {
        (300, Duration::from_secs(1))
    } else {
        (arguments.nodes, Duration::from_secs(60))
    };
    println!(
        "  {:22}{:>7}{:>12}{:>11}{:>11}{:>10}{:>10}{:>9}",
        "nodes from", "nodes", "start ms", "each µs", "one ms", "RSS MB", "peak MB", "idle %"
    );
    let mut all = Vec::new();
    for make in [etcd, api] {
        for size in [nodes / 10, nodes] {
            let site = Site::new()?;
            let source = make(&site)?;
            all.push(measure(site, source.as_ref(), size, rest)?);
        }
    }
    Ok(report(&all, nodes))
}

fn etcd(site: &Site) -> Result<Box<dyn Source>> {
    Ok(Box::new(Etcd::start(&site.node)?))
}

fn api(site: &Site) -> Result<Box<dyn Source>> {
    Ok(Box::new(Api::start(&site.node)?))
}

/// Runs one agent with this number of peers.
fn measure(mut site: Site, source: &dyn Source, nodes: usize, rest: Duration) -> Result<Measured> {
    let all: Vec<Simulated> = (0..nodes).map(Simulated).collect();
    source.add(&site.node, &all)?;
    let start = site.start_agent(source, nodes)?;
    let mut times = Samples::default();
    for joining in (nodes..nodes + JOINING).map(Simulated) {
        let begin = Instant::now();
        source.add(&site.node, &[joining])?;
        site.wait_for_route(joining.pod())?;
        times.add(begin.elapsed().as_secs_f64() * 1e3);
    }
    let peers = nodes + JOINING;
    let objects = site.objects()?;
    ensure!(
        objects == [peers; 3],
        "{peers} nodes, but routes, neighbours and forwarding entries are {objects:?}"
    );
    // After the last change the agent reconciles once more. This is not part of its idle time.
    std::thread::sleep(Duration::from_secs(1));
    let measured = Measured {
        source: source.name(),
        nodes,
        start,
        one: times.median(),
        idle: site.idle_cpu(rest)?,
        memory: site.memory()?,
    };
    let Measured { source: name, start, one, memory: (now, peak), idle, .. } = measured;
    let (start, each) = (start.as_secs_f64() * 1e3, measured.each());
    println!("  {name:22}{nodes:>7}{start:>12.0}{each:>11.0}{one:>11.1}{now:>10.1}{peak:>10.1}{idle:>9.3}");
    Ok(measured)
}

/// Prints which targets are met.
fn report(all: &[Measured], full: usize) -> Targets {
    let mut targets = Targets::default();
    let mut report = |is_met: bool, text: String| targets.report(is_met, &text);
    for large in all.iter().filter(|measured| measured.nodes == full) {
        let (name, nodes, (memory, _)) = (large.source, large.nodes, large.memory);
        report(
            memory <= MEMORY,
            format!("{name}, {nodes} nodes: at most {MEMORY} MB of memory: {memory:.1}"),
        );
        report(
            large.idle <= IDLE,
            format!("{name}, {nodes} nodes: at most {IDLE} % of a core when idle: {:.3}", large.idle),
        );
        let small = all.iter().find(|measured| measured.source == name && measured.nodes < nodes);
        if let Some(small) = small {
            let ratio = large.each() / small.each();
            report(
                ratio <= FLAT,
                format!("{name}: a node costs at most {FLAT} × its cost among {}: {ratio:.2}", small.nodes),
            );
        }
    }
    targets
}
