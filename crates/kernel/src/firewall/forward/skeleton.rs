//! The chains and rules of forwarding, which do not change with pods, and the administrators' chains.
//!
//! Every forwarded packet passes chain `forward`. It contains only what this node needs: see [`Layout`].

use podwire_netlink::nft::{
    self, Base, ChainKind, Family, Field, Hook, Retry, Rule, Set, Table, Transaction, Type,
};
use podwire_netlink::Socket;

use super::iptables;
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
/// The list of the administrators' chains: a jump to each. No packet passes this chain.
const ADMINS: &str = "admins";
/// Before iptables' FORWARD.
const FORWARD: &str = "forward";
/// For packets that arrive with the mark; only with marks.
const MARKED: &str = "marked";
/// After iptables' FORWARD; only with marks.
const FORWARDED: &str = "forwarded";
/// A chain of earlier versions.
const UNMARKED: &str = "unmarked";
/// iptables' FORWARD is at 0.
const BEFORE: Base = Base::new(ChainKind::Filter, Hook::Forward, -1);
const AFTER: Base = Base::new(ChainKind::Filter, Hook::Forward, 1);

/// The table and its sets. The result is the same whether or not parts exist.
pub(super) fn sets(change: &mut Transaction) {
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::of(PODS[0], &[Type::Ipv4]));
    change.add_set(&TABLE, &Set::of(PODS[1], &[Type::Ipv6]));
    change.add_set(&TABLE, &Set::of(BRIDGES, &[Type::IfName]));
    change.add_set(&TABLE, &Set::of(SAME, &[Type::IfName, Type::IfName]));
}

/// Makes the chains as the node needs them now, with this administrator's chain. Usually one chain is read and compared.
pub(super) fn ensure(nft: &mut Socket, admin_chain: Option<&str>) -> Result<()> {
    change_chains(nft, admin_chain, |layout, nft| layout.is_in_force(nft))
}

/// The same, for chains that may be damaged.
pub(super) fn restore(nft: &mut Socket, admin_chain: &str) -> Result<()> {
    change_chains(nft, Some(admin_chain), |_, _| Ok(false))
}

/// At one generation of the rules: another network may be isolated, or another administrator's chain added meanwhile.
fn change_chains(
    nft: &mut Socket,
    admin_chain: Option<&str>,
    is_done: impl Fn(&Layout, &mut Socket) -> Result<bool>,
) -> Result<()> {
    let is_race = |error: &podwire_netlink::Error| error.is_exists() || error.is_gone();
    Retry { at_generation: true, is_race }.commit(nft, |nft, change| {
        let layout = Layout::needed(nft, admin_chain)?;
        if !is_done(&layout, nft)? {
            layout.add_to(change);
            layout.delete_others(nft, change)?;
        }
        Ok(())
    })
}

/// The missing parts of the table, as texts. Chains that do more than the node needs now are complete: iptables' FORWARD,
/// or the last isolated bridge, may have been deleted.
pub(super) fn absent(nft: &mut Socket, admin_chain: &str) -> Result<Vec<String>> {
    let needed = Layout::needed(nft, Some(admin_chain))?;
    let absent = needed.absent(nft)?;
    if absent.is_empty() {
        return Ok(absent);
    }
    for (marks, isolation) in [(true, needed.isolation), (needed.marks, true), (true, true)] {
        let more = Layout { marks, isolation, ..needed.clone() };
        if more.absent(nft)?.is_empty() {
            return Ok(Vec::new());
        }
    }
    Ok(absent)
}

/// What the chains do.
#[derive(Clone, Debug)]
struct Layout {
    /// The administrators' chains. Packets pass them first, also those of established connections.
    admins: Vec<String>,
    /// Whether packets that may pass are marked. Only iptables' FORWARD needs the mark.
    marks: bool,
    /// Whether bridges are isolated.
    isolation: bool,
}

impl Layout {
    fn needed(nft: &mut Socket, admin_chain: Option<&str>) -> Result<Layout> {
        let mut admins = admin_chains(nft)?;
        if let Some(chain) = admin_chain.filter(|chain| !admins.iter().any(|known| known == chain)) {
            admins.push(chain.to_owned());
        }
        let isolation = !nft::list_elements(nft, &TABLE, BRIDGES)?.is_empty();
        Ok(Layout { admins, marks: iptables::is_filtered(nft)?, isolation })
    }

    /// Whether chain `forward` is as it should be. The other chains change only together with it.
    fn is_in_force(&self, nft: &mut Socket) -> Result<bool> {
        let mut forward = Transaction::new();
        self.add_forward(&mut forward);
        Ok(forward.absent(nft)?.is_empty())
    }

    fn absent(&self, nft: &mut Socket) -> Result<Vec<String>> {
        let mut whole = Transaction::new();
        self.add_to(&mut whole);
        Ok(whole.absent(nft)?)
    }

    /// The whole table. The result is the same whether or not parts exist.
    fn add_to(&self, change: &mut Transaction) {
        sets(change);
        // The administrator may have created a chain before.
        self.admins.iter().for_each(|chain| change.add_chain(&TABLE, chain));
        change.add_chain(&TABLE, ADMINS);
        change.flush_chain(&TABLE, ADMINS);
        self.jump_to_administrators(change, ADMINS);
        if self.marks {
            // The overlay's table uses the same mark and may have been evaluated first: these packets keep it.
            change.add_chain(&TABLE, MARKED);
            change.flush_chain(&TABLE, MARKED);
            self.jump_to_administrators(change, MARKED);
            self.isolate(change, MARKED);
        }
        self.add_forward(change);
        if self.marks {
            change.add_base_chain(&TABLE, FORWARDED, &AFTER);
            change.flush_chain(&TABLE, FORWARDED);
            change.add_rule(&TABLE, FORWARDED, &Rule::new().clear_mark_bits(MAY_PASS));
        }
    }

    /// The chain of every forwarded packet. A packet that an administrator's chain accepts does not return here. It
    /// passes iptables, because it entered that chain with the mark.
    fn add_forward(&self, change: &mut Transaction) {
        change.add_base_chain(&TABLE, FORWARD, &BEFORE);
        change.flush_chain(&TABLE, FORWARD);
        if self.marks {
            let marked = Rule::new().all_bits(Field::Mark, MAY_PASS);
            change.add_rule(&TABLE, FORWARD, &marked.goto(MARKED));
            change.add_rule(&TABLE, FORWARD, &Rule::new().set_mark_bits(MAY_PASS));
        }
        self.jump_to_administrators(change, FORWARD);
        self.isolate(change, FORWARD);
        if self.marks {
            accept_pods(change);
            change.add_rule(&TABLE, FORWARD, &Rule::new().clear_mark_bits(MAY_PASS));
        }
    }

    fn jump_to_administrators(&self, change: &mut Transaction, chain: &str) {
        self.admins.iter().for_each(|admin| change.add_rule(&TABLE, chain, &Rule::new().jump(admin)));
    }

    fn isolate(&self, change: &mut Transaction, chain: &str) {
        if self.isolation {
            change.add_rule(&TABLE, chain, &isolation());
        }
    }

    /// Deletes the chains that are not needed, of this version and of earlier ones.
    fn delete_others(&self, nft: &mut Socket, change: &mut Transaction) -> Result<()> {
        let others: &[&str] = if self.marks { &[UNMARKED] } else { &[FORWARDED, MARKED, UNMARKED] };
        for chain in others {
            if nft::get_chain(nft, &TABLE, chain)?.is_some() {
                change.flush_chain(&TABLE, chain);
                change.delete_chain(&TABLE, chain);
            }
        }
        Ok(())
    }
}

/// Drops new connections between isolated bridges, and within a bridge that is not paired with itself. Connections to a
/// published host port (DNAT) pass.
fn isolation() -> Rule {
    Rule::new()
        .no_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED)
        .no_bit(Field::CtStatus, Rule::DNAT)
        .in_set(&[Field::InterfaceIn], BRIDGES)
        .in_set(&[Field::InterfaceOut], BRIDGES)
        .not_in_set(&[Field::InterfaceIn, Field::InterfaceOut], SAME)
        .drop()
}

/// Accepts packets from pods, and the replies to them. They have the mark.
fn accept_pods(change: &mut Transaction) {
    let families = [(Family::Ip, PODS[0]), (Family::Ip6, PODS[1])];
    for (family, pods) in families {
        let source = if family == Family::Ip { Field::Ip4Source } else { Field::Ip6Source };
        let sent = Rule::new().family(family).in_set(&[source], pods);
        change.add_rule(&TABLE, FORWARD, &sent.accept());
    }
    for (family, pods) in families {
        let destination = if family == Family::Ip { Field::Ip4Destination } else { Field::Ip6Destination };
        let replies = Rule::new().family(family).any_bit(Field::CtState, Rule::ESTABLISHED | Rule::RELATED);
        change.add_rule(&TABLE, FORWARD, &replies.in_set(&[destination], pods).accept());
    }
}

/// The names of the administrators' chains.
fn admin_chains(nft: &mut Socket) -> Result<Vec<String>> {
    let rules = nft::list_rules(nft, &TABLE, ADMINS)?;
    let verdicts = rules.iter().flat_map(|rule| rule.verdicts());
    Ok(verdicts.filter_map(|verdict| Some(verdict.chain()?.to_owned())).collect())
}

/// Whether the administrators' chains have no rules.
pub(super) fn admin_chains_are_empty(nft: &mut Socket) -> Result<bool> {
    for chain in admin_chains(nft)? {
        if !nft::list_rules(nft, &TABLE, &chain)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}
