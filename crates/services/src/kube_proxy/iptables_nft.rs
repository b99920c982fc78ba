//! kube-proxy's chains in iptables-nft, which are chains of nf_tables in the tables `ip nat`, `ip6 filter` and so on.

use std::collections::BTreeSet;

use podwire_netlink::nft::{self, ChainInfo, Family, Retry, Table, Transaction};
use podwire_netlink::Socket;

use super::names::{is_proxy_chain, IPTABLES};
use crate::{Error, Result};

/// kube-proxy's chains in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProxyChains {
    pub table: Table,
    pub chains: Vec<String>,
}

/// The tables with chains of kube-proxy.
pub(super) fn find(nft: &mut Socket) -> Result<Vec<ProxyChains>> {
    let mut found = Vec::new();
    for family in [Family::Ip, Family::Ip6] {
        let all = nft::list_chains(nft, Some(family))?;
        for name in IPTABLES {
            let table = Table::named(family, name);
            let (chains, _) = split(&all, &table);
            if !chains.is_empty() {
                found.push(ProxyChains { table, chains: chains.into_iter().map(str::to_owned).collect() });
            }
        }
    }
    Ok(found)
}

/// Deletes the chains of one table, and the rules of the table's base chains that lead to them, in one transaction.
/// Returns the number of chains.
pub(super) fn remove(nft: &mut Socket, table: &Table) -> Result<usize> {
    let retry = Retry { at_generation: true, is_race: podwire_netlink::Error::is_gone };
    retry.commit(nft, |nft, change| delete(nft, change, table))
}

fn delete(nft: &mut Socket, change: &mut Transaction, table: &Table) -> Result<usize> {
    let all = nft::list_chains(nft, Some(table.family))?;
    let (chains, others) = split(&all, table);
    for other in others {
        for rule in nft::list_rules(nft, table, &other.name)? {
            let mut targets = rule.verdicts().filter_map(|verdict| verdict.chain().map(str::to_owned));
            let Some(target) = targets.find(|target| chains.contains(target.as_str())) else { continue };
            // A rule in a chain of another program does something that this program would lose.
            if other.base.is_none() {
                let (table, from) = (table.clone(), other.name.clone());
                return Err(Error::UsedChain { table, from, target });
            }
            change.delete_rule(table, &other.name, rule.handle);
        }
    }
    // They jump to each other, so all rules go before the first chain.
    chains.iter().for_each(|chain| change.flush_chain(table, chain));
    chains.iter().for_each(|chain| change.delete_chain(table, chain));
    Ok(chains.len())
}

/// kube-proxy's chains in a table, and the other ones.
fn split<'a>(all: &'a [ChainInfo], table: &Table) -> (BTreeSet<&'a str>, Vec<&'a ChainInfo>) {
    let (own, others): (Vec<_>, Vec<_>) =
        all.iter().filter(|chain| chain.table == *table).partition(|chain| is_proxy_chain(&chain.name));
    (own.into_iter().map(|chain| chain.name.as_str()).collect(), others)
}
