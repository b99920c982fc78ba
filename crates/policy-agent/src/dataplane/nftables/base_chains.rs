//! The chains that do not depend on the policies: the hooks, what is accepted before any policy, and the lookup of a
//! pod's chain.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Base, ChainKind, Family, Field, Hook, IpTerms, Rule};
use podwire_policy::Direction;

use super::family::NftFamily;
use super::model::DesiredTable;
use super::names::{EGRESS, GUARDED_PORTS, INGRESS, POD_NETWORKS, POD_TO_ITSELF};
use super::reasons::{Reasons, UNKNOWN_POD};
use super::source_check::{link_messages, UDP};
use super::{closed_connections, granted_prefixes};
use crate::dataplane::node_input::NodeInput;

/// Before the table of the plugin `firewall` (-1) and iptables (0), after everything that translates addresses.
const EGRESS_PRIORITY: i32 = -10;
/// Directly after egress: what passed the sender's policies is checked by the receiver's.
const INGRESS_PRIORITY: i32 = -9;

pub(super) fn build(table: &mut DesiredTable, input: &NodeInput, reasons: &Reasons) {
    for (name, hook, priority, chain) in [
        ("sent_forward", Hook::Forward, EGRESS_PRIORITY, EGRESS),
        ("sent_to_node", Hook::Input, EGRESS_PRIORITY, EGRESS),
        ("received_forward", Hook::Forward, INGRESS_PRIORITY, INGRESS),
    ] {
        let base = Base::new(ChainKind::Filter, hook, priority);
        // Replies, and errors about accepted packets: policies check the first packet of a connection. Conntrack
        // reassembles fragments first, so every packet that is checked has its ports.
        let established = Rule::new().any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED).accept();
        let mut rules = vec![established];
        if hook == Hook::Input {
            rules.push(between_nodes());
        }
        rules.push(Rule::new().jump(chain));
        table.add_base_chain(name, base, rules);
    }
    for (name, direction) in [(EGRESS, Direction::Egress), (INGRESS, Direction::Ingress)] {
        let mut rules = if input.block_closed_connections {
            closed_connections::rules(direction, reasons)
        } else {
            Vec::new()
        };
        // Packets of one family evaluate only its rules: those of IPv4 come first and end the chain.
        rules.extend(of_family(IpFamily::V4, name, direction, input, reasons));
        rules.push(Rule::new().family(Family::Ip).accept());
        // IPv6 has no ARP.
        rules.extend(link_messages(&|| Rule::new().family(Family::Ip6), Rule::accept));
        rules.extend(of_family(IpFamily::V6, name, direction, input, reasons));
        table.add_chain(name, rules);
    }
}

/// Accepts the packets between nodes. The guard of the tunnels has checked them, and has excluded them from conntrack.
fn between_nodes() -> Rule {
    Rule::new()
        .any_bit(Field::CtState, Rule::UNTRACKED)
        .is(Field::Protocol, &[UDP])
        .in_set(&[Field::PortDestination], GUARDED_PORTS)
        .accept()
}

/// What a pod may send to itself, the lookup of its chain, and what no listed pod sends or receives.
fn of_family(
    family: IpFamily,
    chains: &str,
    direction: Direction,
    input: &NodeInput,
    reasons: &Reasons,
) -> Vec<Rule> {
    let rule = || Rule::new().family(family.packet_family());
    let (ends, address) = ([family.source(), family.destination()], family.pod_address(direction));
    let mut rules = vec![
        rule().in_set(&ends, &family.set_name(POD_TO_ITSELF)).accept(),
        rule().verdict_map(&[address], &family.set_name(chains)),
    ];
    rules.extend(granted_prefixes::rule(input, family, direction));
    let unknown = rule().in_set(&[address], &family.set_name(POD_NETWORKS));
    rules.push(reasons.drop(unknown, direction, UNKNOWN_POD).comment(UNKNOWN_POD));
    rules
}
