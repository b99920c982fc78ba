//! Stages as rules.
//!
//! A rule of a program says "this peer and this port"; a rule of nftables looks at one family and at one kind of port at
//! a time. So one becomes several: for IPv4 and IPv6, for a set of single ports and for each range.

use netlink::nft::{Field, Rule};
use policy::program::{Outcome, Peer, Port, PortRange, Stage};
use policy::{Direction, Program};

use super::wanted::{single_ports, Half, HALVES};

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

pub(super) fn stage(program: &Program, stage: &Stage, direction: Direction) -> Vec<Rule> {
    let mut rules = Vec::new();
    for rule in &stage.rules {
        let drafts =
            peer(&rule.peer, direction).into_iter().flat_map(|draft| port(program, &rule.port, draft));
        for draft in drafts {
            let ended = end(draft.rule, rule.outcome);
            rules.push(match &rule.origin {
                Some(origin) => ended.comment(origin.to_string()),
                None => ended,
            });
        }
    }
    // Back to the pod's chain, and into its next stage.
    if stage.otherwise != Outcome::Next {
        rules.push(end(Rule::new(), stage.otherwise));
    }
    rules
}

fn end(rule: Rule, outcome: Outcome) -> Rule {
    match outcome {
        Outcome::Accept => rule.accept(),
        Outcome::Drop => rule.drop(),
        Outcome::Next => rule.leave(),
    }
}

fn peer(peer: &Peer, direction: Direction) -> Vec<Draft> {
    let anyone = Draft { rule: Rule::new(), half: None };
    match peer {
        Peer::Anyone => vec![anyone],
        // Only what a pod sends can be for the node, and then the routing table says so.
        Peer::OwnNode => vec![Draft { rule: Rule::new().to_this_host(), half: None }],
        Peer::Addresses(id) | Peer::Networks(id) => {
            let within = |(rule, half): (Rule, Half)| {
                let field = if direction == Direction::Ingress { half.source() } else { half.destination() };
                Draft { rule: rule.in_set(&[field], &half.name(id.as_str())), half: Some(half) }
            };
            anyone.halves().into_iter().map(within).collect()
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
            if ranges.iter().any(|range| range.first == range.last) {
                let service = [Field::Protocol, Field::PortDestination];
                rules.push(draft.rule.clone().in_set(&service, &single_ports(id)));
            }
            let wide = ranges.iter().filter(|range| range.first != range.last);
            rules.extend(wide.map(|range| within(draft.rule.clone(), range)));
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
        (first, last) => rule.between(Field::PortDestination, &first.to_be_bytes(), &last.to_be_bytes()),
    }
}
