//! From one world to all that can follow from it.

use std::collections::hash_map::DefaultHasher;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

use ipam::blocks::{Allocator, Error, Rules};
use ipam::moment::Moment;
use ipam::store::Store;

use crate::invariants;
use crate::stepwise::{Answer, Fate, Shelves, Stepwise};

/// What a node's program tells about itself: addresses that pods of it use.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    pub holds: Vec<(IpAddr, &'static str)>,
}

/// What a node does. It is run again and again, and must do the same each time.
pub type Program = fn(&Allocator<'_>, &Rules, &mut Diary) -> Result<(), Error>;

/// Who does what, and what may go wrong.
pub struct Scenario {
    pub name: &'static str,
    pub rules: Rules,
    /// Done by nobody in particular, before the nodes begin.
    pub before: Program,
    pub nodes: Vec<Program>,
    /// How many nodes may die, each at any operation.
    pub deaths: usize,
    /// How many answers of the store may be lost.
    pub lost_answers: usize,
    /// Handles that somebody still uses at the end if its node has not died.
    pub handles: &'static [&'static str],
}

/// A node: all answers that it got. `None` when it is dead.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Node {
    log: Rc<Vec<Answer>>,
    is_dead: bool,
    is_done: bool,
}

#[derive(Clone, Hash, PartialEq, Eq)]
struct World {
    shelves: Shelves,
    nodes: Vec<Node>,
    deaths: usize,
    lost_answers: usize,
}

/// What one node can be asked about a world.
pub struct Seen<'a> {
    pub scenario: &'a Scenario,
    pub shelves: &'a Shelves,
    /// For each node: its diary, and whether it is dead.
    pub diaries: Vec<(Diary, bool)>,
    pub is_over: bool,
}

/// Clocks of nodes differ, and stand still between two operations.
fn clock(node: u64, steps: u64) -> Moment {
    Moment::from_unix_nanos(1_787_405_600_000_000_000 + (node << 20) + steps)
}

pub fn allocator<'a>(store: &'a dyn Store, clock: impl Fn() -> Moment + 'a) -> Allocator<'a> {
    Allocator::new(store, clock).with_reclaim_age(0)
}

impl Scenario {
    /// Looks at every world, and returns how many there were.
    pub fn explore(&self) -> usize {
        let node = Node { log: Rc::default(), is_dead: false, is_done: false };
        let first = World {
            shelves: self.prepared(),
            nodes: vec![node; self.nodes.len()],
            deaths: self.deaths,
            lost_answers: self.lost_answers,
        };
        let mut seen = HashSet::new();
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            if !seen.insert(fingerprint(&world)) {
                continue;
            }
            let next = self.next_worlds(&world);
            let diaries = self.diaries(&world);
            let is_over = next.is_empty();
            invariants::hold(&Seen { scenario: self, shelves: &world.shelves, diaries, is_over });
            open.extend(next);
        }
        seen.len()
    }

    fn prepared(&self) -> Shelves {
        let whole = crate::stepwise::Whole(Shelves::default().into());
        let now = || clock(99, 0);
        (self.before)(&allocator(&whole, now), &self.rules, &mut Diary::default()).expect("preparations");
        whole.0.into_inner()
    }

    fn next_worlds(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        for (number, node) in world.nodes.iter().enumerate() {
            if node.is_dead || node.is_done {
                continue;
            }
            let (stepped, was_write) = self.step(world, number, Fate::Done);
            next.push(stepped);
            if was_write && world.lost_answers > 0 {
                let (mut stepped, _) = self.step(world, number, Fate::AnswerLost);
                stepped.lost_answers -= 1;
                next.push(stepped);
            }
            // To die before the first operation is not to have been there.
            if world.deaths > 0 && !node.log.is_empty() {
                let mut died = world.clone();
                died.nodes[number].is_dead = true;
                died.deaths -= 1;
                next.push(died);
            }
        }
        next
    }

    /// One node does one more operation. Whether it was a write.
    fn step(&self, world: &World, number: usize, fate: Fate) -> (World, bool) {
        let mut next = world.clone();
        let log = Rc::clone(&world.nodes[number].log);
        let store = Stepwise::new(&log, &mut next.shelves, fate);
        let cut_off = self.run(number, &store, &mut Diary::default());
        let was_write = store.was_write.get();
        let answer = store.next.into_inner();
        assert_eq!(cut_off, answer.is_some(), "a program that is cut off ends");
        match answer {
            Some(answer) => {
                let mut log = (*log).clone();
                log.push(answer);
                next.nodes[number].log = Rc::new(log);
            }
            None => next.nodes[number].is_done = true,
        }
        (next, was_write)
    }

    /// Runs a node's program. Whether it was cut off.
    fn run(&self, number: usize, store: &Stepwise<'_>, diary: &mut Diary) -> bool {
        let now = || clock(number as u64, store.steps());
        match self.nodes[number](&allocator(store, now), &self.rules, diary) {
            Err(Error::Store(error)) if Stepwise::is_cut_off(&error) => true,
            Err(Error::Busy { what }) => panic!("{}: node {number} gave up: {what}", self.name),
            _ => false,
        }
    }

    fn diaries(&self, world: &World) -> Vec<(Diary, bool)> {
        let read = |(number, node): (usize, &Node)| {
            let (mut diary, mut shelves) = (Diary::default(), world.shelves.clone());
            self.run(number, &Stepwise::new(&node.log, &mut shelves, Fate::Done), &mut diary);
            (diary, node.is_dead)
        };
        world.nodes.iter().enumerate().map(read).collect()
    }
}

/// 128 bits of a world: two that differ will not be taken for the same.
fn fingerprint(world: &World) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let first = hasher.finish();
    7.hash(&mut hasher);
    world.hash(&mut hasher);
    (first, hasher.finish())
}
