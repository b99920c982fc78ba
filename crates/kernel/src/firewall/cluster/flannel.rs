//! Removal of flanneld's firewall rules: its chains in iptables-nft, or its tables. Until then a node that changes from
//! flannel has the rules of both programs.

use podwire_netlink::nft::{self, Family, Retry, Table, Transaction};
use podwire_netlink::Socket;

use crate::error::Result;

/// The table, the chain with the jump, and the target chain.
const CHAINS: [(Table, &str, &str); 4] = [
    (Table::named(Family::Ip, "nat"), "POSTROUTING", "FLANNEL-POSTRTG"),
    (Table::named(Family::Ip6, "nat"), "POSTROUTING", "FLANNEL-POSTRTG"),
    (Table::named(Family::Ip, "filter"), "FORWARD", "FLANNEL-FWD"),
    (Table::named(Family::Ip6, "filter"), "FORWARD", "FLANNEL-FWD"),
];
const TABLES: [Table; 2] =
    [Table::named(Family::Ip, "flannel-ipv4"), Table::named(Family::Ip6, "flannel-ipv6")];

/// Removes flanneld's rules in one transaction; returns the number of chains and tables. flanneld must no longer run on
/// the node: it would add them again.
pub fn retire(nft: &mut Socket) -> Result<usize> {
    Retry { at_generation: true, is_race: podwire_netlink::Error::is_gone }.commit(nft, delete_rules)
}

fn delete_rules(nft: &mut Socket, change: &mut Transaction) -> Result<usize> {
    let mut found = 0;
    for (table, from, chain) in &CHAINS {
        if nft::get_chain(nft, table, chain)?.is_none() {
            continue;
        }
        for rule in nft::list_rules(nft, table, from)?.iter().filter(|rule| rule.jumps_to(chain)) {
            change.delete_rule(table, from, rule.handle);
        }
        change.flush_chain(table, chain);
        change.delete_chain(table, chain);
        found += 1;
    }
    for table in &TABLES {
        if nft::has_table(nft, table)? {
            change.delete_table(table);
            found += 1;
        }
    }
    Ok(found)
}
