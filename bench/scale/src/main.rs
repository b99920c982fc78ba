//! podwire-bench-scale: what does an agent cost in a large cluster?
//!
//! One agent runs alone on a machine in namespaces. Thousands of nodes exist only in its source: a real etcd with
//! flannel's keys, or a stand-in API server. Everything on the agent's side is real: the program, its client, its
//! kernel.

mod crowd;
mod site;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use clap::Parser;
use outcome::{Promises, Samples};

use crate::crowd::{Api, Crowd, Etcd, Simulated};
use crate::site::Site;

/// The promises: memory in MB, the share of a core when idle in percent, and how much more a node may cost at the full
/// size than at a tenth of it.
const MEMORY: f64 = 40.0;
const IDLE: f64 = 0.2;
const FLAT: f64 = 1.5;
/// So many nodes join one by one.
const NEWCOMERS: usize = 9;

/// Measures an agent with thousands of simulated peers.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-scale", version)]
struct Arguments {
    /// Simulated nodes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5000)]
    nodes: usize,
    /// 300 nodes and a short rest: shows that all works, proves no number
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a promise is not kept
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-scale", arguments.enforce, || bench(&arguments))
}

/// What was seen with one source and one size.
struct Seen {
    source: &'static str,
    nodes: usize,
    /// From the agent's start to the last route.
    start: Duration,
    /// From a node's registration to its route, the median, in milliseconds.
    one: f64,
    memory: (f64, f64),
    idle: f64,
}

impl Seen {
    /// Microseconds for each node at the start.
    fn each(&self) -> f64 {
        self.start.as_secs_f64() * 1e6 / self.nodes as f64
    }
}

fn bench(arguments: &Arguments) -> Result<Promises> {
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
            let crowd = make(&site)?;
            all.push(measure(site, crowd.as_ref(), size, rest)?);
        }
    }
    Ok(judge(&all, nodes))
}

fn etcd(site: &Site) -> Result<Box<dyn Crowd>> {
    Ok(Box::new(Etcd::start(&site.node)?))
}

fn api(site: &Site) -> Result<Box<dyn Crowd>> {
    Ok(Box::new(Api::start(&site.node)?))
}

/// One agent's life with so many peers.
fn measure(mut site: Site, crowd: &dyn Crowd, nodes: usize, rest: Duration) -> Result<Seen> {
    let all: Vec<Simulated> = (0..nodes).map(Simulated).collect();
    crowd.join(&site.node, &all)?;
    let start = site.start_agent(crowd, nodes)?;
    let mut times = Samples::default();
    for newcomer in (nodes..nodes + NEWCOMERS).map(Simulated) {
        let begun = Instant::now();
        crowd.join(&site.node, &[newcomer])?;
        site.until_road(newcomer.pod())?;
        times.add(begun.elapsed().as_secs_f64() * 1e3);
    }
    let peers = nodes + NEWCOMERS;
    let objects = site.objects()?;
    ensure!(
        objects == [peers; 3],
        "{peers} nodes, but routes, neighbours and forwarding entries are {objects:?}"
    );
    // What follows the last change, one comparison that finds nothing, is not idleness.
    std::thread::sleep(Duration::from_secs(1));
    let seen = Seen {
        source: crowd.name(),
        nodes,
        start,
        one: times.median(),
        idle: site.idle_cpu(rest)?,
        memory: site.memory()?,
    };
    let (name, (now, peak)) = (seen.source, seen.memory);
    let (begin, each, one, idle) = (seen.start.as_secs_f64() * 1e3, seen.each(), seen.one, seen.idle);
    println!("  {name:22}{nodes:>7}{begin:>12.0}{each:>11.0}{one:>11.1}{now:>10.1}{peak:>10.1}{idle:>9.3}");
    Ok(seen)
}

/// Says which promises were kept.
fn judge(all: &[Seen], full: usize) -> Promises {
    let mut promises = Promises::default();
    let mut say = |kept: bool, text: String| promises.judge(kept, &text);
    for large in all.iter().filter(|seen| seen.nodes == full) {
        let (name, nodes, (memory, _)) = (large.source, large.nodes, large.memory);
        say(memory <= MEMORY, format!("{name}, {nodes} nodes: at most {MEMORY} MB of memory: {memory:.1}"));
        say(
            large.idle <= IDLE,
            format!("{name}, {nodes} nodes: at most {IDLE} % of a core when idle: {:.3}", large.idle),
        );
        let small = all.iter().find(|seen| seen.source == name && seen.nodes < nodes);
        if let Some(small) = small {
            let ratio = large.each() / small.each();
            say(
                ratio <= FLAT,
                format!(
                    "{name}: a node costs at most {FLAT} × what it costs among {}: {ratio:.2}",
                    small.nodes
                ),
            );
        }
    }
    promises
}
