//! podwire-bench-policies: what do network policies cost, packets and updates, with none and with thousands of them?
//!
//! For each number of policies and of pods there is a node in namespaces of its own, with two real pods that talk across it and a
//! policy_agent that is told, as by the API, of a whole cluster. All nodes take turns, block by block, and a node with policies is held
//! against the one without any.

mod cluster;
mod node;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use outcome::{Promises, Samples};
use podwire_netlink::sys;

use crate::cluster::Cluster;
use crate::node::Node;

const POLICIES: [usize; 4] = [0, 100, 1000, 10_000];
const PODS: [usize; 2] = [110, 500];
/// The promises: packets cost at most so much more than without policies, and nine of ten updates take at most so many
/// milliseconds.
const FLAT: f64 = 1.10;
const UPDATE: f64 = 50.0;
/// Connections, and bytes to and fro, of one turn.
const CONNECTIONS: u32 = 150;
const BYTES: u32 = 300;

/// Measures what network policies cost.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-policies", version)]
struct Arguments {
    /// Turns of each node; a quarter as many updates follow
    #[arg(short = 'n', long, value_name = "N", default_value_t = 300)]
    turns: usize,
    /// Pods of the whole cluster, over which the policies are spread evenly
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(500..60_000))]
    cluster_pods: u64,
    /// Few turns: shows that all works, proves no number
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a promise is not kept
    #[arg(long)]
    enforce: bool,
}

/// What was measured on one node.
struct Seen {
    node: Node,
    connection: Samples,
    latency: Samples,
    updates: BTreeMap<&'static str, Samples>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-policies", arguments.enforce, || bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<Promises> {
    println!("\npolicies: what packets and updates cost");
    // What the plugins of this machine recorded is nothing to these nodes, and theirs nothing to the machine.
    sys::unshare_mounts().context("a mount namespace (this needs root)")?;
    sys::mount_tmpfs(Path::new("/run")).context("a /run of its own")?;
    let everywhere = usize::try_from(arguments.cluster_pods)?;
    let mut all = Vec::new();
    for pods in PODS {
        for policies in POLICIES {
            let node = Node::new(Cluster { policies, pods, everywhere })?;
            let (connection, latency) = (Samples::default(), Samples::default());
            all.push(Seen { node, connection, latency, updates: BTreeMap::new() });
        }
    }
    let turns = if arguments.quick { 8 } else { arguments.turns };
    for turn in 0..turns {
        // Each in turn is the first of a round.
        for place in 0..all.len() {
            let at = (turn + place) % all.len();
            packets(&mut all[at])?;
        }
    }
    for turn in 0..turns.div_ceil(4) {
        for seen in &mut all {
            for (what, told) in seen.node.cluster.events(turn)? {
                seen.updates.entry(what).or_default().add(seen.node.update(told)?);
            }
        }
    }
    Ok(report(&all))
}

fn packets(seen: &mut Seen) -> Result<()> {
    // What the others left in the processor's caches is nobody's cost.
    seen.node.connect(CONNECTIONS / 10)?;
    seen.connection.add(seen.node.connect(CONNECTIONS)?);
    seen.node.ping_pong(BYTES / 10)?;
    seen.latency.add(seen.node.ping_pong(BYTES)?);
    Ok(())
}

/// Prints the table; says which promises were kept.
fn report(all: &[Seen]) -> Promises {
    println!(
        "  {:>5}{:>10}{:>10}{:>10}{:>8}{:>10}{:>8}   update ms, p50 (p90)",
        "pods", "policies", "conn/s", "conn µs", "ratio", "trip µs", "ratio"
    );
    let mut promises = Promises::default();
    let mut judged = Vec::new();
    for seen in all {
        let Cluster { policies, pods, .. } = seen.node.cluster;
        let without =
            all.iter().find(|other| other.node.cluster == Cluster { policies: 0, ..seen.node.cluster });
        let against = |of: fn(&Seen) -> f64| of(seen) / without.map_or(f64::NAN, of);
        let (connection, latency) = (seen.connection.median(), seen.latency.median());
        let ratios = [against(|seen| seen.connection.median()), against(|seen| seen.latency.median())];
        let updates: Vec<String> = seen
            .updates
            .iter()
            .map(|(what, samples)| format!("{what} {:.1} ({:.1})", samples.median(), samples.share(0.9)))
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
        for (what, ratio) in ["connection", "round trip"].into_iter().zip(ratios) {
            judged.push((
                ratio <= FLAT,
                format!("{name}: a {what} ≤ {FLAT:.2} × without policies: {ratio:.3}"),
            ));
        }
        let slowest = seen.updates.values().map(|samples| samples.share(0.9)).fold(0.0, f64::max);
        judged.push((slowest <= UPDATE, format!("{name}: p90 of an update ≤ {UPDATE} ms: {slowest:.1}")));
    }
    judged.iter().for_each(|(kept, text)| promises.judge(*kept, text));
    promises
}
