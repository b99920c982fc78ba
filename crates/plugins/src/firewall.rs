//! firewall: accepts the pod's packets on a node that drops forwarded packets by default, and isolates bridges.
//!
//! If firewalld runs, the pod's addresses become sources of one of its zones. Otherwise they become elements of sets;
//! the rules that use the sets exist once, after a chain that the administrator may fill. `ingressPolicy` isolates the
//! pods of one bridge from other bridges, in both cases by Podwire's rules.

mod bridge_ports;
mod check;
mod config;
mod dbus;
mod firewalld;

use std::net::IpAddr;

use podwire_cni_plugin::{ledger, Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Version};
use podwire_kernel::firewall::forward::{self, Policy, Rules};
use podwire_kernel::firewall::{legacy, spoof};
use podwire_kernel::{detached, Host, Undo};

use crate::addresses::all_hosts;
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
        "firewall: accepts the pod's packets in the node's firewall, and isolates bridges"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS]))
    }

    fn versions(&self) -> &'static [Version] {
        Version::from(Version::V0_4_0)
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let prev = req.chained_or("missing prevResult from earlier plugin")?;
        let rules = conf.rules(prev)?;
        let mut node = Host::here()?;
        require_bridge(&rules, &mut node)?;
        let mut undo = Undo::new();
        undo.push(|| drop(Host::here().map(|mut node| bridge_ports::release(req, &mut node))));
        bridge_ports::restrict(req, &mut node, prev, &rules)?;
        match conf.firewalld()? {
            Some(mut firewalld) => {
                isolate(req, &mut node, &rules)?;
                bind(&mut firewalld, conf.zone(), &all_hosts(prev), &mut undo)?;
            }
            None => {
                // Before the call that adds the addresses first: its later steps (the administrator's chain, iptables'
                // rule) may fail.
                undo.push(|| {
                    drop(
                        Host::here().and_then(|mut node| {
                            forward::remove(node.nft()?, &req.owner(), &all_hosts(prev))
                        }),
                    );
                });
                let (owner, is_running) = (req.owner(), &crate::address_holder::is_running);
                forward::add_if_free(node.nft()?, &owner, &all_hosts(prev), &rules, is_running)
                    .doing(|| "accept the pod's packets".into())?;
            }
        }
        undo.keep();
        detached::after_adding(&node);
        Ok(prev.clone())
    }

    /// Removes the pod from Podwire's rules and from firewalld's zone: the backend is not recorded, and firewalld may
    /// have been started or stopped since ADD.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let known = req.prev.as_ref().map(all_hosts);
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(remove(req, &mut node, known.as_deref()).err());
        if Conf::read_or_default(req).isolates_pods() {
            errors.extend(bridge_ports::release(req, &mut node).err());
        }
        errors.extend(unbind(&Conf::read_or_default(req), &known.unwrap_or_default()));
        detached::after_deleting(&node);
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &Conf::read(req)?)
    }

    fn inspect_rules<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        self.inspect(req)
    }

    /// Collects Podwire's rules only: a source of firewalld has no owner, and may be the administrator's.
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let (kept, mut node) = (req.kept_owners()?, Host::here()?);
        // Rules of the Go plugin name no network: only DEL of their pod removes them.
        if let Some(nft) = node.find_nft()? {
            forward::collect(nft, &req.network, &kept)?;
            spoof::collect(nft, &req.network, &kept)?;
        }
        Ok(())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf = Conf::read(req)?;
        if let Some(mut firewalld) = conf.firewalld()? {
            let doing = || format!("find firewalld's {} zone", conf.zone());
            firewalld.ensure_zone().map_err(|error| failure(doing(), &error))?;
        }
        Ok(())
    }
}

/// Fails if `ingressPolicy` is set and the first interface is not a bridge. Rules for a pod's veth pair would remain
/// after DEL.
fn require_bridge(rules: &Rules, node: &mut Host) -> Result<()> {
    let Some(name) = rules.bridge.as_ref().filter(|_| rules.policy != Policy::Open) else { return Ok(()) };
    if node.find_link(name)?.is_some_and(|link| link.kind == "bridge") {
        return Ok(());
    }
    let text =
        format!("ingressPolicy: {name}, the first interface of prevResult, is not a bridge of this node");
    Err(podwire_cni_spec::Error::invalid_config(text)
        .with_details("put firewall after bridge in the chain")
        .into())
}

/// Removes the pod from Podwire's rules and from those of the Go plugin.
fn remove(req: &Request<'_>, node: &mut Host, known: Option<&[IpAddr]>) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    let owner = req.owner();
    match known {
        // A later plugin of the chain dropped the pod's addresses from the result.
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
    added.iter().filter_map(|added| added.prev.as_ref()).flat_map(all_hosts).collect()
}

/// Isolates the bridge as configured, for a pod whose packets firewalld accepts.
fn isolate(req: &Request<'_>, node: &mut Host, rules: &Rules) -> Result<()> {
    if rules.bridge.is_none() {
        return Ok(());
    }
    forward::isolate(node.nft()?, &req.owner(), rules).doing(|| "isolate the pod's bridge".into())
}

/// Binds the pod's addresses to the zone.
fn bind<'a>(firewalld: &mut Firewalld<'a>, zone: &'a str, pod: &[IpAddr], undo: &mut Undo<'a>) -> Result<()> {
    for source in pod.iter().map(source) {
        let added = firewalld.add(&source);
        let doing = format!("failed to add the address {source} to {zone} zone");
        // A source that was already bound is not removed. After a timeout, firewalld may still bind it.
        if !matches!(added, Ok(false)) {
            undo.push(move || {
                drop(Firewalld::connect(zone).and_then(|mut firewalld| firewalld.remove(&source)))
            });
        }
        added.map_err(|error| failure(doing, &error))?;
    }
    Ok(())
}

/// Removes the pod's addresses from the zone and returns the failures. If firewalld does not run, there are no sources.
fn unbind(conf: &Conf, pod: &[IpAddr]) -> Vec<Error> {
    let (backend, zone) = (conf.backend(), conf.zone());
    let mut errors = Vec::new();
    if pod.is_empty() {
        return errors;
    }
    let mut firewalld = match Firewalld::connect(zone) {
        Ok(firewalld) => firewalld,
        // As at ADD: an unreachable bus counts as no firewalld, unless the backend is firewalld.
        Err(error) if error.is_absent() || backend != Backend::Firewalld => return errors,
        Err(error) => return vec![failure("connect to firewalld".into(), &error).into()],
    };
    for source in pod.iter().map(source) {
        match firewalld.remove(&source) {
            Ok(_) => {}
            // The backend is not firewalld now. It may have been at ADD, but that is no reason to fail.
            Err(error) if error.is_absent() || backend == Backend::Nftables => break,
            Err(error) => {
                let doing = format!("failed to remove the address {source} from {zone} zone");
                errors.push(failure(doing, &error).into());
            }
        }
    }
    errors
}
