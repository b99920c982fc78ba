//! What flanneld left in the firewall: its chains in iptables (the kind that is built on nf_tables), or its tables. A node
//! that changes from flannel to us has the same rules from both until these go; with other flags, two kinds of rules.

use podwire_netlink::nft::{self, Family, Table, Transaction};
use podwire_netlink::Socket;

use crate::Result;

/// Table, the chain that jumps, the chain that is jumped to.
const CHAINS: [(Table, &str, &str); 4] = [
    (Table::named(Family::Ip, "nat"), "POSTROUTING", "FLANNEL-POSTRTG"),
    (Table::named(Family::Ip6, "nat"), "POSTROUTING", "FLANNEL-POSTRTG"),
    (Table::named(Family::Ip, "filter"), "FORWARD", "FLANNEL-FWD"),
    (Table::named(Family::Ip6, "filter"), "FORWARD", "FLANNEL-FWD"),
];
const TABLES: [Table; 2] =
    [Table::named(Family::Ip, "flannel-ipv4"), Table::named(Family::Ip6, "flannel-ipv6")];
/// How often it is tried again because somebody changed the rules at the same time.
const ATTEMPTS: usize = 100;

/// Removes flanneld's rules, all at once; says how many chains and tables that were. For a node on which flanneld does not
/// run any more: it would put them back.
pub fn retire(nft: &mut Socket) -> Result<usize> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        let found = gather(nft, &mut change)?;
        match change.commit(nft) {
            Ok(()) => return Ok(found),
            Err(error) if nft::changed_meanwhile(&error) || error.is_gone() => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    last.map_or(Ok(0), |error| Err(error.into()))
}

fn gather(nft: &mut Socket, change: &mut Transaction) -> Result<usize> {
    let mut found = 0;
    for (table, entrance, chain) in &CHAINS {
        if nft::get_chain(nft, table, chain)?.is_none() {
            continue;
        }
        for rule in nft::list_rules(nft, table, entrance)?.iter().filter(|rule| rule.jumps_to(chain)) {
            change.delete_rule(table, entrance, rule.handle);
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
