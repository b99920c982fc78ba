//! What is in the table whatever the policies: where packets enter, and what passes before any policy is asked.

use std::sync::Arc;

use podwire_netlink::nft::{Base, ChainKind, Family, Field, Hook, Rule, Table};

use podwire_policy::Direction;

use super::desired::{Half, Wanted, WantedChain, HALVES};
use super::drop_chains::{Reasons, UNKNOWN};
use super::{closed_connections, granted_prefixes};
use crate::dataplane::Premises;

/// The table that all of it is in.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_policy");
/// Maps from a pod's address to its chain, and the chains that ask them.
pub(super) const EGRESS: &str = "egress";
pub(super) const INGRESS: &str = "ingress";
/// Each pod's address, twice: what it sends to itself.
pub(super) const ITSELF: &str = "itself";
/// Networks in which every address is a pod's.
pub(super) const GUARDED: &str = "guarded";

/// Before the table of the plugin `firewall` (-1) and iptables (0), behind everything that changes addresses.
const SENT: i32 = -10;
/// Right behind it: what passed as sent is judged as received.
const RECEIVED: i32 = -9;
const ICMPV6: u8 = 58; // IPPROTO_ICMPV6

pub(super) fn build(wanted: &mut Wanted, premises: &Premises, reasons: &Reasons) {
    for (name, hook, priority, chain) in [
        ("sent_forward", Hook::Forward, SENT, EGRESS),
        ("sent_to_node", Hook::Input, SENT, EGRESS),
        ("received_forward", Hook::Forward, RECEIVED, INGRESS),
    ] {
        let base = Some(Base::new(ChainKind::Filter, hook, priority));
        wanted
            .chains
            .insert(name.into(), Arc::new(WantedChain { base, rules: vec![Rule::new().jump(chain)] }));
    }
    for (name, direction) in [(EGRESS, Direction::Egress), (INGRESS, Direction::Ingress)] {
        let mut rules =
            preamble(if premises.ends { closed_connections::rules(direction, reasons) } else { Vec::new() });
        for half in HALVES {
            let asked =
                Rule::new().family(half.family).verdict_map(&[half.of_pod(direction)], &half.name(name));
            rules.push(asked);
        }
        rules.extend(granted_prefixes::rules(premises, direction));
        for half in HALVES {
            let unknown =
                Rule::new().family(half.family).in_set(&[half.of_pod(direction)], &half.name(GUARDED));
            rules.push(reasons.drop(unknown, direction, UNKNOWN).comment(UNKNOWN));
        }
        wanted.chains.insert(name.into(), Arc::new(WantedChain { base: None, rules }));
    }
}

/// What passes before any policy is asked. `late`: rules for what belongs to no connection that is known, and opens none.
fn preamble(late: Vec<Rule>) -> Vec<Rule> {
    let mut rules = Vec::new();
    // Answers, and errors about what passed: a connection is judged by its first packet. To know a connection, the kernel
    // puts fragments together first, so that every packet that is judged has its ports.
    rules.push(Rule::new().any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED).accept());
    rules.extend(late);
    // IPv6 has no ARP: without these nobody finds a neighbour or a router (133 to 137), or joins a group (130 to 132, 143).
    for (first, last) in [(130, 137), (143, 143)] {
        let message = Rule::new().family(Family::Ip6).is(Field::Protocol, &[ICMPV6]);
        rules.push(message.between(Field::IcmpType, &[first], &[last]).accept());
    }
    for half in HALVES {
        let itself =
            Rule::new().family(half.family).in_set(&[half.source(), half.destination()], &half.name(ITSELF));
        rules.push(itself.accept());
    }
    rules
}

impl Half {
    /// The address of the pod that is judged.
    pub fn of_pod(self, direction: Direction) -> Field {
        match direction {
            Direction::Egress => self.source(),
            Direction::Ingress => self.destination(),
        }
    }

    pub fn source(self) -> Field {
        if self.number == 4 {
            Field::Ip4Source
        } else {
            Field::Ip6Source
        }
    }

    pub fn destination(self) -> Field {
        if self.number == 4 {
            Field::Ip4Destination
        } else {
            Field::Ip6Destination
        }
    }
}
