//! Stages as rules.
//!
//! A rule of a program says "this peer and this port"; a rule of nftables looks at one family and at one kind of port at
//! a time. So one becomes several: for IPv4 and IPv6, for a set of single ports and for each range.
//!
//! A new connection walks the rules of all policies about its two pods until one matches. So what is cheap to see stands first:
//! the family, then the port, which tells most rules apart, and last the peer, whose set is the largest.

use podwire_netlink::nft::{Field, Rule};
use podwire_policy::program::{Outcome, Peer, Port, PortRange, Stage};
use podwire_policy::{Direction, Program};

use super::desired::{single_ports, Half, HALVES};
use super::drop_chains::{self, Reasons};

/// A rule that is being written, and the family that it is about already.
#[derive(Clone)]
struct Draft {
    rule: Rule,
    half: Option<Half>,
}

impl Draft {
    /// The same for IPv4 and for IPv6, unless it is for one of them already.
    fn halves(self) -> Vec<(Rule, Half)> {
        match self.half {
            Some(half) => vec![(self.rule, half)],
            None => HALVES.map(|half| (self.rule.clone().family(half.family), half)).into(),
        }
    }
}

pub(super) fn stage(program: &Program, stage: &Stage, direction: Direction, reasons: &Reasons) -> Vec<Rule> {
    let end = |rule: Rule, outcome: Outcome, why: &dyn Fn() -> String| match outcome {
        Outcome::Accept => rule.accept(),
        Outcome::Drop => reasons.drop(rule, direction, &why()),
        Outcome::Next => rule.leave(),
    };
    let mut rules = Vec::new();
    for rule in &stage.rules {
        let drafts = families(&rule.peer).into_iter().flat_map(|draft| port(program, &rule.port, draft));
        for whole in drafts.flat_map(|draft| peer(&rule.peer, direction, draft)) {
            let ended = end(whole, rule.outcome, &|| drop_chains::by_rule(rule));
            rules.push(match &rule.origin {
                Some(origin) => ended.comment(origin.to_string()),
                None => ended,
            });
        }
    }
    // Back to the pod's chain, and into its next stage.
    if stage.otherwise != Outcome::Next {
        let why = || drop_chains::by_isolation(stage);
        rules.push(end(Rule::new(), stage.otherwise, &why).comment(why()));
    }
    rules
}

/// The beginnings of rules: one for each family if the peer is known by its address.
fn families(peer: &Peer) -> Vec<Draft> {
    let both = Draft { rule: Rule::new(), half: None };
    match peer {
        Peer::Anyone | Peer::OwnNode => vec![both],
        Peer::Addresses(_) | Peer::Networks(_) => {
            both.halves().into_iter().map(|(rule, half)| Draft { rule, half: Some(half) }).collect()
        }
    }
}

fn peer(peer: &Peer, direction: Direction, draft: Draft) -> Vec<Rule> {
    match peer {
        Peer::Anyone => vec![draft.rule],
        // Only what a pod sends can be for the node, and then the routing table says so.
        Peer::OwnNode => vec![draft.rule.to_this_host()],
        Peer::Addresses(id) | Peer::Networks(id) => {
            let within = |(rule, half): (Rule, Half)| {
                let field = if direction == Direction::Ingress { half.source() } else { half.destination() };
                rule.in_set(&[field], &half.name(id.as_str()))
            };
            draft.halves().into_iter().map(within).collect()
        }
    }
}

fn port(program: &Program, port: &Port, draft: Draft) -> Vec<Draft> {
    match port {
        Port::Any => vec![draft],
        Port::Numbers(id) => {
            let ranges = program.ports.get(id).map_or(&[][..], Vec::as_slice);
            let half = draft.half;
            let mut rules: Vec<Rule> = Vec::new();
            let in_set = single_ports(ranges);
            if !in_set.is_empty() {
                let service = [Field::Protocol, Field::PortDestination];
                rules.push(draft.rule.clone().in_set(&service, id.as_str()));
            }
            let others = ranges.iter().filter(|range| !in_set.contains(range));
            rules.extend(others.map(|range| within(draft.rule.clone(), range)));
            rules.into_iter().map(|rule| Draft { rule, half }).collect()
        }
        Port::Named(id) => {
            let named = |(rule, half): (Rule, Half)| {
                let service = [half.destination(), Field::Protocol, Field::PortDestination];
                Draft { rule: rule.in_set(&service, &half.name(id.as_str())), half: Some(half) }
            };
            draft.halves().into_iter().map(named).collect()
        }
    }
}

fn within(rule: Rule, range: &PortRange) -> Rule {
    let rule = rule.is(Field::Protocol, &[range.protocol.number()]);
    match (range.first, range.last) {
        (0, u16::MAX) => rule,
        (first, last) if first == last => rule.is(Field::PortDestination, &first.to_be_bytes()),
        (first, last) => rule.between(Field::PortDestination, &first.to_be_bytes(), &last.to_be_bytes()),
    }
}
