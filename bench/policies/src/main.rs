//! podwire-bench-policies: the cost of network policies for packets and for updates, with none and with thousands of
//! them.
//!
//! For each number of policies and pods there is a node in its own network namespaces, with two real pods and a policy
//! agent that gets the objects of a whole cluster, as from the API. The nodes take turns, and each node with policies
//! is compared with the node without.

mod cluster;
mod node;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use outcome::{Samples, Targets};
use podwire_netlink::sys;

use crate::cluster::Cluster;
use crate::node::Node;

const POLICIES: [usize; 4] = [0, 100, 1000, 10_000];
const PODS: [usize; 2] = [110, 500];
/// The targets: the cost of a packet relative to a node without policies, and the p90 of an update in milliseconds.
const MAX_RATIO: f64 = 1.10;
const MAX_UPDATE_MS: f64 = 50.0;
/// Connections and round trips of one turn.
const CONNECTIONS: u32 = 150;
const ROUND_TRIPS: u32 = 300;

/// Measures the cost of network policies.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-policies", version)]
struct Arguments {
    /// Turns of each node; a quarter as many rounds of updates follow
    #[arg(short = 'n', long, value_name = "N", default_value_t = 300)]
    turns: usize,
    /// Pods of the whole cluster; the policies are distributed evenly over them
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(500..60_000))]
    cluster_pods: u64,
    /// Run few turns: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

/// The measurements of one node.
struct Measured {
    node: Node,
    connection: Samples,
    latency: Samples,
    updates: BTreeMap<&'static str, Samples>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-policies", arguments.enforce, || bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<Targets> {
    println!("\npolicies: cost of packets and updates");
    // A private /run keeps the ledger of this machine's plugins apart from these nodes.
    sys::unshare_mounts().context("create a mount namespace (this needs root)")?;
    sys::mount_tmpfs(Path::new("/run")).context("mount a private /run")?;
    let all_pods = usize::try_from(arguments.cluster_pods)?;
    let mut all = Vec::new();
    for pods in PODS {
        for policies in POLICIES {
            let node = Node::new(Cluster { policies, pods, all_pods })?;
            let (connection, latency) = (Samples::default(), Samples::default());
            all.push(Measured { node, connection, latency, updates: BTreeMap::new() });
        }
    }
    let turns = if arguments.quick { 8 } else { arguments.turns };
    for turn in 0..turns {
        // Each round starts with another node.
        for offset in 0..all.len() {
            let at = (turn + offset) % all.len();
            packets(&mut all[at])?;
        }
    }
    for turn in 0..turns.div_ceil(4) {
        for measured in &mut all {
            for (name, update) in measured.node.cluster.events(turn)? {
                measured.updates.entry(name).or_default().add(measured.node.update(update)?);
            }
        }
    }
    Ok(report(&all))
}

fn packets(measured: &mut Measured) -> Result<()> {
    // Warm up: other nodes have replaced the contents of the CPU caches.
    measured.node.connect(CONNECTIONS / 10)?;
    measured.connection.add(measured.node.connect(CONNECTIONS)?);
    measured.node.ping_pong(ROUND_TRIPS / 10)?;
    measured.latency.add(measured.node.ping_pong(ROUND_TRIPS)?);
    Ok(())
}

/// Prints the table, and which targets are met.
fn report(all: &[Measured]) -> Targets {
    println!(
        "  {:>5}{:>10}{:>10}{:>10}{:>8}{:>10}{:>8}   update ms, p50 (p90)",
        "pods", "policies", "conn/s", "conn µs", "ratio", "trip µs", "ratio"
    );
    let mut targets = Targets::default();
    let mut results = Vec::new();
    for measured in all {
        let Cluster { policies, pods, .. } = measured.node.cluster;
        let without =
            all.iter().find(|other| other.node.cluster == Cluster { policies: 0, ..measured.node.cluster });
        let ratio_of = |cost: fn(&Measured) -> f64| cost(measured) / without.map_or(f64::NAN, cost);
        let (connection, latency) = (measured.connection.median(), measured.latency.median());
        let ratios = [
            ratio_of(|measured| measured.connection.median()),
            ratio_of(|measured| measured.latency.median()),
        ];
        let updates: Vec<String> = measured
            .updates
            .iter()
            .map(|(name, samples)| format!("{name} {:.1} ({:.1})", samples.median(), samples.quantile(0.9)))
            .collect();
        println!(
            "  {pods:>5}{policies:>10}{:>10.0}{connection:>10.1}{:>8.3}{latency:>10.1}{:>8.3}   {}",
            1e6 / connection,
            ratios[0],
            ratios[1],
            updates.join(", ")
        );
        if policies == 0 {
            continue;
        }
        let name = format!("{policies} policies, {pods} pods");
        for (name_of_cost, ratio) in ["connection", "round trip"].into_iter().zip(ratios) {
            results.push((
                ratio <= MAX_RATIO,
                format!("{name}: a {name_of_cost} ≤ {MAX_RATIO:.2} × without policies: {ratio:.3}"),
            ));
        }
        let slowest = measured.updates.values().map(|samples| samples.quantile(0.9)).fold(0.0, f64::max);
        results.push((
            slowest <= MAX_UPDATE_MS,
            format!("{name}: p90 of an update ≤ {MAX_UPDATE_MS} ms: {slowest:.1}"),
        ));
    }
    results.iter().for_each(|(is_met, text)| targets.report(*is_met, text));
    targets
}
