//! CHECK of a pod behind the node's firewall: the sources of firewalld's zone, or Podwire's rules.

use std::net::IpAddr;

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::forward::{self, Policy, Rules};
use podwire_kernel::firewall::{legacy, spoof};
use podwire_kernel::{Host, Owner};

use super::bridge_ports;
use super::config::Conf;
use super::firewalld::{failure, source, Firewalld};
use crate::address_holder;
use crate::addresses::all_hosts;
use crate::inspection::{self, on_node};

/// Compares what accepts the pod's packets and isolates its bridge.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded_or("missing prevResult from earlier plugin")?;
    let (pod, rules) = (all_hosts(recorded), conf.rules(recorded)?);
    let mut findings = unrestricted_ports(req, recorded, &rules)?;
    match conf.firewalld()? {
        Some(mut firewalld) => {
            findings.extend(sources(&mut firewalld, conf.zone(), &pod));
            findings.extend(isolation(req, rules)?);
        }
        None => findings.extend(accepted(req, &pod, rules)?),
    }
    Ok(findings)
}

/// The pod's ports on an isolated bridge send untagged IP and ARP only.
fn unrestricted_ports<'p>(
    req: &Request<'p>,
    recorded: &Attachment,
    rules: &Rules,
) -> Result<Vec<Finding<'p>>> {
    let ports = bridge_ports::unrestricted(req, &mut Host::here()?, recorded, rules)?;
    let finding = |port: String| {
        let (owner, name) = (req.owner(), port.clone());
        let again = on_node(move |node| Ok(spoof::require_untagged(node.nft()?, &owner, &name)?));
        let text =
            format!("bridge port {port} may send tagged frames, which ingressPolicy isolated does not see");
        Finding::new(text).repaired_by(again)
    };
    Ok(ports.into_iter().map(finding).collect())
}

/// Each address is a source of the zone.
fn sources<'p>(firewalld: &mut Firewalld<'_>, zone: &str, pod: &[IpAddr]) -> Vec<Finding<'p>> {
    let compare = |source: String| {
        let missing = format!("failed to find the address {source} in {zone} zone");
        match firewalld.has(&source) {
            Ok(true) => None,
            Ok(false) => Some(Finding::new(missing).repaired_by(bind_again(zone.to_owned(), source))),
            Err(error) => Some(podwire_cni_plugin::Error::from(failure(missing, &error)).into()),
        }
    };
    pod.iter().map(source).filter_map(compare).collect()
}

fn bind_again<'p>(zone: String, source: String) -> impl FnOnce() -> Result<()> + 'p {
    move || {
        let added = Firewalld::connect(&zone).and_then(|mut firewalld| firewalld.add(&source));
        let doing = format!("failed to add the address {source} to {zone} zone");
        Ok(added.map(drop).map_err(|error| failure(doing, &error))?)
    }
}

/// Podwire's rules isolate the bridge, also where firewalld accepts the pod's packets.
fn isolation<'p>(req: &Request<'p>, rules: Rules) -> Result<Option<Finding<'p>>> {
    if rules.policy == Policy::Open || rules.bridge.is_none() {
        return Ok(None);
    }
    shared_rules("ingressPolicy", req.owner(), rules)
}

/// The rules for all pods of the network.
fn shared_rules<'p>(feature: &str, owner: Owner, rules: Rules) -> Result<Option<Finding<'p>>> {
    let absent = forward::absent(Host::here()?.nft()?, &owner, &rules)?;
    let again = move |node: &mut Host| Ok(forward::prepare(node.nft()?, &owner, &rules)?);
    Ok(inspection::rules(feature, &absent, again))
}

/// Each address is accepted by Podwire's rules, or by those of the Go plugin, which need nothing else.
fn accepted<'p>(req: &Request<'p>, pod: &[IpAddr], rules: Rules) -> Result<Vec<Finding<'p>>> {
    let (mut node, owner) = (Host::here()?, req.owner());
    let nft = node.nft()?;
    let mut ours = Vec::new();
    for address in pod {
        if !legacy::lets_pass(nft, *address)? {
            ours.push(*address);
        }
    }
    let mut findings = Vec::new();
    if ours.is_empty() {
        return Ok(findings);
    }
    findings.extend(shared_rules("the firewall", owner.clone(), rules.clone())?);
    for address in ours {
        if forward::is_present(nft, &owner, address)? {
            continue;
        }
        if let Some(conflict) = address_holder::conflict(&owner, address, forward::holder(nft, address)?) {
            findings.push(conflict);
            continue;
        }
        let (owner, rules) = (owner.clone(), rules.clone());
        let again = on_node(move |node| {
            forward::add_if_free(node.nft()?, &owner, &[address], &rules, &address_holder::is_running)
                .doing(|| "accept the pod's packets".into())
        });
        let text = format!("packets of {address} are not let through any more");
        findings.push(Finding::new(text).repaired_by(again));
    }
    Ok(findings)
}
