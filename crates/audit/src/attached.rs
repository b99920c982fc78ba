//! What running pods lack.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_cni_plugin::{Command, Finding, Request, Result};
use podwire_cni_spec::Attachment;

use crate::inventory::{Inventory, KnownAttachment, PodState};
use crate::{Fault, Location, Node};

pub(crate) fn faults<'p>(node: &'p Node<'p>, inventory: &Inventory) -> Vec<Fault<'p>> {
    let running =
        || inventory.attachments.iter().filter(|one| one.state == PodState::Running && !one.is_unfinished());
    let mut faults: Vec<Fault<'p>> = running().flat_map(|one| inspect(node, one)).collect();
    faults.extend(duplicate_addresses(running()));
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

/// Running pods of one network with the same address.
fn duplicate_addresses<'a, 'p>(running: impl Iterator<Item = &'a KnownAttachment>) -> Vec<Fault<'p>> {
    let mut holders: BTreeMap<(String, IpAddr), Vec<String>> = BTreeMap::new();
    for one in running {
        let ips = recorded(one).or_else(|| last_result(one)).map(|result| result.ips).unwrap_or_default();
        for ip in ips {
            let key = (one.owner.network.clone(), ip.address.addr());
            holders.entry(key).or_default().push(one.owner.comment());
        }
    }
    let duplicates = holders.into_iter().filter(|(_, owners)| owners.len() > 1);
    duplicates
        .map(|((_, ip), owners)| {
            let what = format!(
                "address {ip} belongs to {} too: delete and add one of them again",
                owners[1..].join(" and ")
            );
            Fault::new(Location::Pool, owners[0].clone(), what)
        })
        .collect()
}

fn last_result(one: &KnownAttachment) -> Option<Attachment> {
    let entry =
        one.ledger_files.iter().flat_map(|file| &file.entries).find(|entry| entry.result.is_some())?;
    Attachment::from_json(entry.result.as_ref()?, podwire_cni_spec::Version::V0_1_0).ok()
}
