//! Source prefixes that a pod may use besides its own addresses: the pod's chains check them like its own addresses. A
//! table for pods without prefixes has none of these maps and rules.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, IpTerms, Rule, Value, Verdict};
use podwire_policy::{Direction, Program};

use super::family::NftFamily;
use super::intervals;
use super::model::{DesiredTable, SetKind};
use super::names::DIRECTIONS;
use crate::dataplane::node_input::{NodeInput, PodPort};

fn map(direction: Direction, family: IpFamily) -> String {
    family.set_name(match direction {
        Direction::Egress => "granted_egress",
        Direction::Ingress => "granted_ingress",
    })
}

/// The port's prefixes of a family.
pub(super) fn of_port(port: &PodPort, family: IpFamily) -> Vec<IpNet> {
    port.prefixes.iter().copied().filter(|prefix| family.has(&prefix.addr())).collect()
}

/// The maps from an address in a prefix to the chain of the prefix's pod.
pub(super) fn build(table: &mut DesiredTable, program: &Program, input: &NodeInput) {
    for family in IpFamily::ALL {
        let mut pods: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
        for port in &input.ports {
            pods.entry(&port.pod).or_default().extend(of_port(port, family));
        }
        pods.retain(|_, prefixes| !prefixes.is_empty());
        if pods.is_empty() {
            continue;
        }
        for direction in DIRECTIONS {
            let mut elements = Vec::new();
            for (pod, prefixes) in &pods {
                let verdict = match program.endpoints.get(*pod).map(|endpoint| endpoint.chain(direction)) {
                    Some(Some(chain)) => Verdict::Goto(chain.to_string()),
                    Some(None) => Verdict::Accept,
                    None => Verdict::Drop,
                };
                for (first, last) in intervals::ranges(prefixes) {
                    elements.push(Element::key(Value::ip(first)).verdict(verdict.clone()).comment(*pod));
                    elements.extend(intervals::end(last));
                }
            }
            let kind = SetKind::IntervalVerdicts(family.address_type());
            table.add_set(map(direction, family), kind, elements);
        }
    }
}

/// The rule that looks up the map of a family, if a pod has such prefixes.
pub(super) fn rule(input: &NodeInput, family: IpFamily, direction: Direction) -> Option<Rule> {
    let has_some = input.ports.iter().any(|port| !of_port(port, family).is_empty());
    let rule = Rule::new().family(family.packet_family());
    has_some.then(|| rule.verdict_map(&[family.pod_address(direction)], &map(direction, family)))
}
