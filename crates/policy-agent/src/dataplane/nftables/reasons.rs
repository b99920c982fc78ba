//! The reasons for drops, each with a number.
//!
//! A rule that drops sets the packet's mark to the number of the reason. Counters and log samples name the reason by
//! that number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwire_netlink::nft::{Element, Rule, Value};
use podwire_policy::program::{self, Id, Outcome, Stage};
use podwire_policy::{Direction, Program};

use super::model::{keyed, Elements};
use super::names::DIRECTIONS;
use crate::dataplane::node_input::NodeInput;

/// A pod used a source address that is not its own.
pub(in crate::dataplane) const SPOOFED_SOURCE: &str = "sent with an address that is not the pod's own";
/// An address in the pod networks that no pod of the program has: its pod starts, or was deleted and still runs.
pub(in crate::dataplane) const UNKNOWN_POD: &str = "no listed pod has the address";
/// A late packet of a connection that the agent closed.
pub(super) const CLOSED_CONNECTION: &str = "the connection was closed because policies no longer allow it";

/// A rule of a policy that denies.
pub(super) fn denied_by(rule: &program::Rule) -> String {
    let origin = rule.origin.as_ref().map(ToString::to_string);
    format!("denied by {}", origin.unwrap_or_default())
}

/// The NetworkPolicies that isolate the pod, none of whose rules allows the packet.
pub(super) fn isolated_by(stage: &Stage) -> String {
    format!("isolated by {}", stage.isolating_policies.join(", "))
}

/// The chain in which dropped packets of a direction end.
pub(super) fn drop_chain(direction: Direction) -> String {
    format!("dropped_{direction}")
}

/// All reasons of a program. A reason keeps its number from one program to the next.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    texts: BTreeMap<u32, String>,
    numbers: BTreeMap<String, u32>,
    stages: BTreeMap<Id, Vec<(Direction, u32)>>,
    /// The reasons that do not depend on the program.
    fixed: Vec<&'static str>,
    /// The elements of the counter sets; the text is the comment.
    elements: BTreeMap<Direction, Arc<Elements>>,
}

impl Reasons {
    /// Adds the reasons of `program` and removes those that only the previous program had.
    pub fn update(&mut self, program: &Program, input: &NodeInput) {
        let mut previous = std::mem::take(&mut self.stages);
        let fixed = [UNKNOWN_POD]
            .into_iter()
            .chain(input.block_closed_connections.then_some(CLOSED_CONNECTION))
            .collect();
        let mut is_same = self.fixed == fixed;
        self.fixed = fixed;
        for chain in program.chains.values() {
            for id in &chain.stages {
                let Some(stage) = program.stages.get(id).filter(|_| !self.stages.contains_key(id)) else {
                    continue;
                };
                let known = previous.remove_entry(id);
                is_same &= known.is_some();
                let (id, reasons) =
                    known.unwrap_or_else(|| (id.clone(), self.of_stage(stage, chain.direction)));
                self.stages.insert(id, reasons);
            }
        }
        if !is_same || !previous.is_empty() {
            self.rebuild_elements();
        }
    }

    fn of_stage(&mut self, stage: &Stage, direction: Direction) -> Vec<(Direction, u32)> {
        let denying = stage.rules.iter().filter(|rule| rule.outcome == Outcome::Drop).map(denied_by);
        let isolating = (stage.default_outcome == Outcome::Drop).then(|| isolated_by(stage));
        let all: Vec<String> = denying.chain(isolating).collect();
        all.iter().map(|text| (direction, self.number(text))).collect()
    }

    /// Makes the elements of the reasons in use, and removes the others.
    fn rebuild_elements(&mut self) {
        let mut used: BTreeSet<(Direction, u32)> = self.stages.values().flatten().copied().collect();
        for text in self.fixed.clone() {
            let number = self.number(text);
            used.extend(DIRECTIONS.map(|direction| (direction, number)));
        }
        let numbers: BTreeSet<u32> = used.iter().map(|(_, number)| *number).collect();
        self.texts.retain(|number, _| numbers.contains(number));
        self.numbers.retain(|_, number| numbers.contains(number));
        for direction in DIRECTIONS {
            let of_direction = used.iter().filter(|(of, _)| *of == direction);
            let element = |(_, number): &(Direction, u32)| {
                let text = self.texts.get(number).map(String::as_str).unwrap_or_default();
                keyed(Arc::new(Element::key(Value::mark(*number)).comment(text)))
            };
            let elements = of_direction.map(element).collect();
            self.elements.insert(direction, Arc::new(elements));
        }
    }

    /// The number of a reason: its hash, or the next free number if another reason has that hash.
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let mut number = hash(text);
        while number == 0 || self.texts.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.texts.insert(number, text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub fn text(&self, number: u32) -> Option<&str> {
        self.texts.get(&number).map(String::as_str)
    }

    /// The elements of the set that counts drops of a direction by reason.
    pub fn elements(&self, direction: Direction) -> Arc<Elements> {
        self.elements.get(&direction).cloned().unwrap_or_default()
    }

    /// The rule with this end: the packets that it matches are dropped for this reason.
    pub fn drop(&self, rule: Rule, direction: Direction, text: &str) -> Rule {
        let number = self.numbers.get(text).copied().unwrap_or_default();
        rule.set_mark(number).goto(drop_chain(direction))
    }
}

/// FNV-1a, 32 bits.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_keeps_its_number_and_no_two_have_the_same() {
        let mut reasons = Reasons::default();
        let first = reasons.number("isolated by NetworkPolicy shop/db");
        assert_eq!(first, hash("isolated by NetworkPolicy shop/db"));
        // Two words with the same FNV-1a hash.
        let (one, other) = (reasons.number("costarring"), reasons.number("liquid"));
        assert_eq!(hash("costarring"), hash("liquid"));
        assert_ne!(one, other);
        assert_eq!((reasons.text(one), reasons.text(other)), (Some("costarring"), Some("liquid")));
        assert_eq!(reasons.number("isolated by NetworkPolicy shop/db"), first);
    }
}
