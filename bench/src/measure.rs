//! Running a scenario: nodes, warm-up, rounds in which the variants take turns, checks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::node::Node;
use crate::order::{Answer, Order, Pods, Tally, Verb, Way};
use crate::report::{Outcome, Row};
use crate::scenario::{Actor, Scenario, Work};
use crate::statistics::Distribution;
use crate::target::TARGETS;

const WARM_UP: u32 = 3;
/// Operations in a block, a worker: enough for the start and the end of a block to weigh little.
const BLOCK: usize = 4;
/// More of the same would only hide the first.
const MOST_FAULTS: usize = 10;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder with the Go plugins.
    pub peer: PathBuf,
    /// The folder with our plugins.
    pub ours: PathBuf,
    /// Our `podwire`.
    pub tool: PathBuf,
    /// The floor program.
    pub floor: PathBuf,
    /// Where nodes keep files.
    pub disk: PathBuf,
    /// Operations a verb and variant; 0 is the scenario's own number.
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

    fn way(&self, actor: Actor, work: Work) -> Way {
        let of = |folder: &PathBuf| match work {
            Work::HostLocal { .. } => Way::Ipam { folder: folder.clone() },
            _ => Way::Plugins { folder: folder.clone() },
        };
        match actor {
            Actor::Peer => of(&self.peer),
            Actor::Ours | Actor::Routed => of(&self.ours),
            Actor::Floor => Way::Program { file: self.floor.clone() },
            Actor::Runtime => Way::Runtime { folder: self.ours.clone() },
            Actor::Tool => Way::Tool { file: self.tool.clone(), folder: self.ours.clone() },
        }
    }

    /// What has to be there for this actor.
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

/// A variant at work.
struct Runner {
    name: &'static str,
    node: Node,
    /// The next pod that was never used.
    next: u32,
    /// Which pod has which address now.
    owners: HashMap<String, u32>,
    before: Tally,
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
            left_out.push(format!("{}: {} is not there", variant.name, missing.display()));
            continue;
        }
        let way = options.way(variant.actor, scenario.work);
        let network = variant.actor.network(scenario.work);
        let allocator = (variant.actor == Actor::Routed).then(|| options.tool.clone());
        let node = Node::start(way, network, allocator, &options.disk, options.realtime)?;
        let (before, samples) = (Tally::default(), Vec::new());
        let mut runner = Runner {
            name: variant.name,
            node,
            next: 1,
            owners: HashMap::new(),
            before,
            samples,
            faults: Vec::new(),
        };
        let crowd = if variant.crowded { options.pods } else { 0 };
        match runner.prepare(scenario.work, crowd).with_context(|| variant.name) {
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
        pods: if scenario.variants.iter().any(|v| v.crowded) { options.pods } else { 0 },
        rows,
        verdicts,
        left_out,
        faults,
    })
}

/// The order of the variants in a round. It changes from round to round, first by rotating and then by
/// turning round, so that none always comes first or always follows the same other.
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
                let answer = runner.node.ask(Order::Version { plugin: plugin.to_string() })?;
                if round >= WARM_UP as usize {
                    runner.note(&verb, &answer);
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
            runner.node.ask(Order::Make { pods: runner.next..runner.next + ops })?;
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
    // The namespaces stay until the node has been searched for leftovers: removing them would hide some.
    runners.iter_mut().for_each(|runner| runner.next += ops);
    Ok(())
}

/// Gives the kernel time, and keeps every processor awake meanwhile: a virtual machine that sleeps loses its place on
/// its host's processors, and the next operation pays for that, one of one millisecond far more than one of fifty.
fn rest(time: Duration) {
    let end = Instant::now() + time;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            });
        }
    });
}

impl Runner {
    /// Brings the node to the state in which it is measured.
    fn prepare(&mut self, work: Work, crowd: u32) -> Result<()> {
        match work {
            Work::Version(_) => {}
            Work::HostLocal { taken } => {
                self.node.ask(Order::Seed { leases: taken })?;
                self.warm_up()?;
            }
            Work::Attach(_) => {
                let pods = self.next..self.next + crowd;
                self.next = pods.end;
                self.node.ask(Order::Make { pods: pods.clone() })?;
                let attached = self.node.ask(Order::Run { verb: Verb::Add, pods, at_once: 2 })?;
                self.owned(Verb::Add, &attached);
                complain(&attached)?;
                let pods = self.next..self.next + WARM_UP;
                self.node.ask(Order::Make { pods: pods.clone() })?;
                self.warm_up()?;
                self.node.ask(Order::Remove { pods })?;
            }
        }
        self.before = self.node.ask(Order::Count)?.tally.unwrap_or_default();
        Ok(())
    }

    /// The first pod creates the bridge, the tables and the directories: that is not measured.
    fn warm_up(&mut self) -> Result<()> {
        for pod in self.next..self.next + WARM_UP {
            for verb in [Verb::Add, Verb::Del] {
                let answer = self.node.ask(Order::Run { verb, pods: pod..pod + 1, at_once: 1 })?;
                complain(&answer)?;
            }
        }
        self.next += WARM_UP;
        Ok(())
    }

    fn verb(&mut self, verb: Verb, pods: Pods, at_once: usize) -> Result<()> {
        let answer = self.node.ask(Order::Run { verb, pods, at_once })?;
        self.owned(verb, &answer);
        self.note(verb.text(), &answer);
        Ok(())
    }

    /// No two pods may have the same address at the same time.
    fn owned(&mut self, verb: Verb, answer: &Answer) {
        for op in answer.ops.iter().filter(|op| op.fault.is_none()) {
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

    fn note(&mut self, verb: &str, answer: &Answer) {
        for fault in answer.ops.iter().filter_map(|op| op.fault.clone()) {
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
        samples.micros.extend(answer.ops.iter().filter(|op| op.fault.is_none()).map(|op| op.micros));
        samples.seconds += answer.seconds;
    }

    fn check(&mut self, verb: Verb, pod: u32) {
        let order = match verb {
            Verb::Add => Order::Look { pod },
            Verb::Del => Order::Gone { pod },
        };
        if let Err(error) = self.node.ask(order) {
            self.fault(format!("{error:#}"));
        }
    }

    /// Nothing may be left of the measured pods. The kernel gets a minute for what it does later.
    fn finish(&mut self) -> Result<()> {
        let mut after = Tally::default();
        for _ in 0..1200 {
            after = self.node.ask(Order::Count)?.tally.unwrap_or_default();
            if after == self.before {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if after != self.before {
            self.fault(format!("left behind: before {:?}, after {after:?}", self.before));
        }
        // The kernel takes namespaces down in the background: not in the next scenario's time.
        self.node.ask(Order::Remove { pods: 1..self.next })?;
        Ok(())
    }

    fn fault(&mut self, fault: String) {
        match self.faults.len() {
            MOST_FAULTS => self.faults.push(format!("{}: more like these", self.name)),
            0..MOST_FAULTS => self.faults.push(format!("{}: {fault}", self.name)),
            _ => {}
        }
    }
}

/// An operation that fails before anything is measured ends the variant.
fn complain(answer: &Answer) -> Result<()> {
    match answer.ops.iter().find_map(|op| op.fault.as_ref()) {
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
    fn every_variant_has_every_place() {
        let rounds: Vec<Vec<usize>> = (0..6).map(|round| turns(3, round)).collect();
        for variant in 0..3 {
            for place in 0..3 {
                assert_eq!(rounds.iter().filter(|round| round[place] == variant).count(), 2);
            }
        }
        assert_eq!([turns(2, 0), turns(2, 1), turns(2, 2)], [[0, 1], [1, 0], [0, 1]]);
        assert!(turns(0, 3).is_empty());
    }
}
