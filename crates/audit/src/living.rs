//! What living pods lack.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_cni_plugin::{Command, Finding, Request, Result};
use podwire_cni_spec::Attachment;

use crate::census::{Census, Known, Life};
use crate::{Fault, Node, Side};

pub(crate) fn faults<'p>(node: &'p Node<'p>, census: &Census) -> Vec<Fault<'p>> {
    let living = || census.known.iter().filter(|one| one.life == Life::Alive && !one.is_unfinished());
    let mut faults: Vec<Fault<'p>> = living().flat_map(|one| inspect(node, one)).collect();
    faults.extend(doubles(living()));
    faults
}

/// What the plugins themselves find. Ours are asked by their own account; what only a runtime remembers, by CHECK.
fn inspect<'p>(node: &'p Node<'p>, one: &Known) -> Vec<Fault<'p>> {
    let owner = one.owner.comment();
    if one.accounts.is_empty() {
        return check(node, one)
            .err()
            .map(|error| Fault::found(Side::Pod, owner, error.into()))
            .into_iter()
            .collect();
    }
    let mut findings: Vec<Finding<'p>> = Vec::new();
    let entries = one.accounts.iter().flat_map(|account| &account.entries);
    // One without a result is that of an ADD before, which was cut short: nobody wants what it asked for any more.
    for entry in entries.filter(|entry| entry.result.is_some()) {
        let Some(plugin) = node.registry.find(&entry.plugin) else { continue };
        // One that the pod of before left, in a namespace of the same path.
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
    findings.into_iter().map(|finding| Fault::found(Side::Pod, owner.clone(), finding)).collect()
}

/// The result of the whole chain, which later plugins may have changed.
fn recorded(one: &Known) -> Option<Attachment> {
    one.record.as_ref().and_then(|record| record.attachment())
}

fn check(node: &Node<'_>, one: &Known) -> Result<()> {
    let Some(record) = &one.record else { return Ok(()) };
    let checked = record.network_list().and_then(|list| match list.version.has_check() {
        true => node.runtime.check(&list, &record.identity()?),
        false => Ok(()),
    });
    Ok(checked.map_err(|error| error.to_cni())?)
}

/// No two living pods of a network may have one address.
fn doubles<'a, 'p>(living: impl Iterator<Item = &'a Known>) -> Vec<Fault<'p>> {
    let mut holders: BTreeMap<(String, IpAddr), Vec<String>> = BTreeMap::new();
    for one in living {
        let ips = recorded(one).or_else(|| last_result(one)).map(|result| result.ips).unwrap_or_default();
        for ip in ips {
            let key = (one.owner.network.clone(), ip.address.addr());
            holders.entry(key).or_default().push(one.owner.comment());
        }
    }
    let doubles = holders.into_iter().filter(|(_, owners)| owners.len() > 1);
    doubles
        .map(|((_, ip), owners)| {
            let what = format!(
                "address {ip} is that of {} too: delete and add one of them anew",
                owners[1..].join(" and ")
            );
            Fault::new(Side::Pool, owners[0].clone(), what)
        })
        .collect()
}

fn last_result(one: &Known) -> Option<Attachment> {
    let entry =
        one.accounts.iter().flat_map(|account| &account.entries).find(|entry| entry.result.is_some())?;
    Attachment::from_json(entry.result.as_ref()?, podwire_cni_spec::Version::V0_1_0).ok()
}
