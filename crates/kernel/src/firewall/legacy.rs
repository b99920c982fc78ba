//! What the Go plugins left for a pod: found by the names and comments that they give, and removed.
//!
//! A node changes plugins while pods are running; a pod that was attached by one is detached by the other.
//! Those plugins make, for each container, chains in iptables whose names are hashes of network and container
//! id, or rules in tables of their own whose comments name the container. iptables itself is built on
//! nf_tables here, so all of it is seen and deleted by netlink. (Rules of the older iptables, which is not,
//! stay.)

use std::collections::HashSet;
use std::net::IpAddr;

use podwire_netlink::nft::{self, Family, RuleInfo, Table, Transaction, Verdict};
use podwire_netlink::Socket;

use crate::owner::{hash, Owner};
use crate::Result;

const NATS: [Table; 2] = [Table::named(Family::Ip, "nat"), Table::named(Family::Ip6, "nat")];
const FILTERS: [Table; 2] = [Table::named(Family::Ip, "filter"), Table::named(Family::Ip6, "filter")];
const PASSES: &str = "CNI-FORWARD";
/// Where iptables rules jump to a container's chain from: to its masquerade, its port maps, and those of old.
const ENTRANCES: [&str; 5] =
    ["POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SNAT", "PREROUTING", "OUTPUT"];

const MASQUERADES: Table = Table::named(Family::Inet, "cni_plugins_masquerade");
const MASQUERADE_CHAIN: &str = "masq_checks";
const PORTS: [Table; 2] =
    [Table::named(Family::Ip, "cni_hostport"), Table::named(Family::Ip6, "cni_hostport")];
const PORT_CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];
const SPOOFS: Table = Table::named(Family::Bridge, "nat");

/// How often it is tried again because a Go plugin deleted something at the same time.
const ATTEMPTS: usize = 10;

/// The chain of a container that masquerades what it sends.
fn masquerade_chain(owner: &Owner) -> String {
    format!("CNI-{}", hash(&format!("{}{}", owner.network, owner.container), 24))
}

/// The chain of a container that holds its port maps (`DN-`), or did in old versions (`SN-`).
fn port_chain(owner: &Owner, kind: &str) -> String {
    format!("CNI-{kind}{}", hash(&format!("{}{}", owner.network, owner.container), 21))
}

/// The beginning of the comment on a container's rules in the table of masquerades.
fn masquerade_comment(owner: &Owner) -> String {
    format!("{}{}", network_prefix(&owner.network), instance(owner))
}

fn network_prefix(network: &str) -> String {
    format!("{}-", hash(network, 16))
}

fn instance(owner: &Owner) -> String {
    hash(&format!("{}:{}", owner.ifname, owner.container), 16)
}

/// Removes what a main plugin of Go (bridge, ptp) left for this owner, its masquerade and its guard; says whether
/// there was anything. Where such plugins never ran it costs a few questions that the kernel answers at once.
/// (Each of our plugins removes what its counterpart made and no more: the others in the chain may be Go's still,
/// whose DEL stumbles over a chain that is missing.)
pub fn remove_masquerade(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    let begins = masquerade_comment(owner);
    let port = format!("cni-br-iface-{}-{}", owner.container, owner.ifname);
    attempt(nft, |nft, change| {
        for table in &NATS {
            drop_chain(nft, change, table, &masquerade_chain(owner))?;
        }
        drop_rules(nft, change, (&MASQUERADES, MASQUERADE_CHAIN), |comment| comment.starts_with(&begins))?;
        drop_chain(nft, change, &SPOOFS, &port)?;
        drop_chain(nft, change, &SPOOFS, &format!("{port}-mac"))
    })
    .map(|deleted| deleted > 0)
}

/// Removes the port maps that Go's portmap left for this owner; says whether there were any.
pub fn remove_ports(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    attempt(nft, |nft, change| {
        for table in &NATS {
            for kind in ["DN-", "SN-"] {
                drop_chain(nft, change, table, &port_chain(owner, kind))?;
            }
        }
        for table in &PORTS {
            if !nft::has_table(nft, table)? {
                continue;
            }
            for chain in PORT_CHAINS {
                drop_rules(nft, change, (table, chain), |comment| comment == owner.container)?;
            }
        }
        Ok(())
    })
    .map(|deleted| deleted > 0)
}

/// Removes the rules by which Go's firewall lets these addresses pass; says whether there were any.
pub fn remove_passes(nft: &mut Socket, addrs: &[IpAddr]) -> Result<bool> {
    let gather = |nft: &mut Socket, change: &mut Transaction| {
        FILTERS.iter().try_for_each(|table| drop_passes(nft, change, table, addrs))
    };
    Ok(attempt(nft, gather)? > 0)
}

/// Whether a Go plugin masquerades this owner's container.
pub fn masquerades(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    if any_chain(nft, &masquerade_chain(owner))? {
        return Ok(true);
    }
    let begins = masquerade_comment(owner);
    let rules = rules(nft, &MASQUERADES, MASQUERADE_CHAIN)?;
    Ok(rules.iter().any(|rule| rule.comment.as_ref().is_some_and(|comment| comment.starts_with(&begins))))
}

/// Whether a Go plugin lets what this address sends, and what answers it, pass.
pub fn lets_pass(nft: &mut Socket, addr: IpAddr) -> Result<bool> {
    for table in &FILTERS {
        if passes(nft, table, &[addr])?.len() >= 2 {
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

/// Removes the masquerades that Go plugins left for containers of this network that are not among those to `keep`;
/// says how many rules and chains that were.
pub fn collect_masquerades(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    let instances: HashSet<String> = keep.iter().map(instance).collect();
    let prefix = network_prefix(network);
    attempt(nft, |nft, change| {
        drop_strays(nft, change, &ENTRANCES[..1], (network, keep))?;
        drop_rules(nft, change, (&MASQUERADES, MASQUERADE_CHAIN), |comment| {
            let of = comment.strip_prefix(&prefix).and_then(|rest| rest.get(..16));
            of.is_some_and(|instance| !instances.contains(instance))
        })
    })
}

/// Removes the port maps, as far as they are in iptables, that Go's portmap left for containers of this network
/// that are not among those to `keep`; says how many rules and chains that were.
pub fn collect_ports(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    attempt(nft, |nft, change| drop_strays(nft, change, &ENTRANCES[1..3], (network, keep)))
}

/// The containers, with their networks, that have chains of Go plugins in iptables.
pub fn containers(nft: &mut Socket) -> Result<HashSet<(String, String)>> {
    let mut all = HashSet::new();
    for table in &NATS {
        for entrance in ENTRANCES {
            let comments = rules(nft, table, entrance)?.into_iter().filter_map(|rule| rule.comment);
            all.extend(comments.filter_map(|comment| {
                named(&comment).map(|(network, container)| (network.to_owned(), container.to_owned()))
            }));
        }
    }
    Ok(all)
}

/// Gathers deletions and carries them out; says how many there were.
fn attempt(nft: &mut Socket, gather: impl Fn(&mut Socket, &mut Transaction) -> Result<()>) -> Result<usize> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut change = Transaction::new();
        gather(nft, &mut change)?;
        let deleted = change.len();
        match change.commit(nft) {
            Ok(()) => return Ok(deleted),
            Err(error) if error.is_gone() => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    last.map_or(Ok(0), |error| Err(error.into()))
}

/// The rules of a chain. Asking for one chain that is not there is cheaper than listing it.
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

/// A chain with its rules, and the rules that jump to it.
fn drop_chain(nft: &mut Socket, change: &mut Transaction, table: &Table, chain: &str) -> Result<()> {
    if nft::get_chain(nft, table, chain)?.is_none() {
        return Ok(());
    }
    for entrance in ENTRANCES {
        for rule in nft::list_rules(nft, table, entrance)?.iter().filter(|rule| rule.jumps_to(chain)) {
            change.delete_rule(table, entrance, rule.handle);
        }
    }
    change.flush_chain(table, chain);
    change.delete_chain(table, chain);
    Ok(())
}

fn drop_passes(nft: &mut Socket, change: &mut Transaction, table: &Table, addrs: &[IpAddr]) -> Result<()> {
    for rule in passes(nft, table, addrs)? {
        change.delete_rule(table, PASSES, rule.handle);
    }
    Ok(())
}

/// The rules that let the pod's packets pass: they accept, and compare something with its address.
fn passes(nft: &mut Socket, table: &Table, addrs: &[IpAddr]) -> Result<Vec<RuleInfo>> {
    let wanted = |addr: &&IpAddr| addr.is_ipv4() == (table.family == Family::Ip);
    let addrs: Vec<&IpAddr> = addrs.iter().filter(wanted).collect();
    if addrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = rules(nft, table, PASSES)?;
    all.retain(|rule| {
        let concerns = |addr: &&IpAddr| match addr {
            IpAddr::V4(v4) => rule.compares_with(&v4.octets()),
            IpAddr::V6(v6) => rule.compares_with(&v6.octets()),
        };
        addrs.iter().any(concerns) && rule.verdicts().any(|verdict| verdict == Verdict::Accept)
    });
    Ok(all)
}

fn drop_rules(
    nft: &mut Socket,
    change: &mut Transaction,
    (table, chain): (&Table, &str),
    doomed: impl Fn(&str) -> bool,
) -> Result<()> {
    for rule in rules(nft, table, chain)? {
        if rule.comment.as_deref().is_some_and(&doomed) {
            change.delete_rule(table, chain, rule.handle);
        }
    }
    Ok(())
}

/// The containers' chains of iptables whose entrance names the network and a container not to keep.
fn drop_strays(
    nft: &mut Socket,
    change: &mut Transaction,
    entrances: &[&str],
    (network, keep): (&str, &[Owner]),
) -> Result<()> {
    let containers: HashSet<&str> = keep.iter().map(|owner| owner.container.as_str()).collect();
    for table in &NATS {
        let mut chains = HashSet::new();
        for entrance in entrances {
            for rule in rules(nft, table, entrance)? {
                let named = rule.comment.as_deref().and_then(named);
                if named.is_some_and(|(of, container)| of == network && !containers.contains(container)) {
                    let jumps = rule.verdicts().filter_map(|verdict| verdict.chain().map(str::to_owned));
                    chains.extend(jumps.filter(|chain| chain.starts_with("CNI-")));
                }
            }
        }
        chains.iter().try_for_each(|chain| drop_chain(nft, change, table, chain))?;
    }
    Ok(())
}

/// Network and container in a comment such as `dnat name: "net" id: "0a1b"`. One that was cut names nobody.
fn named(comment: &str) -> Option<(&str, &str)> {
    let (_, rest) = comment.split_once("name: \"")?;
    let (network, rest) = rest.split_once("\" id: \"")?;
    Some((network, rest.strip_suffix('"')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_have_the_names_that_iptables_allows() {
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
