//! The chains and rules of forwarding, which no pod changes, and the administrator's chain.

use podwire_netlink::nft::{self, Base, ChainKind, Family, Field, Hook, Rule, Set, Transaction, Type};
use podwire_netlink::Socket;

use super::super::elements::{busy, ATTEMPTS};
use super::{BRIDGES, MAY_PASS, PODS, SAME, TABLE};
use crate::Result;

/// Holds a jump to each administrator's chain.
const ADMINS: &str = "admins";
/// For packets that go there without a mark.
const UNMARKED: &str = "unmarked";
/// Before iptables' FORWARD, which is at 0.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
/// After it.
const FORWARDED: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// All of the table: the same whether or not parts of it are there.
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
    ask_administrators(change);
    change.add_rule(&TABLE, "forward", &apart());
    passes(change);
    change.add_base_chain(&TABLE, "forwarded", &FORWARDED);
    change.flush_chain(&TABLE, "forwarded");
    let marked = Rule::new().all_bits(Field::Mark, MAY_PASS);
    change.add_rule(&TABLE, "forwarded", &marked.clear_mark_bits(MAY_PASS));
}

/// What the administrator accepts does not come back here, and passes iptables by the mark that it goes to him with. A packet that does come
/// back is marked only if it was before: the rules of the roads between nodes use the same mark, and may have been asked first.
fn ask_administrators(change: &mut Transaction) {
    let (marked, unmarked) =
        (Rule::new().all_bits(Field::Mark, MAY_PASS), Rule::new().no_bit(Field::Mark, MAY_PASS));
    change.add_rule(&TABLE, "forward", &marked.jump(ADMINS));
    change.add_rule(&TABLE, "forward", &unmarked.jump(UNMARKED));
    change.add_rule(&TABLE, UNMARKED, &Rule::new().set_mark_bits(MAY_PASS).jump(ADMINS));
    change.add_rule(&TABLE, UNMARKED, &Rule::new().clear_mark_bits(MAY_PASS));
}

/// From one bridge to another, or within one that is not its own friend, nothing new passes; but a port that
/// a pod published is meant for everybody, so what was mapped to it does.
fn apart() -> Rule {
    Rule::new()
        .in_set(&[Field::InterfaceIn], BRIDGES)
        .in_set(&[Field::InterfaceOut], BRIDGES)
        .no_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED)
        .no_bit(Field::CtStatus, Rule::DNAT)
        .not_in_set(&[Field::InterfaceIn, Field::InterfaceOut], SAME)
        .drop()
}

/// What pods send passes, and what answers them.
fn passes(change: &mut Transaction) {
    let halves = [
        (Family::Ip, Field::Ip4Source, Field::Ip4Destination, PODS[0]),
        (Family::Ip6, Field::Ip6Source, Field::Ip6Destination, PODS[1]),
    ];
    for (family, source, destination, pods) in halves {
        let sent = Rule::new().family(family).in_set(&[source], pods);
        change.add_rule(&TABLE, "forward", &sent.set_mark_bits(MAY_PASS).accept());
        let answers = Rule::new()
            .any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED)
            .family(family)
            .in_set(&[destination], pods);
        change.add_rule(&TABLE, "forward", &answers.set_mark_bits(MAY_PASS).accept());
    }
}

/// Whether forwarded packets go through the administrator's chain.
pub(super) fn leads_to(nft: &mut Socket, name: &str) -> Result<bool> {
    Ok(nft::list_rules(nft, &TABLE, ADMINS)?.iter().any(|rule| rule.jumps_to(name)))
}

/// Makes the administrator's chain and the jump to it, both at once and only once.
pub(super) fn ensure_admin_chain(nft: &mut Socket, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        if leads_to(nft, name)? {
            return Ok(());
        }
        // The administrator may have made it before.
        if nft::get_chain(nft, &TABLE, name)?.is_none() {
            change.create_chain(&TABLE, name);
        }
        change.add_rule(&TABLE, ADMINS, &Rule::new().jump(name));
        match change.commit(nft) {
            Err(error) if nft::changed_meanwhile(&error) || error.is_exists() => {}
            other => return Ok(other?),
        }
    }
    Err(busy())
}

/// Whether the administrator has written nothing.
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
