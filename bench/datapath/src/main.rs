//! podwire-bench-datapath: what a packet costs on its way from or to a pod, relative to the kernel alone.
//!
//! A bare veth pair, a node with Debian's Go plugins, one with the same chain of Podwire's, and labs with agents, with
//! and without policies, take turns in every round. Client and server are threads of this program with sockets in the
//! namespaces of the pods. Each ratio is the median of all rounds, in which a path is compared with the kernel alone in
//! the same round.

mod case;
mod chain;
mod functions;
mod lab;
mod processor;
mod profile;
mod promise;
mod raw;
mod report;
mod rules;
mod sites;
mod traffic;

use std::fs;
use std::path::{Path as File, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use outcome::Targets;
use podwire_netlink::sys;
use serde_json::json;

use crate::case::{Case, Measure, Network, Path, Setup};
use crate::report::{Measured, Report};
use crate::sites::Sites;
use crate::traffic::Ends;

/// Streams of the measure `streams`.
const STREAMS: usize = 8;
/// A transfer takes longer than the other measures, so that only each fourth round has one.
const TRANSFER_ROUNDS: usize = 4;

/// Measures what a packet costs on its way from or to a pod.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-datapath", version)]
struct Arguments {
    /// Rounds; transfers are measured in each fourth one
    #[arg(short = 'n', long, value_name = "N", default_value_t = 21)]
    rounds: usize,
    /// Round trips of a round
    #[arg(long, value_name = "N", default_value_t = 1000)]
    trips: u32,
    /// Connections of a round
    #[arg(long, value_name = "N", default_value_t = 200)]
    connections: u32,
    /// Milliseconds of a transfer
    #[arg(long, value_name = "N", default_value_t = 200)]
    transfer: u64,
    /// Networks [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    networks: Vec<Network>,
    /// Paths; vxlan and direct choose the backend of each lab [default: all, but one backend for each network]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    paths: Vec<Path>,
    /// Measures [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    measures: Vec<Measure>,
    /// Numbers of policies in the labs, all about the measured pods
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,1000")]
    policies: Vec<usize>,
    /// Leave out the labs with the fast path
    #[arg(long)]
    no_fast_path: bool,
    /// Measure 0, 1, 100 and 1,000 policies and both backends in each lab
    #[arg(long, conflicts_with_all = ["paths", "policies"])]
    all: bool,
    /// Show which chains and, where perf runs, which kernel functions take the time of a round trip
    #[arg(long)]
    profile: bool,
    /// Measure under real-time scheduling (chrt --rr 1), for a machine that has other work
    #[arg(long)]
    rt: bool,
    /// Few rounds: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a promise is missed or was not measured
    #[arg(long)]
    enforce: bool,
    /// Write the measurements as JSON to this file
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Arguments {
    fn has_network(&self, network: Network) -> bool {
        self.networks.is_empty() || self.networks.contains(&network)
    }

    fn has_path(&self, path: Path) -> bool {
        self.paths.is_empty() || self.paths.contains(&path)
    }

    fn has_measure(&self, measure: Measure) -> bool {
        self.measures.is_empty() || self.measures.contains(&measure)
    }

    /// What the agents of a network's labs do: each number of policies without the fast path, and one policy with it.
    fn setups(&self) -> Vec<Setup> {
        let nftables = self.policies.iter().map(|policies| Setup::policies(*policies));
        nftables.chain((!self.no_fast_path).then_some(Setup::FAST)).collect()
    }

    /// The paths between the nodes of a network's labs: one lab each.
    fn between_nodes(&self, network: Network) -> Vec<Path> {
        let chosen: Vec<Path> =
            [Path::Vxlan, Path::Direct].into_iter().filter(|path| self.paths.contains(path)).collect();
        match chosen.is_empty() {
            false => chosen,
            true if self.all => vec![Path::Vxlan, Path::Direct],
            true => vec![network.between_nodes()],
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.rounds, arguments.trips, arguments.connections) = (2, 100, 20);
        (arguments.transfer, arguments.policies) = (20, vec![0, 1]);
    }
    if arguments.all {
        arguments.policies = vec![0, 1, 100, 1000];
    }
    outcome::run("podwire-bench-datapath", arguments.enforce, || bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<Targets> {
    println!("\ndatapath: what a packet costs, relative to the kernel alone");
    // A private /run keeps the labs and ledgers apart from this machine's.
    sys::unshare_mounts().context("create a mount namespace (this needs root)")?;
    sys::mount_tmpfs(File::new("/run")).context("mount a private /run")?;
    let sites = Sites::new(arguments)?;
    let cases = sites.cases(arguments)?;
    for case in &cases {
        check(case).with_context(|| format!("{}, {}", case.name(), case.path.name()))?;
    }
    if arguments.rt {
        // Agents and plugins keep their scheduling: they were started before.
        let chrt =
            Command::new("chrt").args(["--rr", "--pid", "1", &std::process::id().to_string()]).status();
        ensure!(chrt.context("start chrt")?.success(), "chrt failed");
    }
    let cpu = processor::last_cpu()?;
    let mut report = Report(cases.iter().map(Measured::new).collect());
    for round in 0..arguments.rounds {
        measure(arguments, round, cpu, &cases, &mut report)?;
    }
    for (case, measured) in cases.iter().zip(&mut report.0) {
        if !case.ends.nodes.is_empty() {
            measured.rules = Some(rules::trace(&case.ends).with_context(|| case.name())?);
        }
    }
    report.print();
    if arguments.profile {
        profile::print(&cases, &report, cpu)?;
    }
    if let Some(file) = &arguments.output {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let text = json!({ "kernel": kernel.trim(), "realtime": arguments.rt, "cases": report });
        fs::write(file, format!("{text:#}\n")).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(if arguments.enforce { promise::check(&report) } else { Targets::default() })
}

/// Checks that a path works, and that policies are enforced on it.
fn check(case: &Case) -> Result<()> {
    case.ends.wait_until_ready()?;
    if case.path == Path::SameNode {
        ensure!(
            case.ends.next_port_refuses()? == (case.setup.policies == 0),
            "the wrong policies are enforced"
        );
    }
    Ok(())
}

/// Measures all cases once. Each round starts with another case, so that none always follows the same one.
fn measure(
    arguments: &Arguments,
    round: usize,
    cpu: usize,
    cases: &[Case],
    report: &mut Report,
) -> Result<()> {
    for measure in Measure::ALL.into_iter().filter(|measure| arguments.has_measure(*measure)) {
        let is_transfer = matches!(measure, Measure::Stream | Measure::Streams);
        if is_transfer && !round.is_multiple_of(TRANSFER_ROUNDS) {
            continue;
        }
        for offset in 0..cases.len() {
            let at = (round + offset) % cases.len();
            let case = &cases[at];
            let samples = sample(arguments, measure, &case.ends, cpu);
            let samples = samples.with_context(|| format!("{}, {}", case.name(), case.path.name()))?;
            samples.into_iter().for_each(|(measure, sample)| report.0[at].add(measure, sample));
        }
    }
    Ok(())
}

/// Measures a path once.
fn sample(arguments: &Arguments, measure: Measure, ends: &Ends, cpu: usize) -> Result<Vec<(Measure, f64)>> {
    let time = Duration::from_millis(arguments.transfer);
    Ok(match measure {
        Measure::RoundTrip => vec![(measure, ends.round_trips(arguments.trips, cpu)?)],
        Measure::Connection => vec![(measure, ends.connections(arguments.connections, cpu)?)],
        Measure::Streams => vec![(measure, ends.transfer(STREAMS, time)?.gigabits_per_second)],
        Measure::Stream => {
            let transfer = ends.transfer(1, time)?;
            vec![(measure, transfer.gigabits_per_second), (Measure::Cpu, transfer.cpu_seconds_per_gigabyte)]
        }
        Measure::Cpu => Vec::new(),
    })
}
