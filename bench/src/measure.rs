//! Runs a scenario: starts the nodes, warms them up, lets the variants take turns, and checks the nodes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::node::Node;
use crate::protocol::{Counts, Invocation, Pods, Request, Response, Verb};
use crate::report::Outcome;
use crate::scenario::{Actor, Scenario, Work};
use crate::statistics::{Distribution, Row};
use crate::target::TARGETS;

/// Operations before the measurement.
const WARM_UP: u32 = 3;
/// A block has this many operations for each thread, so that its start and its end have little weight.
const BLOCK: usize = 4;
/// A variant reports at most this many faults.
const MAX_FAULTS: usize = 10;

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory with the Go plugins.
    pub peer: PathBuf,
    /// The directory with Podwire's plugins.
    pub ours: PathBuf,
    /// The `podwire` program.
    pub tool: PathBuf,
    /// The floor program.
    pub floor: PathBuf,
    /// The directory for the nodes' files.
    pub disk: PathBuf,
    /// Operations for each verb and variant; 0 means the scenario's own number.
    pub ops: u32,
    /// Pods on a full node.
    pub pods: u32,
    /// Real-time scheduling.
    pub realtime: bool,
    /// Few operations.
    pub quick: bool,
}

impl Options {
    fn ops(&self, scenario: &Scenario) -> u32 {
        match (self.ops, self.quick, scenario.at_once) {
            (0, false, _) => scenario.ops,
            (0, true, 1) => 10,
            (0, true, at_once) => at_once as u32,
            (ops, ..) => ops,
        }
    }

    fn invocation(&self, actor: Actor, work: Work) -> Invocation {
        let of = |folder: &PathBuf| match work {
            Work::HostLocal { .. } => Invocation::Ipam { folder: folder.clone() },
            _ => Invocation::Plugins { folder: folder.clone() },
        };
        match actor {
            Actor::Peer => of(&self.peer),
            Actor::Ours | Actor::Routed => of(&self.ours),
            Actor::Floor => Invocation::Program { file: self.floor.clone() },
            Actor::Runtime => Invocation::Runtime { folder: self.ours.clone() },
            Actor::Tool => Invocation::Tool { file: self.tool.clone(), folder: self.ours.clone() },
        }
    }

    /// The files and directories that this actor needs.
    fn needs(&self, actor: Actor) -> Vec<&PathBuf> {
        match actor {
            Actor::Peer => vec![&self.peer],
            Actor::Ours => vec![&self.ours],
            Actor::Floor => vec![&self.floor],
            Actor::Runtime => vec![&self.ours],
            Actor::Tool | Actor::Routed => vec![&self.ours, &self.tool],
        }
    }
}

/// A variant with its node.
struct Runner {
    name: &'static str,
    node: Node,
    /// The first pod that was never used.
    next: u32,
    /// The attached pod of each address.
    owners: HashMap<String, u32>,
    before: Counts,
    samples: Vec<Samples>,
    faults: Vec<String>,
}

struct Samples {
    verb: String,
    micros: Vec<f64>,
    seconds: f64,
}

/// Measures a scenario.
pub fn run(scenario: &Scenario, options: &Options) -> Result<Outcome> {
    let (mut runners, mut faults, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for variant in scenario.variants {
        if let Some(missing) = options.needs(variant.actor).into_iter().find(|path| !path.exists()) {
            left_out.push(format!("{}: {} does not exist", variant.name, missing.display()));
            continue;
        }
        let invocation = options.invocation(variant.actor, scenario.work);
        let network = variant.actor.network(scenario.work);
        let allocator = (variant.actor == Actor::Routed).then(|| options.tool.clone());
        let node = Node::start(invocation, network, allocator, &options.disk, options.realtime)?;
        let (before, samples) = (Counts::default(), Vec::new());
        let mut runner = Runner {
            name: variant.name,
            node,
            next: 1,
            owners: HashMap::new(),
            before,
            samples,
            faults: Vec::new(),
        };
        let existing = if variant.full { options.pods } else { 0 };
        match runner.prepare(scenario.work, existing).with_context(|| variant.name) {
            Ok(()) => runners.push(runner),
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    let ops = options.ops(scenario);
    let measured = match scenario.work {
        Work::Version(plugins) => versions(&mut runners, plugins, ops),
        _ => rounds(&mut runners, scenario, ops),
    };
    if let Err(error) = measured {
        faults.push(format!("{error:#}"));
    }
    for runner in &mut runners {
        runner.finish().unwrap_or_else(|error| runner.fault(format!("{error:#}")));
    }
    let rows = rows(&runners);
    let verdicts = TARGETS.iter().filter(|t| t.scenario == scenario.name).map(|t| t.judge(&rows)).collect();
    faults.extend(runners.iter_mut().flat_map(|runner| std::mem::take(&mut runner.faults)));
    Ok(Outcome {
        scenario: scenario.name.into(),
        about: scenario.about.into(),
        at_once: scenario.at_once,
        pods: if scenario.variants.iter().any(|v| v.full) { options.pods } else { 0 },
        rows,
        verdicts,
        left_out,
        faults,
    })
}

/// The order of the variants in a round. It rotates from round to round and is reversed after a full rotation, so that
/// no variant is always the first or always follows the same one.
fn turns(variants: usize, round: usize) -> Vec<usize> {
    let forward = (round / variants.max(1)).is_multiple_of(2);
    (0..variants).map(|n| (round + if forward { n } else { variants - n }) % variants).collect()
}

fn versions(runners: &mut [Runner], plugins: &[&str], ops: u32) -> Result<()> {
    for plugin in plugins {
        let verb = format!("VERSION {plugin}");
        for round in 0..(ops + WARM_UP) as usize {
            for turn in turns(runners.len(), round) {
                let runner = &mut runners[turn];
                let response = runner.node.request(Request::Version { plugin: plugin.to_string() })?;
                if round >= WARM_UP as usize {
                    runner.record(&verb, &response);
                }
            }
        }
    }
    Ok(())
}

fn rounds(runners: &mut [Runner], scenario: &Scenario, ops: u32) -> Result<()> {
    let block = if scenario.at_once == 1 { 1 } else { (scenario.at_once * BLOCK) as u32 };
    let has_pods = matches!(scenario.work, Work::Attach(_));
    if has_pods {
        for runner in runners.iter_mut() {
            runner.node.request(Request::CreateNamespaces { pods: runner.next..runner.next + ops })?;
        }
    }
    for (round, at) in (0..ops).step_by(block as usize).enumerate() {
        let size = block.min(ops - at);
        for verb in [Verb::Add, Verb::Del] {
            for turn in turns(runners.len(), round) {
                let runner = &mut runners[turn];
                let first = runner.next + at;
                runner.verb(verb, first..first + size, scenario.at_once)?;
                if has_pods && round == 0 {
                    runner.check(verb, first);
                }
                rest(Duration::from_millis(scenario.rest));
            }
        }
    }
    // The namespaces stay until the node is checked for leftovers: removing them would remove some leftovers too.
    runners.iter_mut().for_each(|runner| runner.next += ops);
    Ok(())
}

/// Gives the kernel time, and keeps every CPU busy meanwhile. The hypervisor gives the CPUs of an idle virtual machine
/// to others. The next operation would wait for them, which weighs more in an operation of 1 ms than in one of 50.
fn rest(time: Duration) {
    let end = Instant::now() + time;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| {
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            });
        }
    });
}

impl Runner {
    /// Brings the node to the state before the measurement, with this many attached pods.
    fn prepare(&mut self, work: Work, existing_pods: u32) -> Result<()> {
        match work {
            Work::Version(_) => {}
            Work::HostLocal { existing } => {
                self.node.request(Request::WriteLeases { leases: existing })?;
                self.warm_up()?;
            }
            Work::Attach(_) => {
                let pods = self.next..self.next + existing_pods;
                self.next = pods.end;
                self.node.request(Request::CreateNamespaces { pods: pods.clone() })?;
                let attached = self.node.request(Request::Run { verb: Verb::Add, pods, at_once: 2 })?;
                self.track_addresses(Verb::Add, &attached);
                fail_on_fault(&attached)?;
                let pods = self.next..self.next + WARM_UP;
                self.node.request(Request::CreateNamespaces { pods: pods.clone() })?;
                self.warm_up()?;
                self.node.request(Request::RemoveNamespaces { pods })?;
            }
        }
        self.before = self.node.request(Request::Count)?.counts.unwrap_or_default();
        Ok(())
    }

    /// Attaches and detaches some pods: the first one creates the bridge, the tables and the directories.
    fn warm_up(&mut self) -> Result<()> {
        for pod in self.next..self.next + WARM_UP {
            for verb in [Verb::Add, Verb::Del] {
                let response = self.node.request(Request::Run { verb, pods: pod..pod + 1, at_once: 1 })?;
                fail_on_fault(&response)?;
            }
        }
        self.next += WARM_UP;
        Ok(())
    }

    fn verb(&mut self, verb: Verb, pods: Pods, at_once: usize) -> Result<()> {
        let response = self.node.request(Request::Run { verb, pods, at_once })?;
        self.track_addresses(verb, &response);
        self.record(verb.text(), &response);
        Ok(())
    }

    /// Checks that no two attached pods have the same address.
    fn track_addresses(&mut self, verb: Verb, response: &Response) {
        for op in response.ops.iter().filter(|op| op.fault.is_none()) {
            match (verb, &op.address) {
                (Verb::Add, Some(address)) => {
                    if let Some(other) = self.owners.insert(address.clone(), op.pod) {
                        self.fault(format!("pods {other} and {} both have {address}", op.pod));
                    }
                }
                (Verb::Add, None) => {}
                (Verb::Del, _) => self.owners.retain(|_, pod| *pod != op.pod),
            }
        }
    }

    fn record(&mut self, verb: &str, response: &Response) {
        for fault in response.ops.iter().filter_map(|op| op.fault.clone()) {
            self.fault(fault);
        }
        let at = match self.samples.iter().position(|samples| samples.verb == verb) {
            Some(at) => at,
            None => {
                self.samples.push(Samples { verb: verb.into(), micros: Vec::new(), seconds: 0.0 });
                self.samples.len() - 1
            }
        };
        let samples = &mut self.samples[at];
        samples.micros.extend(response.ops.iter().filter(|op| op.fault.is_none()).map(|op| op.micros));
        samples.seconds += response.seconds;
    }

    fn check(&mut self, verb: Verb, pod: u32) {
        let request = match verb {
            Verb::Add => Request::CheckAttached { pod },
            Verb::Del => Request::CheckDetached { pod },
        };
        if let Err(error) = self.node.request(request) {
            self.fault(format!("{error:#}"));
        }
    }

    /// Checks that nothing is left of the measured pods. The kernel gets a minute for deferred work.
    fn finish(&mut self) -> Result<()> {
        let mut after = Counts::default();
        for _ in 0..1200 {
            after = self.node.request(Request::Count)?.counts.unwrap_or_default();
            if after == self.before {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if after != self.before {
            self.fault(format!("left behind: before {:?}, after {after:?}", self.before));
        }
        // Wait here: the kernel's work in the background would slow the next scenario.
        self.node.request(Request::RemoveNamespaces { pods: 1..self.next })?;
        Ok(())
    }

    fn fault(&mut self, fault: String) {
        match self.faults.len() {
            MAX_FAULTS => self.faults.push(format!("{}: and more faults", self.name)),
            0..MAX_FAULTS => self.faults.push(format!("{}: {fault}", self.name)),
            _ => {}
        }
    }
}

/// A variant whose operation fails before the measurement is not measured.
fn fail_on_fault(response: &Response) -> Result<()> {
    match response.ops.iter().find_map(|op| op.fault.as_ref()) {
        Some(fault) => anyhow::bail!("{fault}"),
        None => Ok(()),
    }
}

fn rows(runners: &[Runner]) -> Vec<Row> {
    let mut verbs: Vec<&str> = Vec::new();
    for samples in runners.iter().flat_map(|runner| &runner.samples) {
        if !verbs.contains(&samples.verb.as_str()) {
            verbs.push(&samples.verb);
        }
    }
    let row = |verb: &str, runner: &Runner| {
        let samples = runner.samples.iter().find(|samples| samples.verb == verb)?;
        let latency = Distribution::of(&samples.micros);
        let per_second = latency.count as f64 / samples.seconds;
        (latency.count > 0).then(|| Row {
            verb: verb.into(),
            variant: runner.name.into(),
            latency,
            per_second,
        })
    };
    verbs.iter().flat_map(|verb| runners.iter().filter_map(|runner| row(verb, runner))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_is_at_each_position_equally_often() {
        let rounds: Vec<Vec<usize>> = (0..6).map(|round| turns(3, round)).collect();
        for variant in 0..3 {
            for position in 0..3 {
                assert_eq!(rounds.iter().filter(|round| round[position] == variant).count(), 2);
            }
        }
        assert_eq!([turns(2, 0), turns(2, 1), turns(2, 2)], [[0, 1], [1, 0], [0, 1]]);
        assert!(turns(0, 3).is_empty());
    }
}
