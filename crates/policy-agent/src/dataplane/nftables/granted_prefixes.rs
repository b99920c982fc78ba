//! What a pod may send with besides its own addresses belongs to it as those do: the same chains judge it. Without prefixes there
//! is nothing of this.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podwire_netlink::nft::{Element, Rule, Value, Verdict};
use podwire_policy::{Direction, Program};

use super::desired::{next, ranges, Half, Holds, Wanted, HALVES};
use crate::dataplane::{Port, Premises};

fn map(direction: Direction, half: Half) -> String {
    half.name(match direction {
        Direction::Egress => "claimed_egress",
        Direction::Ingress => "claimed_ingress",
    })
}

/// Those of a family.
pub(super) fn of_port(port: &Port, half: Half) -> Vec<IpNet> {
    port.prefixes.iter().copied().filter(|prefix| half.has(&prefix.addr())).collect()
}

/// Maps from an address in a prefix to the chain of its pod.
pub(super) fn build(wanted: &mut Wanted, program: &Program, premises: &Premises) {
    for half in HALVES {
        let mut pods: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
        for port in &premises.ports {
            pods.entry(&port.pod).or_default().extend(of_port(port, half));
        }
        pods.retain(|_, prefixes| !prefixes.is_empty());
        if pods.is_empty() {
            continue;
        }
        for direction in [Direction::Egress, Direction::Ingress] {
            let mut elements = Vec::new();
            for (pod, prefixes) in &pods {
                let verdict = match program.endpoints.get(*pod).map(|endpoint| endpoint.chain(direction)) {
                    Some(Some(chain)) => Verdict::Goto(chain.to_string()),
                    Some(None) => Verdict::Accept,
                    None => Verdict::Drop,
                };
                for (first, last) in ranges(prefixes) {
                    elements.push(Element::key(Value::ip(first)).verdict(verdict.clone()).comment(*pod));
                    elements.extend(next(last).map(|end| Element::end_of_range(Value::ip(end))));
                }
            }
            wanted.set(map(direction, half), Holds::VerdictsOfRanges(half.address), elements);
        }
    }
}

/// What asks these maps.
pub(super) fn rules(premises: &Premises, direction: Direction) -> Vec<Rule> {
    let has_some = |half: &Half| premises.ports.iter().any(|port| !of_port(port, *half).is_empty());
    let rule = |half: Half| {
        let address = half.of_pod(direction);
        Rule::new().family(half.family).verdict_map(&[address], &map(direction, half))
    };
    HALVES.into_iter().filter(has_some).map(rule).collect()
}
