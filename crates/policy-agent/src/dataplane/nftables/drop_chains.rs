//! The chains in which dropped packets end: they count by pod and by reason, and log some packets.
//!
//! A rule that drops sets the packet's mark to the number of the reason and goes to the chain of its direction.
//! Accepted packets never get there, so no packet that leaves the node carries such a mark. The counters are in set
//! elements that policy changes do not touch: they keep their values when chains are replaced.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Field, IpTerms, Rule, Table, Type, Value};
use podwire_policy::Direction;

use super::family::NftFamily;
use super::model::{DesiredSet, DesiredTable, SetKind};
use super::names::{drops_by_pod, BRIDGE_TABLE, DIRECTIONS, POLICY_TABLE};
use super::reasons::{drop_chain, Reasons};
use crate::dataplane::node_input::{NodeInput, PodPort};

/// The nfnetlink_log group of the samples. Other programs usually number theirs from 0.
pub(in crate::dataplane) const LOG_GROUP: u16 = 20_557;
/// Samples of each chain per second, and the burst after a pause. They bound the cost of a flood.
const RATE: u64 = 10;
const BURST: u32 = 20;

/// The chain for spoofed packets, and the log prefix of their samples.
pub(in crate::dataplane) const SPOOFED: &str = "spoofed";
/// The devices of the pods that sent them.
const SPOOFERS: &str = "spoofers";

/// The set that counts by reason.
fn drops_by_reason(direction: Direction) -> String {
    format!("reasons_{direction}")
}

/// The drop chains of both directions, and their counters by reason.
pub(super) fn build(table: &mut DesiredTable, input: &NodeInput, reasons: &Reasons) {
    for direction in DIRECTIONS {
        let by_reason = drops_by_reason(direction);
        let set = DesiredSet { kind: SetKind::Counters(Type::Mark), elements: reasons.elements(direction) };
        table.sets.insert(by_reason.clone(), set);
        let mut rules = vec![Rule::new().in_set(&[Field::Mark], &by_reason)];
        for family in IpFamily::ALL {
            let by_pod = family.set_name(drops_by_pod(direction));
            let rule = Rule::new().family(family.packet_family());
            rules.push(rule.in_set(&[family.pod_address(direction)], &by_pod));
        }
        rules.extend(log_and_drop(input, direction.to_string()));
        table.add_chain(drop_chain(direction), rules);
    }
}

/// The chain for spoofed packets of these ports.
pub(super) fn build_spoofed(table: &mut DesiredTable, ports: &[&PodPort], input: &NodeInput) {
    let devices = ports.iter().map(|port| Element::key(Value::ifname(&port.device)).comment(&port.pod));
    table.add_set(SPOOFERS.into(), SetKind::Counters(Type::IfName), devices.collect());
    let mut rules = vec![Rule::new().in_set(&[Field::InterfaceIn], SPOOFERS)];
    rules.extend(log_and_drop(input, SPOOFED.into()));
    table.add_chain(SPOOFED, rules);
}

fn log_and_drop(input: &NodeInput, prefix: String) -> Vec<Rule> {
    let sample = input.sample_drops.then(|| Rule::new().limit(RATE, BURST).log(LOG_GROUP, prefix));
    sample.into_iter().chain([Rule::new().drop()]).collect()
}

/// What a counter set counts by.
pub(in crate::dataplane) enum CountedBy {
    Reason(Direction),
    Pod(Direction),
    SpoofingPod,
}

/// All counter sets, with their tables.
pub(in crate::dataplane) fn counter_sets() -> Vec<(Table, String, CountedBy)> {
    let mut all = Vec::new();
    for direction in DIRECTIONS {
        all.push((POLICY_TABLE, drops_by_reason(direction), CountedBy::Reason(direction)));
        for family in IpFamily::ALL {
            let set = family.set_name(drops_by_pod(direction));
            all.push((POLICY_TABLE, set, CountedBy::Pod(direction)));
        }
    }
    for table in [POLICY_TABLE, BRIDGE_TABLE] {
        all.push((table, SPOOFERS.into(), CountedBy::SpoofingPod));
    }
    all
}
