//! Explores all worlds that can follow from a first one.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::rc::Rc;

use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Error, Rules};

use crate::invariants;
use crate::stepwise::{Answer, Counted, Operation, Stepwise, StoreState, Whole};

/// The addresses that a node's pods use, with their handles, as its program records them.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    pub holds: Vec<(IpAddr, &'static str)>,
}

/// A node's program. It is run repeatedly and must be deterministic.
pub type Program = fn(&Allocator<'_>, &Rules, &mut Diary) -> Result<(), Error>;

/// The programs of all nodes, and the faults.
pub struct Scenario {
    pub name: &'static str,
    pub rules: Rules,
    /// The initial records.
    pub left_behind: &'static [(&'static str, &'static str)],
    /// Operations before the nodes begin.
    pub before: Program,
    pub nodes: Vec<Program>,
    /// How many nodes may die, each after any of its writes.
    pub deaths: usize,
    /// How many responses of the store may be lost.
    pub lost_answers: usize,
    /// How often a node may be preempted before it is done. Without a bound there would be no end: with an adversarial
    /// scheduler, two nodes can make each other retry forever.
    pub interruptions: usize,
    /// All handles that the programs use.
    pub handles: &'static [&'static str],
}

/// The number of a known value.
type Number = usize;

/// Gives equal values the same number.
struct Numbers<T> {
    numbers: HashMap<Rc<T>, Number>,
    things: Vec<Rc<T>>,
}

impl<T: Hash + Eq> Numbers<T> {
    fn new() -> Numbers<T> {
        Numbers { numbers: HashMap::new(), things: Vec::new() }
    }

    fn of(&mut self, thing: T) -> Number {
        if let Some(number) = self.numbers.get(&thing) {
            return *number;
        }
        let (thing, number) = (Rc::new(thing), self.things.len());
        self.things.push(Rc::clone(&thing));
        self.numbers.insert(thing, number);
        number
    }
}

/// A node in a world. Its log determines its state.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    log: Option<Number>,
    is_killed: bool,
    is_done: bool,
    has_just_written: bool,
}

impl Node {
    fn can_go_on(&self) -> bool {
        !self.is_killed && !self.is_done
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    state: Number,
    nodes: Vec<Node>,
    /// The node of the last operation.
    running: Option<usize>,
    interruptions: usize,
    deaths: usize,
    lost_answers: usize,
}

/// A node's next operation and its diary, which follow from its log.
#[derive(Clone)]
struct Plan {
    next: Option<Operation>,
    diary: Diary,
}

struct Explorer<'a> {
    scenario: &'a Scenario,
    states: Numbers<StoreState>,
    /// A log is another log with one more response.
    logs: Numbers<(Option<Number>, Answer)>,
    plans: HashMap<(usize, Option<Number>), Rc<Plan>>,
}

/// The time of the initial operations.
pub const BEGINNING: Timestamp = Timestamp::from_unix_nanos(1_787_405_599_000_000_000);

/// The nodes' clocks differ, and do not advance between two operations.
fn clock(node: u64, steps: u64) -> Timestamp {
    Timestamp::from_unix_nanos(1_787_405_600_000_000_000 + (node << 20) + steps)
}

pub fn allocator<'a>(store: &'a dyn Store, clock: impl Fn() -> Timestamp + 'a) -> Allocator<'a> {
    Allocator::new(store, clock).with_reclaim_age(0)
}

impl Scenario {
    /// Examines every world. Returns their number.
    pub fn explore(&self, counted: Counted) -> usize {
        let whole = Whole(StoreState::new(counted).into());
        for (key, value) in self.left_behind {
            whole.create(key, value.as_bytes()).expect("preparations");
        }
        let now = || BEGINNING;
        (self.before)(&allocator(&whole, now), &self.rules, &mut Diary::default()).expect("preparations");
        let mut explorer =
            Explorer { scenario: self, states: Numbers::new(), logs: Numbers::new(), plans: HashMap::new() };
        let node = Node { log: None, is_killed: false, is_done: false, has_just_written: false };
        let state = explorer.states.of(whole.0.into_inner());
        explorer.explore(World {
            state,
            nodes: vec![node; self.nodes.len()],
            running: None,
            interruptions: self.interruptions,
            deaths: self.deaths,
            lost_answers: self.lost_answers,
        })
    }
}

impl Explorer<'_> {
    fn explore(&mut self, first: World) -> usize {
        let (mut seen, mut looked_at, mut ends) = (HashSet::new(), HashSet::new(), HashSet::new());
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            let plans: Vec<Rc<Plan>> =
                (0..world.nodes.len()).map(|node| self.plan(node, world.nodes[node].log)).collect();
            let holds: Vec<_> = plans.iter().flat_map(|plan| plan.diary.holds.clone()).collect();
            if looked_at.insert((world.state, holds.clone())) {
                invariants::hold(self.scenario, &self.states.things[world.state], &holds);
            }
            let next = self.next_worlds(&world, &plans);
            if next.is_empty() && ends.insert(world.state) {
                invariants::nothing_is_lost(self.scenario, &self.states.things[world.state]);
            }
            open.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        }
        seen.len()
    }

    fn next_worlds(&mut self, world: &World, plans: &[Rc<Plan>]) -> Vec<World> {
        let mut next = Vec::new();
        for (number, node) in world.nodes.iter().enumerate() {
            let interrupted =
                world.running.is_some_and(|other| other != number && world.nodes[other].can_go_on());
            if !node.can_go_on() || (interrupted && world.interruptions == 0) {
                continue;
            }
            let mut world = world.clone();
            world.running = Some(number);
            world.interruptions -= usize::from(interrupted);
            let Some(operation) = &plans[number].next else {
                world.nodes[number].is_done = true;
                next.push(world);
                continue;
            };
            let stepped = self.step(&world, number, operation, false);
            next.push(stepped);
            if operation.is_write() && world.lost_answers > 0 {
                world.lost_answers -= 1;
                next.push(self.step(&world, number, operation, true));
                world.lost_answers += 1;
            }
            // Dying after a read is the same as dying before it.
            if world.deaths > 0 && node.has_just_written {
                world.nodes[number].is_killed = true;
                world.deaths -= 1;
                next.push(world);
            }
        }
        next
    }

    /// One node does one more operation.
    fn step(&mut self, world: &World, number: usize, operation: &Operation, is_lost: bool) -> World {
        let mut state = (*self.states.things[world.state]).clone();
        let answer = state.apply(operation);
        let answer = if is_lost { operation.unanswered("answer lost") } else { answer };
        let mut next = world.clone();
        if operation.is_write() {
            next.state = self.states.of(state);
        }
        let node = &mut next.nodes[number];
        node.log = Some(self.logs.of((node.log, answer)));
        node.has_just_written = operation.is_write();
        next
    }

    /// Runs a node's program against its log, if the result is not known yet.
    fn plan(&mut self, number: usize, log: Option<Number>) -> Rc<Plan> {
        if let Some(plan) = self.plans.get(&(number, log)) {
            return Rc::clone(plan);
        }
        let (mut answers, mut at) = (Vec::new(), log);
        while let Some(place) = at {
            let (before, answer) = &*self.logs.things[place];
            answers.push(answer.clone());
            at = *before;
        }
        answers.reverse();
        let store = Stepwise::new(answers);
        let now = || clock(number as u64, store.steps());
        let (mut diary, name) = (Diary::default(), self.scenario.name);
        let program = self.scenario.nodes[number];
        match program(&allocator(&store, now), &self.scenario.rules, &mut diary) {
            Err(Error::Busy { what }) => panic!("{name}: node {number} gave up: {what}"),
            Err(Error::Store(_)) | Ok(()) => {}
            Err(error) => panic!("{name}: node {number}: {error}"),
        }
        let plan = Rc::new(Plan { next: store.next.take(), diary });
        self.plans.insert((number, log), Rc::clone(&plan));
        plan
    }
}
