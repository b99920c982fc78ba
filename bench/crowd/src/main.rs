//! podwire-bench-crowd: how fast a new cluster attaches its pods.
//!
//! A lab of ten nodes on one link, each with `podwire agent calico`, an etcd and no pods. All nodes attach a hundred
//! pods at the same time, each node one after the other, by executing plugins as a runtime does. The two contenders
//! take turns, each time in a new lab: calico + calico-ipam, whose addresses come from blocks that the cluster shares,
//! and Debian's Go plugins bridge + host-local, which send no request to another node. The clock runs from the first
//! ADD to the end of the last one.

#[path = "../../src/exec.rs"]
mod exec;
#[path = "../../../tests/tests/lab/laboratory.rs"]
#[allow(dead_code, clippy::unwrap_used)] // a helper of tests; this program does not use all of it
mod laboratory;
mod site;
mod worker;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use outcome::{Samples, Targets};
use podwire_tests::{ours, GO};
use serde_json::json;

use crate::site::Site;
use crate::worker::{has, Job};

/// The argument that makes this program a worker on a node.
pub const WORKER: &str = "worker";

/// The targets: the median of an ADD and pods per second, as multiples of the peer's, and requests to etcd for each pod.
/// Go's plugins use only files of their node. Podwire's wait for etcd when a node's warm pool is used up, and how long
/// depends on the load of the machine.
const MEDIAN: f64 = 0.3;
const RATE: f64 = 1.2;
const REQUESTS: f64 = 10.0;

/// Measures how fast a new cluster of routed pods attaches them.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-crowd", version)]
struct Arguments {
    /// Nodes of the lab
    #[arg(long, value_name = "N", default_value_t = 10)]
    nodes: usize,
    /// Pods on each of them
    #[arg(long, value_name = "N", default_value_t = 100)]
    pods: usize,
    /// Turns of each contender
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
    /// Two nodes with ten pods each, one turn: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        return outcome::run("podwire-bench-crowd", false, || worker::main().map(|()| Targets::default()));
    }
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-crowd", arguments.enforce, || bench(arguments))
}

/// The plugins that attach pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Ours,
    Go,
}

/// The measurements of a contender in all of its turns.
#[derive(Default)]
struct Measured {
    /// Seconds from the first ADD to the last pod.
    all: Samples,
    /// Milliseconds of each ADD.
    add: Samples,
    /// Seconds from then until the store has the last pod.
    synced: Samples,
    /// Requests to the store for each pod.
    requests: Samples,
}

fn bench(arguments: Arguments) -> Result<Targets> {
    let Arguments { nodes, pods, turns, .. } =
        if arguments.quick { Arguments { nodes: 2, pods: 10, turns: 1, ..arguments } } else { arguments };
    let store = site::store();
    println!("\ncrowd: {} pods on {nodes} nodes of a lab, from nothing; store {store}", nodes * pods);
    if !has(GO, "bridge") {
        println!("  left out: no Go plugins in {GO}");
        return Ok(Targets::default());
    }
    let mut all = [(Contender::Ours, Measured::default()), (Contender::Go, Measured::default())];
    for turn in 0..turns {
        // Another contender begins each turn.
        for at in 0..2 {
            let (contender, measured) = &mut all[(turn + at) % 2];
            fill(&Site::new(nodes, store)?, *contender, pods, measured)?;
        }
    }
    let [(_, ours), (_, go)] = &all;
    Ok(report(ours, go, nodes * pods))
}

/// One turn.
fn fill(site: &Site, contender: Contender, pods: usize, measured: &mut Measured) -> Result<()> {
    let jobs: Result<Vec<Job>> = site.nodes().map(|node| job(site, contender, node, pods)).collect();
    let mut workers = site.workers(&jobs?)?;
    let before = site.requests()?;
    let start = Instant::now();
    workers.iter_mut().try_for_each(worker::Worker::begin)?;
    let done: Result<Vec<worker::Done>> = workers.iter_mut().map(worker::Worker::receive).collect();
    let took = start.elapsed();
    let done = done?;
    measured.all.add(took.as_secs_f64());
    done.iter().flat_map(|node| &node.millis).for_each(|millis| measured.add.add(*millis));
    if contender == Contender::Ours {
        site.wait_until_synced()?;
        measured.synced.add((start.elapsed() - took).as_secs_f64());
        let requests = before.zip(site.requests()?).map(|(before, after)| after - before);
        requests.into_iter().for_each(|count| measured.requests.add(count / (pods * done.len()) as f64));
    }
    site.check(&done, contender == Contender::Ours)
}

/// The chain of a node has one plugin. Podwire's config is the one that the lab wrote; the peer's has a subnet for each
/// node.
fn job(site: &Site, contender: Contender, node: usize, pods: usize) -> Result<Job> {
    let name = format!("n{node}");
    let (folder, list) = match contender {
        Contender::Ours => (ours(), site.list(&name)?),
        Contender::Go => {
            let ipam = json!({"type": "host-local", "ranges": [[{"subnet": format!("10.{node}.0.0/24")}]]});
            let plugin = json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam});
            (GO.into(), json!({"cniVersion": "1.0.0", "name": "crowd", "plugins": [plugin]}))
        }
    };
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    Ok(Job { node: name, pods, folder: folder.into(), config })
}

/// Prints the table, and which targets are met.
fn report(ours: &Measured, go: &Measured, pods: usize) -> Targets {
    println!(
        "  {:28}{:>6}{:>10}{:>9}{:>13}{:>10}{:>10}{:>12}{:>15}",
        "by", "turns", "pods/s", "all s", "ADD p50 ms", "p99 ms", "max ms", "synced s", "requests/pod"
    );
    let rate = |measured: &Measured| pods as f64 / measured.all.median();
    for (name, measured) in [("calico + calico-ipam", ours), ("Go's bridge + host-local", go)] {
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|share| measured.add.quantile(share));
        let optional = |samples: &Samples| match samples.count() {
            0 => "–".into(),
            _ => format!("{:.2}", samples.median()),
        };
        println!(
            "  {name:28}{:>6}{:>10.0}{:>9.2}{median:>13.1}{p99:>10.1}{max:>10.1}{:>12}{:>15}",
            measured.all.count(),
            rate(measured),
            measured.all.median(),
            optional(&measured.synced),
            optional(&measured.requests)
        );
    }
    let mut targets = Targets::default();
    let ratio = ours.add.median() / go.add.median();
    let text = format!("the median ADD takes ≤ {MEDIAN} × that of Go's plugins: {ratio:.2}");
    targets.report(ratio <= MEDIAN, &text);
    let ratio = rate(ours) / rate(go);
    let text = format!("pods per second ≥ {RATE} × that of Go's plugins: {ratio:.2}");
    targets.report(ratio >= RATE, &text);
    if ours.requests.count() > 0 {
        let requests = ours.requests.median();
        let text = format!("etcd requests for each pod ≤ {REQUESTS}: {requests:.2}");
        targets.report(requests <= REQUESTS, &text);
    }
    targets
}
