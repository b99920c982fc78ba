//! firewall: lets the pod's packets through a node that forwards nothing by default, and keeps bridges apart.
//!
//! Where firewalld runs, the pod's addresses become sources of one of its zones. Elsewhere they become elements
//! of sets; the rules that look into them stand once, behind a chain that the administrator may fill.
//! `ingressPolicy` keeps packets of one bridge from the pods of another, by rules of our own in either case.

mod bus;
mod check;
mod config;
mod firewalld;

use std::net::IpAddr;

use podwire_cni_plugin::{ledger, Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Version};
use podwire_kernel::firewall::forward::{self, Policy, Rules};
use podwire_kernel::firewall::legacy;
use podwire_kernel::{detached, Host, Undo};

use crate::lease::hosts;
use config::{Backend, Conf};
use firewalld::{failure, source, Firewalld};

/// The plugin.
#[derive(Debug)]
pub struct Firewall;

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    fn about(&self) -> &'static str {
        "firewall: lets the pod's packets through the node's firewall, and keeps bridges apart"
    }

    fn versions(&self) -> &'static [Version] {
        Version::from(Version::V0_4_0)
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let prev = req.chained()?;
        let rules = conf.rules(prev)?;
        let mut node = Host::here()?;
        require_bridge(&rules, &mut node)?;
        let mut undo = Undo::new();
        match conf.firewalld()? {
            Some(mut firewalld) => {
                keep_apart(req, &mut node, &rules)?;
                bind(&mut firewalld, conf.zone(), &addresses(prev), &mut undo)?;
            }
            None => {
                // The addresses come first, then the administrator's chain and iptables' rule, and each may fail.
                undo.push(|| {
                    drop(
                        Host::here().and_then(|mut node| {
                            forward::remove(node.nft()?, &req.owner(), &addresses(prev))
                        }),
                    );
                });
                forward::add(node.nft()?, &req.owner(), &addresses(prev), &rules)
                    .doing(|| "let the pod's packets pass".into())?;
            }
        }
        undo.keep();
        detached::after_adding(&node);
        Ok(prev.clone())
    }

    /// Takes the pod from our own rules and from firewalld's zone: which of the two it was in is not recorded, and
    /// firewalld may have come or gone since.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let known = req.prev.as_ref().map(addresses);
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(remove(req, &mut node, known.as_deref()).err());
        errors.extend(unbind(&Conf::read_loosely(req), &known.unwrap_or_default()));
        detached::after_deleting(&node);
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &Conf::read(req)?)
    }

    fn inspect_rules<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        self.inspect(req)
    }

    /// Our own rules only: a source of firewalld does not say whose it is, and may be the administrator's.
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let (kept, mut node) = (req.kept_owners()?, Host::here()?);
        // (Rules of Go's firewall name no network: they go with the DEL of their pod.)
        if let Some(nft) = node.find_nft()? {
            forward::collect(nft, &req.network, &kept)?;
        }
        Ok(())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf = Conf::read(req)?;
        if let Some(mut firewalld) = conf.firewalld()? {
            let doing = || format!("look for firewalld's {} zone", conf.zone());
            firewalld.ensure_zone().map_err(|error| failure(doing(), &error))?;
        }
        Ok(())
    }
}

/// A policy is about all pods of a bridge. What would be written of a pod's own cable would stay when it goes.
fn require_bridge(rules: &Rules, node: &mut Host) -> Result<()> {
    let Some(name) = rules.bridge.as_ref().filter(|_| rules.policy != Policy::Open) else { return Ok(()) };
    if node.find_link(name)?.is_some_and(|link| link.kind == "bridge") {
        return Ok(());
    }
    let text = format!("ingressPolicy: {name}, the first interface of prevResult, is no bridge of this node");
    Err(podwire_cni_spec::Error::invalid_config(text).with_details("chain it behind bridge").into())
}

fn addresses(result: &Attachment) -> Vec<IpAddr> {
    hosts(&result.ips.iter().map(|ip| ip.address).collect::<Vec<_>>())
}

/// Takes the pod out of our own rules, and out of those of a Go plugin.
fn remove(req: &Request<'_>, node: &mut Host, known: Option<&[IpAddr]>) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    let owner = req.owner();
    match known {
        // A later plugin of the chain may have dropped the pod's addresses.
        Some([]) => forward::remove(nft, &owner, &addresses_at_add(req))?,
        Some(addresses) => forward::remove(nft, &owner, addresses)?,
        None => forward::remove_all(nft, &owner)?,
    };
    if !req.signed_only {
        legacy::remove_passes(nft, known.unwrap_or_default())?;
    }
    Ok(())
}

fn addresses_at_add(req: &Request<'_>) -> Vec<IpAddr> {
    let added = ledger::requests(&req.owner(), "firewall", req.registry);
    added.iter().filter_map(|added| added.prev.as_ref()).flat_map(addresses).collect()
}

/// Keeps the bridge apart as the config says, for a pod whose packets firewalld lets pass.
fn keep_apart(req: &Request<'_>, node: &mut Host, rules: &Rules) -> Result<()> {
    if rules.bridge.is_none() {
        return Ok(());
    }
    match forward::add(node.nft()?, &req.owner(), &[], rules) {
        // Without our table no bridge was ever kept apart that should not be now.
        Err(podwire_kernel::Error::Netlink(error)) if error.is_gone() && rules.policy == Policy::Open => {
            Ok(())
        }
        other => other.doing(|| "keep the pod's bridge apart".into()),
    }
}

/// Makes the pod's addresses sources of the zone.
fn bind<'a>(firewalld: &mut Firewalld<'a>, zone: &'a str, pod: &[IpAddr], undo: &mut Undo<'a>) -> Result<()> {
    for source in pod.iter().map(source) {
        let added = firewalld.add(&source);
        let doing = format!("failed to add the address {source} to {zone} zone");
        // One that was there is not ours to take back; one of which nothing was heard may come yet.
        if !matches!(added, Ok(false)) {
            undo.push(move || drop(Firewalld::at(zone).and_then(|mut firewalld| firewalld.remove(&source))));
        }
        added.map_err(|error| failure(doing, &error))?;
    }
    Ok(())
}

/// Takes the pod's addresses from the zone; says what failed. A firewalld that does not run has no sources.
fn unbind(conf: &Conf, pod: &[IpAddr]) -> Vec<Error> {
    let (backend, zone) = (conf.backend(), conf.zone());
    let mut errors = Vec::new();
    if pod.is_empty() {
        return errors;
    }
    let mut firewalld = match Firewalld::at(zone) {
        Ok(firewalld) => firewalld,
        // Where ADD would take it that firewalld does not run, so does DEL.
        Err(error) if error.is_absent() || backend != Backend::Firewalld => return errors,
        Err(error) => return vec![failure("reach firewalld".into(), &error).into()],
    };
    for source in pod.iter().map(source) {
        match firewalld.remove(&source) {
            Ok(_) => {}
            // An earlier config may have had another backend, but it is no reason to fail.
            Err(error) if error.is_absent() || backend == Backend::Nftables => break,
            Err(error) => {
                let doing = format!("failed to remove the address {source} from {zone} zone");
                errors.push(failure(doing, &error).into());
            }
        }
    }
    errors
}
