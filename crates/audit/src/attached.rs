//! What running pods lack, and addresses that two of them have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cni_plugin::{Command, Finding, Request, Result};
use podwire_cni_spec::config::{AddressScope, L2Segment};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::address;
use podwire_kernel::{Host, Owner};

use crate::inventory::{Inventory, KnownAttachment, PodState};
use crate::{Fault, Location, Node};

pub(crate) fn faults<'p>(node: &'p Node<'p>, inventory: &Inventory) -> Vec<Fault<'p>> {
    let running =
        || inventory.attachments.iter().filter(|one| one.state == PodState::Running && !one.is_unfinished());
    let duplicates = duplicate_addresses(running());
    let in_conflict: BTreeSet<&str> =
        duplicates.iter().flat_map(|one| &one.owners).map(String::as_str).collect();
    let mut faults = Vec::new();
    for one in running() {
        let found = inspect(node, one);
        // The repair of one pod would take rules and routes from the other.
        let is_kept = !in_conflict.contains(&*one.owner.comment());
        faults.extend(found.into_iter().map(|fault| if is_kept { fault } else { fault.without_repair() }));
    }
    faults.extend(duplicates.iter().map(Duplicate::fault));
    faults
}

/// The differences that the plugins find: from the ledger if it has the attachment, otherwise by CHECK with the record.
fn inspect<'p>(node: &'p Node<'p>, one: &KnownAttachment) -> Vec<Fault<'p>> {
    let owner = one.owner.comment();
    if one.ledger_files.is_empty() {
        return check(node, one)
            .err()
            .map(|error| Fault::found(Location::Pod, owner, error.into()))
            .into_iter()
            .collect();
    }
    let mut findings: Vec<Finding<'p>> = Vec::new();
    let entries = one.ledger_files.iter().flat_map(|file| &file.entries);
    // An entry without a result is an earlier ADD that did not finish; its objects are not expected.
    for entry in entries.filter(|entry| entry.result.is_some()) {
        let Some(plugin) = node.registry.find(&entry.plugin) else { continue };
        // An earlier pod left this entry, with a namespace of the same path.
        if matches!(entry.find_netns(), Ok(None)) {
            continue;
        }
        let found = entry.request(Command::Check, node.registry).and_then(|req| {
            let (prev, deadline) = (recorded(one).or(req.prev.clone()), node.runtime.deadline());
            plugin.inspect(&Request { prev, deadline, ..req })
        });
        match found {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(error.into()),
        }
    }
    findings.into_iter().map(|finding| Fault::found(Location::Pod, owner.clone(), finding)).collect()
}

/// The result of the whole chain, which later plugins may have changed.
fn recorded(one: &KnownAttachment) -> Option<Attachment> {
    one.record.as_ref().and_then(|record| record.attachment())
}

fn check(node: &Node<'_>, one: &KnownAttachment) -> Result<()> {
    let Some(record) = &one.record else { return Ok(()) };
    let checked = record.network_list().and_then(|list| {
        if !list.version.has_check() {
            return Ok(());
        }
        node.runtime.check(&list, &record.identity()?)
    });
    Ok(checked.map_err(|error| error.to_cni())?)
}

/// Running pods with the same address.
struct Duplicate {
    ip: IpAddr,
    owners: Vec<String>,
    networks: BTreeSet<String>,
}

impl Duplicate {
    fn fault<'p>(&self) -> Fault<'p> {
        let Duplicate { ip, owners, networks } = self;
        let others = owners[1..].join(" and ");
        let what = match networks.len() {
            1 => format!("address {ip} belongs to {others} too: delete and add one of them again"),
            _ => format!(
                "address {ip} belongs to {others} too: the networks {} overlap; give them different subnets, and \
                 delete and add one of the pods again",
                networks.iter().cloned().collect::<Vec<_>>().join(" and ")
            ),
        };
        Fault::new(Location::Pool, owners[0].clone(), what)
    }
}

/// Where an address has to be unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope<'a> {
    /// All networks that the node routes.
    Node,
    /// The networks of an L2 segment.
    Segment(L2Segment),
    Network(&'a str),
}

/// Addresses that several running pods have: of one network, of several networks if the node is the router of all of them,
/// or of several networks on one L2 segment. Other networks, such as those of separate VLANs, may have the same addresses.
fn duplicate_addresses<'a>(running: impl Iterator<Item = &'a KnownAttachment>) -> Vec<Duplicate> {
    let gateways = addresses_of_node();
    let mut holders: BTreeMap<(IpAddr, Scope<'_>), Vec<&Owner>> = BTreeMap::new();
    for one in running {
        let ips = recorded(one).or_else(|| last_result(one)).map(|result| result.ips).unwrap_or_default();
        let mut scopes: Vec<Scope<'_>> = segments(one).into_iter().map(Scope::Segment).collect();
        scopes.push(Scope::Network(&one.owner.network));
        for ip in ips {
            let is_routed = ip.gateway.is_some_and(|gateway| gateways.contains(&gateway));
            for scope in scopes.iter().cloned().chain(is_routed.then_some(Scope::Node)) {
                holders.entry((ip.address.addr(), scope)).or_default().push(&one.owner);
            }
        }
    }
    // The pods of one scope can be those of another one, or some of them.
    let mut largest: Vec<(IpAddr, BTreeSet<&Owner>)> = Vec::new();
    let found = holders.into_iter().filter(|(_, owners)| owners.len() > 1);
    for ((ip, _), owners) in found {
        let owners: BTreeSet<&Owner> = owners.into_iter().collect();
        if largest.iter().any(|(other, more)| *other == ip && more.is_superset(&owners)) {
            continue;
        }
        largest.retain(|(other, less)| *other != ip || !less.is_subset(&owners));
        largest.push((ip, owners));
    }
    let duplicate = |(ip, owners): (IpAddr, BTreeSet<&Owner>)| Duplicate {
        ip,
        networks: owners.iter().map(|owner| owner.network.clone()).collect(),
        owners: owners.into_iter().map(Owner::comment).collect(),
    };
    largest.into_iter().filter(|(_, owners)| owners.len() > 1).map(duplicate).collect()
}

/// The L2 segments of an attachment, from the configs of its ADD.
fn segments(one: &KnownAttachment) -> BTreeSet<L2Segment> {
    let entries = one.ledger_files.iter().flat_map(|file| &file.entries);
    let mut scopes: Vec<_> = entries.map(|entry| AddressScope::of(&entry.plugin, &entry.config)).collect();
    if let Some(Ok(list)) = one.record.as_ref().map(|record| record.network_list()) {
        let plugins = list.plugins.into_iter();
        scopes.extend(plugins.map(|plugin| AddressScope::of(&plugin.kind, &plugin.raw.into())));
    }
    scopes.into_iter().filter_map(|scope| scope.segment).collect()
}

/// The addresses of the node, among them the gateways of the networks that it routes.
fn addresses_of_node() -> BTreeSet<IpAddr> {
    let found = Host::here().and_then(|mut node| Ok(address::list(&mut node.route, 0)?));
    found.unwrap_or_default().into_iter().map(|one| one.ip).collect()
}

fn last_result(one: &KnownAttachment) -> Option<Attachment> {
    let entry =
        one.ledger_files.iter().flat_map(|file| &file.entries).find(|entry| entry.result.is_some())?;
    Attachment::from_json(entry.result.as_ref()?, podwire_cni_spec::Version::V0_1_0).ok()
}

#[cfg(test)]
mod tests {
    use podwire_cni_plugin::ledger::{Entry, LedgerFile};
    use serde_json::{json, Value};

    use super::*;

    /// A running pod with the address 198.51.100.7, for which the node does not route.
    fn attachment(network: &str, plugin: &str, config: &Value) -> KnownAttachment {
        let entry = Entry {
            plugin: plugin.into(),
            network: network.into(),
            container: format!("c-{network}"),
            ifname: "eth0".into(),
            netns: String::new(),
            cookie: None,
            args: String::new(),
            path: String::new(),
            config: config.clone(),
            result: Some(json!({"cniVersion": "1.0.0", "ips": [{"address": "198.51.100.7/24"}]})),
        };
        KnownAttachment {
            owner: entry.owner(),
            ledger_files: vec![LedgerFile { path: "".into(), entries: vec![entry], is_locked: false }],
            record: None,
            state: PodState::Running,
        }
    }

    #[test]
    fn pods_with_one_address_are_found_on_a_shared_segment() {
        let bridge = |name: &str| json!({"bridge": name, "ipam": {"type": "host-local"}});
        let running = [
            attachment("a", "bridge", &bridge("shared")),
            attachment("b", "bridge", &bridge("shared")),
            attachment("c", "bridge", &bridge("separate")),
            attachment("d", "macvlan", &json!({"master": "shared"})),
        ];
        let found = duplicate_addresses(running.iter());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].owners, ["a/c-a/eth0", "b/c-b/eth0", "d/c-d/eth0"]);
        let text = found[0].fault().what();
        assert!(
            text.contains("belongs to b/c-b/eth0 and d/c-d/eth0 too: the networks a and b and d overlap"),
            "{text}"
        );
        assert!(duplicate_addresses(running[1..3].iter()).is_empty());
    }
}
