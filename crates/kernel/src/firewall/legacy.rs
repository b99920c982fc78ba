//! Firewall rules of the Go plugins: found by their names and comments, and removed.
//!
//! A node changes plugins while pods are running, so a pod that a Go plugin attached is detached by ours. The Go
//! plugins create, for each container, chains in iptables whose names are hashes of network and container id, or rules
//! in their own tables whose comments name the container. iptables-nft uses nf_tables, so netlink sees and deletes all
//! of it. Rules of iptables-legacy stay.

use std::collections::HashSet;
use std::net::IpAddr;

use podwire_netlink::nft::{self, Family, Retry, RuleInfo, Table, Transaction, Verdict};
use podwire_netlink::Socket;

use crate::error::Result;
use crate::owner::{hash, Owner};

const NATS: [Table; 2] = [Table::named(Family::Ip, "nat"), Table::named(Family::Ip6, "nat")];
const FILTERS: [Table; 2] = [Table::named(Family::Ip, "filter"), Table::named(Family::Ip6, "filter")];
const ACCEPTS: &str = "CNI-FORWARD";
/// The iptables chains with jumps to a container's chain: for masquerading, port mappings, and those of old versions.
const CALLERS: [&str; 5] = ["POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SNAT", "PREROUTING", "OUTPUT"];

const MASQUERADES: Table = Table::named(Family::Inet, "cni_plugins_masquerade");
const MASQUERADE_CHAIN: &str = "masq_checks";
const PORTS: [Table; 2] =
    [Table::named(Family::Ip, "cni_hostport"), Table::named(Family::Ip6, "cni_hostport")];
const PORT_CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];
const SPOOFS: Table = Table::named(Family::Bridge, "nat");

/// The masquerading chain of a container.
fn masquerade_chain(owner: &Owner) -> String {
    format!("CNI-{}", hash(&format!("{}{}", owner.network, owner.container), 24))
}

/// The port mapping chain of a container (`DN-`; `SN-` in old versions).
fn port_chain(owner: &Owner, kind: &str) -> String {
    format!("CNI-{kind}{}", hash(&format!("{}{}", owner.network, owner.container), 21))
}

/// The prefix of the comments on a container's rules in the masquerading table.
fn masquerade_comment(owner: &Owner) -> String {
    format!("{}{}", network_prefix(&owner.network), instance(owner))
}

fn network_prefix(network: &str) -> String {
    format!("{}-", hash(network, 16))
}

fn instance(owner: &Owner) -> String {
    hash(&format!("{}:{}", owner.ifname, owner.container), 16)
}

/// Removes the masquerading and spoof guard rules that a Go main plugin (bridge, ptp) created for this owner; returns
/// whether there were any. On a node without Go plugins it costs a few queries.
///
/// Each of our plugins removes only what its Go counterpart created: other plugins of the chain may still be Go's,
/// whose DEL fails if a chain is missing.
pub fn remove_masquerade(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    let prefix = masquerade_comment(owner);
    let port = format!("cni-br-iface-{}-{}", owner.container, owner.ifname);
    delete(nft, |nft, change| {
        for table in &NATS {
            delete_chain(nft, change, table, &masquerade_chain(owner))?;
        }
        delete_rules(nft, change, &MASQUERADES, MASQUERADE_CHAIN, |comment| comment.starts_with(&prefix))?;
        delete_chain(nft, change, &SPOOFS, &port)?;
        delete_chain(nft, change, &SPOOFS, &format!("{port}-mac"))
    })
    .map(|deleted| deleted > 0)
}

/// Removes the port mappings that Go's portmap created for this owner; returns whether there were any.
pub fn remove_ports(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    delete(nft, |nft, change| {
        for table in &NATS {
            for kind in ["DN-", "SN-"] {
                delete_chain(nft, change, table, &port_chain(owner, kind))?;
            }
        }
        for table in &PORTS {
            if !nft::has_table(nft, table)? {
                continue;
            }
            for chain in PORT_CHAINS {
                delete_rules(nft, change, table, chain, |comment| comment == owner.container)?;
            }
        }
        Ok(())
    })
    .map(|deleted| deleted > 0)
}

/// Removes the rules by which Go's firewall plugin accepts these addresses; returns whether there were any.
pub fn remove_passes(nft: &mut Socket, addrs: &[IpAddr]) -> Result<bool> {
    let collect = |nft: &mut Socket, change: &mut Transaction| {
        FILTERS.iter().try_for_each(|table| delete_accepts(nft, change, table, addrs))
    };
    Ok(delete(nft, collect)? > 0)
}

/// Whether a Go plugin masquerades this owner's container.
pub fn masquerades(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    if any_chain(nft, &masquerade_chain(owner))? {
        return Ok(true);
    }
    let prefix = masquerade_comment(owner);
    let rules = rules(nft, &MASQUERADES, MASQUERADE_CHAIN)?;
    Ok(rules.iter().any(|rule| rule.comment.as_ref().is_some_and(|comment| comment.starts_with(&prefix))))
}

/// Whether a Go plugin accepts packets from and to this address.
pub fn lets_pass(nft: &mut Socket, addr: IpAddr) -> Result<bool> {
    for table in &FILTERS {
        if accepts(nft, table, &[addr])?.len() >= 2 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a Go plugin maps ports to this owner's container.
pub fn maps_ports(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    if any_chain(nft, &port_chain(owner, "DN-"))? {
        return Ok(true);
    }
    for table in &PORTS {
        for chain in &PORT_CHAINS[..2] {
            let rules = rules(nft, table, chain)?;
            if rules.iter().any(|rule| rule.comment.as_deref() == Some(&owner.container)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Removes the masquerading rules of Go plugins for containers of this network that are not in `keep`; returns the
/// number of deletions.
pub fn collect_masquerades(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let instances: HashSet<String> = keep.iter().map(instance).collect();
    let prefix = network_prefix(network);
    delete(nft, |nft, change| {
        delete_orphans(nft, change, &CALLERS[..1], network, keep)?;
        delete_rules(nft, change, &MASQUERADES, MASQUERADE_CHAIN, |comment| {
            let of = comment.strip_prefix(&prefix).and_then(|rest| rest.get(..16));
            of.is_some_and(|instance| !instances.contains(instance))
        })
    })
}

/// Removes the iptables port mappings of Go's portmap for containers of this network that are not in `keep`; returns
/// the number of deletions.
pub fn collect_ports(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    delete(nft, |nft, change| delete_orphans(nft, change, &CALLERS[1..3], network, keep))
}

/// The containers, with their networks, that have chains of Go plugins in iptables.
pub fn containers(nft: &mut Socket) -> Result<HashSet<(String, String)>> {
    let mut all = HashSet::new();
    for table in &NATS {
        for caller in CALLERS {
            let comments = rules(nft, table, caller)?.into_iter().filter_map(|rule| rule.comment);
            all.extend(comments.filter_map(|comment| {
                named(&comment).map(|(network, container)| (network.to_owned(), container.to_owned()))
            }));
        }
    }
    Ok(all)
}

/// Collects deletions and commits them; returns their number. Only "gone" is a race: a Go plugin may delete the same
/// rules at the same time. A check of the generation would cost a query for each DEL.
fn delete(nft: &mut Socket, collect: impl Fn(&mut Socket, &mut Transaction) -> Result<()>) -> Result<usize> {
    Retry { at_generation: false, is_race: podwire_netlink::Error::is_gone }.commit(nft, |nft, change| {
        collect(nft, change)?;
        Ok(change.len())
    })
}

/// The rules of a chain. Looking up a missing chain is cheaper than listing its rules.
fn rules(nft: &mut Socket, table: &Table, chain: &str) -> Result<Vec<RuleInfo>> {
    match nft::get_chain(nft, table, chain)? {
        Some(_) => Ok(nft::list_rules(nft, table, chain)?),
        None => Ok(Vec::new()),
    }
}

fn any_chain(nft: &mut Socket, chain: &str) -> Result<bool> {
    for table in &NATS {
        if nft::get_chain(nft, table, chain)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes a chain with its rules, and the rules that jump to it.
fn delete_chain(nft: &mut Socket, change: &mut Transaction, table: &Table, chain: &str) -> Result<()> {
    if nft::get_chain(nft, table, chain)?.is_none() {
        return Ok(());
    }
    for caller in CALLERS {
        for rule in nft::list_rules(nft, table, caller)?.iter().filter(|rule| rule.jumps_to(chain)) {
            change.delete_rule(table, caller, rule.handle);
        }
    }
    change.flush_chain(table, chain);
    change.delete_chain(table, chain);
    Ok(())
}

fn delete_accepts(nft: &mut Socket, change: &mut Transaction, table: &Table, addrs: &[IpAddr]) -> Result<()> {
    for rule in accepts(nft, table, addrs)? {
        change.delete_rule(table, ACCEPTS, rule.handle);
    }
    Ok(())
}

/// The rules that accept the pod's packets: they have an accept verdict and compare a field with its address.
fn accepts(nft: &mut Socket, table: &Table, addrs: &[IpAddr]) -> Result<Vec<RuleInfo>> {
    let wanted = |addr: &&IpAddr| addr.is_ipv4() == (table.family == Family::Ip);
    let addrs: Vec<&IpAddr> = addrs.iter().filter(wanted).collect();
    if addrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = rules(nft, table, ACCEPTS)?;
    all.retain(|rule| {
        let concerns = |addr: &&IpAddr| match addr {
            IpAddr::V4(v4) => rule.compares_with(&v4.octets()),
            IpAddr::V6(v6) => rule.compares_with(&v6.octets()),
        };
        addrs.iter().any(concerns) && rule.verdicts().any(|verdict| verdict == Verdict::Accept)
    });
    Ok(all)
}

fn delete_rules(
    nft: &mut Socket,
    change: &mut Transaction,
    table: &Table,
    chain: &str,
    matches: impl Fn(&str) -> bool,
) -> Result<()> {
    for rule in rules(nft, table, chain)? {
        if rule.comment.as_deref().is_some_and(&matches) {
            change.delete_rule(table, chain, rule.handle);
        }
    }
    Ok(())
}

/// Deletes the iptables chains of containers whose calling rule names the network and a container that is not in
/// `keep`.
fn delete_orphans(
    nft: &mut Socket,
    change: &mut Transaction,
    callers: &[&str],
    network: &str,
    keep: &[Owner],
) -> Result<()> {
    let containers: HashSet<&str> = keep.iter().map(|owner| owner.container.as_str()).collect();
    for table in &NATS {
        let mut chains = HashSet::new();
        for caller in callers {
            for rule in rules(nft, table, caller)? {
                let named = rule.comment.as_deref().and_then(named);
                if named.is_some_and(|(of, container)| of == network && !containers.contains(container)) {
                    let jumps = rule.verdicts().filter_map(|verdict| verdict.chain().map(str::to_owned));
                    chains.extend(jumps.filter(|chain| chain.starts_with("CNI-")));
                }
            }
        }
        chains.iter().try_for_each(|chain| delete_chain(nft, change, table, chain))?;
    }
    Ok(())
}

/// The network and container in a comment such as `dnat name: "net" id: "0a1b"`; `None` for a truncated comment.
fn named(comment: &str) -> Option<(&str, &str)> {
    let (_, rest) = comment.split_once("name: \"")?;
    let (network, rest) = rest.split_once("\" id: \"")?;
    Some((network, rest.strip_suffix('"')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_are_those_of_the_go_plugins() {
        let owner = Owner::new("test", "1234", "eth0");
        assert_eq!(masquerade_chain(&owner), "CNI-2bbe0c48b91a7d1b8a6753a8");
        assert_eq!(port_chain(&owner, "DN-"), "CNI-DN-2bbe0c48b91a7d1b8a675");
        assert_eq!(masquerade_chain(&owner).len(), 28);
    }

    #[test]
    fn comments_name_network_and_container() {
        assert_eq!(named("name: \"a\" id: \"b\""), Some(("a", "b")));
        assert_eq!(named("dnat name: \"a\" id: \"b\""), Some(("a", "b")));
        assert_eq!(named("dnat name: \"a\" id: \"b"), None);
        assert_eq!(named("CNI portfwd requiring masquerade"), None);
    }
}
