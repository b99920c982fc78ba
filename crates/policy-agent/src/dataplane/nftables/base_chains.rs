//! The chains that do not depend on the policies: the hooks, what is accepted before any policy, and the lookup of a
//! pod's chain.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Base, ChainKind, Family, Field, Hook, Rule};
use podwire_policy::Direction;

use super::family::NftFamily;
use super::model::DesiredTable;
use super::names::{EGRESS, INGRESS, POD_NETWORKS, POD_TO_ITSELF};
use super::reasons::{Reasons, UNKNOWN_POD};
use super::source_check::link_messages;
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
        table.add_base_chain(name, base, vec![established, Rule::new().jump(chain)]);
    }
    for (name, direction) in [(EGRESS, Direction::Egress), (INGRESS, Direction::Ingress)] {
        let late = if input.block_closed_connections {
            closed_connections::rules(direction, reasons)
        } else {
            Vec::new()
        };
        let mut rules = preamble(late);
        for family in IpFamily::ALL {
            let rule = Rule::new().family(family.packet_family());
            rules.push(rule.verdict_map(&[family.pod_address(direction)], &family.set_name(name)));
        }
        rules.extend(granted_prefixes::rules(input, direction));
        for family in IpFamily::ALL {
            let rule = Rule::new().family(family.packet_family());
            let unknown = rule.in_set(&[family.pod_address(direction)], &family.set_name(POD_NETWORKS));
            rules.push(reasons.drop(unknown, direction, UNKNOWN_POD).comment(UNKNOWN_POD));
        }
        table.add_chain(name, rules);
    }
}

/// What is accepted before any policy, if it is not of an established connection. `late`: the rules for packets that
/// belong to no tracked connection and open none.
fn preamble(late: Vec<Rule>) -> Vec<Rule> {
    let mut rules = late;
    // IPv6 has no ARP.
    rules.extend(link_messages(&|| Rule::new().family(Family::Ip6), Rule::accept));
    for family in IpFamily::ALL {
        let rule = Rule::new().family(family.packet_family());
        let (ends, set) = ([family.source(), family.destination()], family.set_name(POD_TO_ITSELF));
        rules.push(rule.in_set(&ends, &set).accept());
    }
    rules
}
