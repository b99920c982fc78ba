//! What running pods lack, and addresses that two of them have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cni_plugin::{Command, Finding, Request, Result};
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

/// Addresses that several running pods have: of one network, or of several networks if the node is the router of all of
/// them. Networks that the node does not route, such as VLANs, may have the same addresses.
fn duplicate_addresses<'a>(running: impl Iterator<Item = &'a KnownAttachment>) -> Vec<Duplicate> {
    let gateways = addresses_of_node();
    // The second part of the key: the network, if the node does not route it.
    let mut holders: BTreeMap<(IpAddr, Option<&str>), Vec<&Owner>> = BTreeMap::new();
    for one in running {
        let ips = recorded(one).or_else(|| last_result(one)).map(|result| result.ips).unwrap_or_default();
        for ip in ips {
            let is_routed = ip.gateway.is_some_and(|gateway| gateways.contains(&gateway));
            let network = (!is_routed).then_some(&*one.owner.network);
            holders.entry((ip.address.addr(), network)).or_default().push(&one.owner);
        }
    }
    let duplicates = holders.into_iter().filter(|(_, owners)| owners.len() > 1);
    duplicates
        .map(|((ip, _), owners)| Duplicate {
            ip,
            networks: owners.iter().map(|owner| owner.network.clone()).collect(),
            owners: owners.into_iter().map(Owner::comment).collect(),
        })
        .collect()
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
