//! The one rule in iptables' tables (iptables-nft): packets with our mark bit are accepted.

use podwire_netlink::nft::{self, Family, Field, Retry, Rule, Table, Transaction};
use podwire_netlink::Socket;

use super::skeleton::MAY_PASS;
use crate::error::Result;

const FILTERS: [Table; 2] = [Table::named(Family::Ip, "filter"), Table::named(Family::Ip6, "filter")];
const FORWARD: &str = "FORWARD";
const COMMENT: &str = "podwire: pods may pass";

/// Ensures the rule in every iptables FORWARD chain. Each call checks it, because a restarted firewall may have removed
/// it.
pub(in super::super) fn ensure_accept_rule(nft: &mut Socket) -> Result<()> {
    for table in &FILTERS {
        ensure_in(nft, table)?;
    }
    Ok(())
}

/// Whether iptables has a FORWARD chain, of either family.
pub(in super::super) fn is_filtered(nft: &mut Socket) -> Result<bool> {
    for table in &FILTERS {
        if has_chain(nft, table)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_chain(nft: &mut Socket, table: &Table) -> Result<bool> {
    Ok(nft::get_chain(nft, table, FORWARD)?.is_some_and(|chain| chain.base.is_some()))
}

/// The iptables FORWARD chains without the rule, as texts.
pub(in super::super) fn missing_accept_rules(nft: &mut Socket) -> Result<Vec<String>> {
    let mut absent = Vec::new();
    for table in &FILTERS {
        if has_chain(nft, table)? && find(nft, table)?.is_none() {
            absent.push(format!("chain {FORWARD} of table {table} does not accept pod packets"));
        }
    }
    Ok(absent)
}

fn ensure_in(nft: &mut Socket, table: &Table) -> Result<()> {
    let retry = Retry { at_generation: true, is_race: podwire_netlink::Error::is_gone };
    retry.commit(nft, |nft, change| {
        if !has_chain(nft, table)? {
            return Ok(());
        }
        if find(nft, table)?.is_none() {
            let accept = Rule::new().all_bits(Field::Mark, MAY_PASS).counter().accept().comment(COMMENT);
            change.insert_rule(table, FORWARD, &accept);
        }
        Ok(())
    })
}

fn find(nft: &mut Socket, table: &Table) -> Result<Option<u64>> {
    let rules = nft::list_rules(nft, table, FORWARD)?;
    Ok(rules.iter().find(|rule| rule.comment.as_deref() == Some(COMMENT)).map(|rule| rule.handle))
}

/// Deletes the rule, in the transaction that deletes our table.
pub(in super::super) fn remove_accept_rule(nft: &mut Socket, change: &mut Transaction) -> Result<()> {
    for table in &FILTERS {
        if let Some(handle) = find(nft, table)? {
            change.delete_rule(table, FORWARD, handle);
        }
    }
    Ok(())
}
