//! Where dropped packets end: counted by pod and by what decided, and some of them shown to a listener.
//!
//! A rule that drops gives the packet a mark, the number of the reason, and leads to one chain for each direction. A packet
//! that passes never comes there, and a mark harms nobody on a packet that goes nowhere. Counts live in elements of sets
//! that no change of a policy touches, so they go on when chains are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwire_netlink::nft::{Element, Field, Rule, Table, Type, Value};
use podwire_policy::program::{self, Id, Outcome, Stage};
use podwire_policy::{Direction, Program};

use super::desired::{keyed, Elements, Holds, Wanted, WantedChain, WantedSet, HALVES};
use super::{base_chains, closed_connections, source_check};
use crate::dataplane::{Port, Premises};

/// The group of nfnetlink_log to which samples are shown. Others' programs begin to count at 0.
pub(crate) const GROUP: u16 = 20_557;
/// Samples of each chain in a second, and at once after some silence. A flood costs no more than these.
const RATE: u64 = 10;
const BURST: u32 = 20;

const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// The chain for what pods send with others' addresses, and what the listener is told of them.
pub(crate) const SPOOFED: &str = "spoofed";
/// The devices from which that came.
const SPOOFERS: &str = "spoofers";
/// Why that is dropped.
pub(crate) const NOT_ITS_OWN: &str = "sent with an address that is not the pod's own";
/// Why a pod in the guarded networks that is not in the program is silent.
pub(super) const UNKNOWN: &str = "the policies of the pod are not known yet";

/// Why a rule drops.
pub(super) fn by_rule(rule: &program::Rule) -> String {
    let origin = rule.origin.as_ref().map(ToString::to_string);
    format!("denied by {}", origin.unwrap_or_default())
}

/// Why a stage drops what no rule of it allows.
pub(super) fn by_isolation(stage: &Stage) -> String {
    format!("isolated by {}", stage.isolating.join(", "))
}

/// All reasons for which a program drops packets, by number. A number is kept from one program to the next.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    words: BTreeMap<u32, String>,
    numbers: BTreeMap<String, u32>,
    /// Those of each stage.
    stages: BTreeMap<Id, Vec<(Direction, u32)>>,
    /// Those that are there whatever the program.
    always: Vec<&'static str>,
    /// As elements, each with its words.
    elements: BTreeMap<Direction, Arc<Elements>>,
}

impl Reasons {
    /// Learns those of `program`, and forgets those of the one before.
    pub fn follow(&mut self, program: &Program, premises: &Premises) {
        let mut before = std::mem::take(&mut self.stages);
        let always = [UNKNOWN].into_iter().chain(premises.ends.then_some(closed_connections::CUT)).collect();
        let mut is_same = self.always == always;
        self.always = always;
        for chain in program.chains.values() {
            for id in &chain.stages {
                let Some(stage) = program.stages.get(id).filter(|_| !self.stages.contains_key(id)) else {
                    continue;
                };
                let known = before.remove_entry(id);
                is_same &= known.is_some();
                let (id, reasons) =
                    known.unwrap_or_else(|| (id.clone(), self.of_stage(stage, chain.direction)));
                self.stages.insert(id, reasons);
            }
        }
        if !is_same || !before.is_empty() {
            self.gather();
        }
    }

    fn of_stage(&mut self, stage: &Stage, direction: Direction) -> Vec<(Direction, u32)> {
        let denying = stage.rules.iter().filter(|rule| rule.outcome == Outcome::Drop).map(by_rule);
        let isolating = (stage.otherwise == Outcome::Drop).then(|| by_isolation(stage));
        let all: Vec<String> = denying.chain(isolating).collect();
        all.iter().map(|words| (direction, self.learn(words))).collect()
    }

    /// What is used, as elements; what is not is forgotten.
    fn gather(&mut self) {
        let mut used: BTreeSet<(Direction, u32)> = self.stages.values().flatten().copied().collect();
        for words in self.always.clone() {
            let number = self.learn(words);
            used.extend(DIRECTIONS.map(|direction| (direction, number)));
        }
        let numbers: BTreeSet<u32> = used.iter().map(|(_, number)| *number).collect();
        self.words.retain(|number, _| numbers.contains(number));
        self.numbers.retain(|_, number| numbers.contains(number));
        for direction in DIRECTIONS {
            let mine = used.iter().filter(|(of, _)| *of == direction);
            let element = |(_, number): &(Direction, u32)| {
                let words = self.words.get(number).map(String::as_str).unwrap_or_default();
                keyed(Arc::new(Element::key(Value::mark(*number)).comment(words)))
            };
            let elements = mine.map(element).collect();
            self.elements.insert(direction, Arc::new(elements));
        }
    }

    /// The number of a reason: always the same one, unless two reasons would have the same.
    fn learn(&mut self, words: &str) -> u32 {
        if let Some(number) = self.numbers.get(words) {
            return *number;
        }
        let mut number = hash(words);
        while number == 0 || self.words.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.words.insert(number, words.to_owned());
        self.numbers.insert(words.to_owned(), number);
        number
    }

    pub fn words(&self, number: u32) -> Option<&str> {
        self.words.get(&number).map(String::as_str)
    }

    /// What the rule matches is dropped for this reason.
    pub fn drop(&self, rule: Rule, direction: Direction, words: &str) -> Rule {
        let number = self.numbers.get(words).copied().unwrap_or_default();
        rule.set_mark(number).goto(chain(direction))
    }
}

/// FNV-1a, of 32 bits.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn chain(direction: Direction) -> String {
    format!("dropped_{direction}")
}

/// The set that counts by reason.
fn reasons_set(direction: Direction) -> String {
    format!("reasons_{direction}")
}

/// The sets that count by pod.
pub(super) fn pods_set(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "dropped_egress",
        Direction::Ingress => "dropped_ingress",
    }
}

/// The chains for both directions, and what they count in.
pub(super) fn build(wanted: &mut Wanted, premises: &Premises, reasons: &Reasons) {
    for direction in DIRECTIONS {
        let by_reason = reasons_set(direction);
        let elements = reasons.elements.get(&direction).cloned().unwrap_or_default();
        wanted.sets.insert(by_reason.clone(), WantedSet { holds: Holds::Counts(Type::Mark), elements });
        let mut rules = vec![Rule::new().in_set(&[Field::Mark], &by_reason)];
        for half in HALVES {
            let by_pod = half.name(pods_set(direction));
            rules.push(Rule::new().family(half.family).in_set(&[half.of_pod(direction)], &by_pod));
        }
        rules.extend(ending(premises, direction.to_string()));
        wanted.chains.insert(chain(direction), Arc::new(WantedChain { base: None, rules }));
    }
}

/// The chain for what pods of these ports send with others' addresses.
pub(super) fn spoofed(ports: &[&Port], premises: &Premises, wanted: &mut Wanted) {
    let devices = ports.iter().map(|port| Element::key(Value::ifname(&port.name)).comment(&port.pod));
    wanted.set(SPOOFERS.into(), Holds::Counts(Type::IfName), devices.collect());
    let mut rules = vec![Rule::new().in_set(&[Field::InterfaceIn], SPOOFERS)];
    rules.extend(ending(premises, SPOOFED.into()));
    wanted.chains.insert(SPOOFED.into(), Arc::new(WantedChain { base: None, rules }));
}

fn ending(premises: &Premises, prefix: String) -> Vec<Rule> {
    let sample = premises.samples.then(|| Rule::new().limit(RATE, BURST).log(GROUP, prefix));
    sample.into_iter().chain([Rule::new().drop()]).collect()
}

/// What a counting set counts by.
pub(crate) enum CountedBy {
    Reason(Direction),
    Pod(Direction),
    Spoofer,
}

/// All sets that count, with their tables.
pub(crate) fn counters() -> Vec<(Table, String, CountedBy)> {
    let mut all = Vec::new();
    for direction in DIRECTIONS {
        all.push((base_chains::TABLE, reasons_set(direction), CountedBy::Reason(direction)));
        for half in HALVES {
            let set = half.name(pods_set(direction));
            all.push((base_chains::TABLE, set, CountedBy::Pod(direction)));
        }
    }
    for table in [base_chains::TABLE, source_check::BRIDGES] {
        all.push((table, SPOOFERS.into(), CountedBy::Spoofer));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_keeps_its_number_and_no_two_have_the_same() {
        let mut reasons = Reasons::default();
        let first = reasons.learn("isolated by NetworkPolicy shop/db");
        assert_eq!(first, hash("isolated by NetworkPolicy shop/db"));
        // Two words of one hash (FNV-1a, 32 bits).
        let (one, other) = (reasons.learn("costarring"), reasons.learn("liquid"));
        assert_eq!(hash("costarring"), hash("liquid"));
        assert_ne!(one, other);
        assert_eq!((reasons.words(one), reasons.words(other)), (Some("costarring"), Some("liquid")));
        assert_eq!(reasons.learn("isolated by NetworkPolicy shop/db"), first);
    }
}
