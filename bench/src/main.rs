//! podwire-bench: compares plugin directories operation by operation, with targets and the kernel's floor.
//!
//! It executes plugins as container runtimes do, each variant on a separate node (namespaces that end with the
//! process). The variants take turns, so that noise of the machine affects all of them. README.md describes the method
//! and the numbers.

mod chain;
mod copies;
mod exec;
mod inspect;
mod measure;
mod node;
mod protocol;
mod report;
mod scenario;
mod statistics;
mod target;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use clap::Parser;

use crate::measure::Options;
use crate::report::{proc_line, Report};
use crate::scenario::{Scenario, SCENARIOS};
use crate::target::TARGETS;

/// The hidden subcommand that makes this program a node's worker.
const WORKER: &str = "node";
/// Pods on a full node, and with `--quick`.
const FULL: u32 = 1000;
const FULL_QUICK: u32 = 50;

/// Compares CNI plugins operation by operation: latency, throughput, growth, and distance from the kernel's own cost.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench", version)]
struct Arguments {
    /// Scenarios to run [default: all]
    scenarios: Vec<String>,
    /// List the scenarios and their targets
    #[arg(long)]
    list: bool,
    /// Directory with the plugins to compare with
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/cni")]
    peer: PathBuf,
    /// Directory with Podwire's plugins
    #[arg(long, value_name = "DIR", default_value = "dist/cni")]
    ours: PathBuf,
    /// The podwire program, for the variants tool and routed [default: podwire next to the directory of --ours]
    #[arg(long, value_name = "FILE")]
    tool: Option<PathBuf>,
    /// The floor program [default: podwire-floor next to this program]
    #[arg(long, value_name = "FILE")]
    floor: Option<PathBuf>,
    /// Operations for each verb and variant [default: the scenario's own number]
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    ops: u32,
    /// Pods on a full node, in the growth scenarios (a bridge has at most 1023 ports) [default: 1000]
    #[arg(long, value_name = "N")]
    pods: Option<u32>,
    /// Few operations and small nodes: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Run all variants under real-time scheduling (chrt -r 1), for a machine that has other work
    #[arg(long)]
    rt: bool,
    /// Exit with status 1 if a target is missed or was not measured
    #[arg(long)]
    enforce: bool,
    /// Write the report as JSON to this file
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Directory for the nodes' files during the run; on a disk, like /var/lib on a node
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    state_dir: PathBuf,
}

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some(WORKER) => worker::main().map(|()| true),
        _ => bench(&Arguments::parse()),
    };
    match done {
        Ok(success) => ExitCode::from(u8::from(!success)),
        Err(error) => {
            eprintln!("podwire-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the chosen scenarios. Returns false if a check failed or an enforced target was missed.
fn bench(arguments: &Arguments) -> Result<bool> {
    let chosen = choose(&arguments.scenarios)?;
    if arguments.list {
        chosen.iter().for_each(|scenario| list(scenario));
        return Ok(true);
    }
    require(arguments.rt)?;
    let options = options(arguments)?;
    let before = proc_line("/proc/loadavg");
    let mut outcomes = Vec::new();
    for scenario in chosen {
        eprintln!("podwire-bench: {} …", scenario.name);
        let outcome = measure::run(scenario, &options).with_context(|| scenario.name)?;
        print!("{}", outcome.table(scenario));
        outcomes.push(outcome);
    }
    let met = outcomes.iter().flat_map(|o| &o.verdicts).filter(|verdict| verdict.met).count();
    let all = outcomes.iter().map(|o| o.verdicts.len()).sum::<usize>();
    let has_no_fault = outcomes.iter().all(|o| o.faults.is_empty());
    println!("\n{met} of {all} targets met{}", if has_no_fault { "" } else { "; there were faults" });
    let report = Report {
        tool: concat!("podwire-bench ", env!("CARGO_PKG_VERSION")),
        kernel: proc_line("/proc/sys/kernel/osrelease"),
        cpus: std::thread::available_parallelism()?.get(),
        load: [before, proc_line("/proc/loadavg")],
        realtime: options.realtime,
        quick: options.quick,
        outcomes,
    };
    if let Some(file) = &arguments.output {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(has_no_fault && (met == all || !arguments.enforce))
}

fn choose(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if names.is_empty() {
        return Ok(SCENARIOS.iter().collect());
    }
    let find = |name: &String| {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == name);
        found.with_context(|| format!("no scenario {name}; podwire-bench --list shows them"))
    };
    names.iter().map(find).collect()
}

fn list(scenario: &Scenario) {
    println!("{:18}{}", scenario.name, scenario.about);
    for target in TARGETS.iter().filter(|target| target.scenario == scenario.name) {
        println!("{:20}{}", "", target.text());
    }
}

fn require(realtime: bool) -> Result<()> {
    if podwire_netlink::sys::user_id() != 0 {
        bail!("creating namespaces needs root");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).exists());
    let tools =
        ["unshare", "mount", "cp", "sync", "nft", "ping"].into_iter().chain(realtime.then_some("chrt"));
    match tools.into_iter().find(|tool| !has(tool)) {
        Some(tool) => bail!("{tool} is needed and not installed"),
        None => Ok(()),
    }
}

fn options(arguments: &Arguments) -> Result<Options> {
    let absolute = |path: &Path| std::path::absolute(path);
    let ours = absolute(&arguments.ours)?;
    let own = std::env::current_exe()?;
    let tool = arguments.tool.clone().unwrap_or_else(|| ours.with_file_name("podwire"));
    let floor = arguments.floor.clone().unwrap_or_else(|| own.with_file_name("podwire-floor"));
    Ok(Options {
        peer: absolute(&arguments.peer)?,
        tool: absolute(&tool)?,
        floor: absolute(&floor)?,
        ours,
        disk: absolute(&arguments.state_dir)?,
        ops: arguments.ops,
        pods: arguments.pods.unwrap_or(if arguments.quick { FULL_QUICK } else { FULL }),
        realtime: arguments.rt,
        quick: arguments.quick,
    })
}
