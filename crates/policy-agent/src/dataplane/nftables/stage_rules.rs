//! A stage of the program as nftables rules.
//!
//! A rule of a program names a peer and a port; a rule of nftables matches one family and one kind of port. So one rule
//! becomes several: for IPv4 and IPv6, for the set of single ports and for each range.
//!
//! A new connection passes the rules of all policies of its two pods until one matches. So the cheap tests come first:
//! the family, then the port, which most rules differ in, and last the peer, whose set is the largest.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Field, IpTerms, Rule};
use podwire_policy::program::{Outcome, Peer, Port, PortRange, Stage};
use podwire_policy::{Direction, Program};

use super::family::NftFamily;
use super::reasons::{denied_by, isolated_by, Reasons};

/// A rule without its end, and the family that it already matches.
#[derive(Clone)]
struct Draft {
    rule: Rule,
    family: Option<IpFamily>,
}

impl Draft {
    /// One rule for each family that the draft can match.
    fn by_family(self) -> Vec<(Rule, IpFamily)> {
        match self.family {
            Some(family) => vec![(self.rule, family)],
            None => IpFamily::ALL.map(|f| (self.rule.clone().family(f.packet_family()), f)).into(),
        }
    }
}

/// The rules of a stage.
pub(super) fn rules(program: &Program, stage: &Stage, direction: Direction, reasons: &Reasons) -> Vec<Rule> {
    let end = |rule: Rule, outcome: Outcome, reason: &dyn Fn() -> String| match outcome {
        Outcome::Accept => rule.accept(),
        Outcome::Drop => reasons.drop(rule, direction, &reason()),
        Outcome::Next => rule.leave(),
    };
    let mut rules = Vec::new();
    for rule in &stage.rules {
        let drafts = start(&rule.peer).into_iter().flat_map(|draft| match_port(program, &rule.port, draft));
        for matching in drafts.flat_map(|draft| match_peer(&rule.peer, direction, draft)) {
            let complete = end(matching, rule.outcome, &|| denied_by(rule));
            rules.push(match &rule.origin {
                Some(origin) => complete.comment(origin.to_string()),
                None => complete,
            });
        }
    }
    // Without a rule at the end the packet returns to the pod's chain, which jumps to its next stage.
    if stage.default_outcome != Outcome::Next {
        let reason = || isolated_by(stage);
        rules.push(end(Rule::new(), stage.default_outcome, &reason).comment(reason()));
    }
    rules
}

/// The ports that the rules look up in a set: those that are no range, if there are several. A single port is compared.
pub(super) fn ports_in_set(ranges: &[PortRange]) -> Vec<PortRange> {
    let single: Vec<PortRange> = ranges.iter().filter(|range| range.first == range.last).copied().collect();
    if single.len() > 1 {
        single
    } else {
        Vec::new()
    }
}

/// One draft for each family if the peer is matched by address, else one for both.
fn start(peer: &Peer) -> Vec<Draft> {
    let both = Draft { rule: Rule::new(), family: None };
    match peer {
        Peer::Anyone | Peer::OwnNode => vec![both],
        Peer::Addresses(_) | Peer::Networks(_) => {
            let draft = |(rule, family)| Draft { rule, family: Some(family) };
            both.by_family().into_iter().map(draft).collect()
        }
    }
}

fn match_peer(peer: &Peer, direction: Direction, draft: Draft) -> Vec<Rule> {
    match peer {
        Peer::Anyone => vec![draft.rule],
        // Only egress can have the node as its destination; the routing decision says so.
        Peer::OwnNode => vec![draft.rule.to_this_host()],
        Peer::Addresses(id) | Peer::Networks(id) => {
            let in_set = |(rule, family): (Rule, IpFamily)| {
                rule.in_set(&[family.peer_address(direction)], &family.set_name(id.as_str()))
            };
            draft.by_family().into_iter().map(in_set).collect()
        }
    }
}

fn match_port(program: &Program, port: &Port, draft: Draft) -> Vec<Draft> {
    match port {
        Port::Any => vec![draft],
        Port::Numbers(id) => {
            let ranges = program.ports.get(id).map_or(&[][..], Vec::as_slice);
            let family = draft.family;
            let mut rules: Vec<Rule> = Vec::new();
            let in_set = ports_in_set(ranges);
            if !in_set.is_empty() {
                let service = [Field::Protocol, Field::PortDestination];
                rules.push(draft.rule.clone().in_set(&service, id.as_str()));
            }
            let others = ranges.iter().filter(|range| !in_set.contains(range));
            rules.extend(others.map(|range| match_range(draft.rule.clone(), range)));
            rules.into_iter().map(|rule| Draft { rule, family }).collect()
        }
        Port::Named(id) => {
            let named = |(rule, family): (Rule, IpFamily)| {
                let service = [family.destination(), Field::Protocol, Field::PortDestination];
                Draft { rule: rule.in_set(&service, &family.set_name(id.as_str())), family: Some(family) }
            };
            draft.by_family().into_iter().map(named).collect()
        }
    }
}

fn match_range(rule: Rule, range: &PortRange) -> Rule {
    let rule = rule.is(Field::Protocol, &[range.protocol.number()]);
    match (range.first, range.last) {
        (0, u16::MAX) => rule,
        (first, last) if first == last => rule.is(Field::PortDestination, &first.to_be_bytes()),
        (first, last) => rule.between(Field::PortDestination, &first.to_be_bytes(), &last.to_be_bytes()),
    }
}
