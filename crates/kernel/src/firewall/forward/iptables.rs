//! The one rule in the tables of iptables (the kind that is built on nf_tables): who has our bit passes.

use podwire_netlink::nft::{self, Family, Field, Rule, Table, Transaction};
use podwire_netlink::Socket;

use super::MAY_PASS;
use crate::{Error, Result};

const FILTERS: [Table; 2] = [Table::named(Family::Ip, "filter"), Table::named(Family::Ip6, "filter")];
const FORWARD: &str = "FORWARD";
const COMMENT: &str = "podwire: pods may pass";
const ATTEMPTS: usize = 100;

/// Makes sure of the rule wherever iptables filters what is forwarded. Once made it is found here each time,
/// since a restart of somebody's firewall may have taken it away.
pub(in super::super) fn ensure_pass(nft: &mut Socket) -> Result<()> {
    for table in &FILTERS {
        ensure_in(nft, table)?;
    }
    Ok(())
}

/// Where iptables filters what is forwarded and does not let our bit pass, in words.
pub(in super::super) fn absent(nft: &mut Socket) -> Result<Vec<String>> {
    let mut absent = Vec::new();
    for table in &FILTERS {
        let filters = nft::get_chain(nft, table, FORWARD)?.is_some_and(|chain| chain.base.is_some());
        if filters && find(nft, table)?.is_none() {
            absent.push(format!("chain {FORWARD} of table {table} does not let pods pass"));
        }
    }
    Ok(absent)
}

fn ensure_in(nft: &mut Socket, table: &Table) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        if nft::get_chain(nft, table, FORWARD)?.is_none_or(|chain| chain.base.is_none()) {
            return Ok(());
        }
        if find(nft, table)?.is_some() {
            return Ok(());
        }
        let pass = Rule::new().all_bits(Field::Mark, MAY_PASS).counter().accept().comment(COMMENT);
        change.insert_rule(table, FORWARD, &pass);
        match change.commit(nft) {
            Err(error) if nft::changed_meanwhile(&error) || error.is_gone() => {}
            other => return Ok(other?),
        }
    }
    Err(Error::Other(format!(
        "chain {FORWARD} of table {table} was changed by others {ATTEMPTS} times in a row"
    )))
}

fn find(nft: &mut Socket, table: &Table) -> Result<Option<u64>> {
    let rules = nft::list_rules(nft, table, FORWARD)?;
    Ok(rules.iter().find(|rule| rule.comment.as_deref() == Some(COMMENT)).map(|rule| rule.handle))
}

/// Takes the rule away, in the transaction that deletes our table.
pub(in super::super) fn withdraw(nft: &mut Socket, change: &mut Transaction) -> Result<()> {
    for table in &FILTERS {
        if let Some(handle) = find(nft, table)? {
            change.delete_rule(table, FORWARD, handle);
        }
    }
    Ok(())
}
