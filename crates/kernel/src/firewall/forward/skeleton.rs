//! The chains and rules of forwarding, which do not change with pods, and the administrator's chain.

use podwire_netlink::nft::{
    self, Base, ChainKind, Family, Field, Hook, Retry, Rule, Set, Table, Transaction, Type,
};
use podwire_netlink::Socket;

use crate::error::Result;

pub(in super::super) const TABLE: Table = Table::named(Family::Inet, "podwire_firewall");
/// Addresses of pods, for IPv4 and IPv6.
pub(super) const PODS: [&str; 2] = ["pods4", "pods6"];
/// Bridges that are isolated from each other.
pub(super) const BRIDGES: &str = "bridges";
/// Pairs of isolated bridges between which packets still pass: a bridge and itself.
pub(super) const SAME: &str = "same";
/// The mark bit of packets that may pass. It is set only between our two chains.
pub const MAY_PASS: u32 = 0x0100_0000;
/// The chain with a jump to each administrator's chain.
const ADMINS: &str = "admins";
/// The chain for packets that arrive without the mark.
const UNMARKED: &str = "unmarked";
/// Before iptables' FORWARD, which is at 0.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
/// After iptables' FORWARD.
const FORWARDED: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// The whole table. The result is the same whether or not parts exist.
pub(super) fn whole(change: &mut Transaction) {
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::of(PODS[0], &[Type::Ipv4]));
    change.add_set(&TABLE, &Set::of(PODS[1], &[Type::Ipv6]));
    change.add_set(&TABLE, &Set::of(BRIDGES, &[Type::IfName]));
    change.add_set(&TABLE, &Set::of(SAME, &[Type::IfName, Type::IfName]));
    change.add_chain(&TABLE, ADMINS);
    change.add_chain(&TABLE, UNMARKED);
    change.flush_chain(&TABLE, UNMARKED);
    change.add_base_chain(&TABLE, "forward", &FORWARD);
    change.flush_chain(&TABLE, "forward");
    jump_to_administrators(change);
    change.add_rule(&TABLE, "forward", &isolation());
    accept_pods(change);
    change.add_base_chain(&TABLE, "forwarded", &FORWARDED);
    change.flush_chain(&TABLE, "forwarded");
    let marked = Rule::new().all_bits(Field::Mark, MAY_PASS);
    change.add_rule(&TABLE, "forwarded", &marked.clear_mark_bits(MAY_PASS));
}

/// A packet that the administrator's chain accepts does not return here; it passes iptables because it entered that
/// chain with the mark. A packet that returns keeps the mark only if it had it before: the overlay's table uses the
/// same mark and may have been evaluated first.
fn jump_to_administrators(change: &mut Transaction) {
    let (marked, unmarked) =
        (Rule::new().all_bits(Field::Mark, MAY_PASS), Rule::new().no_bit(Field::Mark, MAY_PASS));
    change.add_rule(&TABLE, "forward", &marked.jump(ADMINS));
    change.add_rule(&TABLE, "forward", &unmarked.jump(UNMARKED));
    change.add_rule(&TABLE, UNMARKED, &Rule::new().set_mark_bits(MAY_PASS).jump(ADMINS));
    change.add_rule(&TABLE, UNMARKED, &Rule::new().clear_mark_bits(MAY_PASS));
}

/// Drops new connections between isolated bridges, and within a bridge that is not paired with itself. Connections to a
/// published host port (DNAT) pass.
fn isolation() -> Rule {
    Rule::new()
        .in_set(&[Field::InterfaceIn], BRIDGES)
        .in_set(&[Field::InterfaceOut], BRIDGES)
        .no_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED)
        .no_bit(Field::CtStatus, Rule::DNAT)
        .not_in_set(&[Field::InterfaceIn, Field::InterfaceOut], SAME)
        .drop()
}

/// Accepts packets from pods, and the replies to them.
fn accept_pods(change: &mut Transaction) {
    let families = [
        (Family::Ip, Field::Ip4Source, Field::Ip4Destination, PODS[0]),
        (Family::Ip6, Field::Ip6Source, Field::Ip6Destination, PODS[1]),
    ];
    for (family, source, destination, pods) in families {
        let sent = Rule::new().family(family).in_set(&[source], pods);
        change.add_rule(&TABLE, "forward", &sent.set_mark_bits(MAY_PASS).accept());
        let replies = Rule::new()
            .any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED)
            .family(family)
            .in_set(&[destination], pods);
        change.add_rule(&TABLE, "forward", &replies.set_mark_bits(MAY_PASS).accept());
    }
}

/// Whether forwarded packets pass the administrator's chain.
pub(super) fn jumps_to(nft: &mut Socket, name: &str) -> Result<bool> {
    Ok(nft::list_rules(nft, &TABLE, ADMINS)?.iter().any(|rule| rule.jumps_to(name)))
}

/// Creates the administrator's chain and the jump to it, in one transaction and only once.
pub(super) fn ensure_admin_chain(nft: &mut Socket, name: &str) -> Result<()> {
    let retry = Retry { at_generation: true, is_race: podwire_netlink::Error::is_exists };
    retry.commit(nft, |nft, change| {
        if jumps_to(nft, name)? {
            return Ok(());
        }
        // The administrator may have created it before.
        if nft::get_chain(nft, &TABLE, name)?.is_none() {
            change.create_chain(&TABLE, name);
        }
        change.add_rule(&TABLE, ADMINS, &Rule::new().jump(name));
        Ok(())
    })
}

/// Whether the administrator's chains have no rules.
pub(super) fn admin_chains_are_empty(nft: &mut Socket) -> Result<bool> {
    for rule in nft::list_rules(nft, &TABLE, ADMINS)? {
        for verdict in rule.verdicts() {
            let Some(chain) = verdict.chain() else { continue };
            if !nft::list_rules(nft, &TABLE, chain)?.is_empty() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
