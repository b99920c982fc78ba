//! bandwidth: limits how fast a pod receives and sends.
//!
//! A queue holds back only what leaves a device. What the pod receives leaves the node's end of its cable, so
//! a token bucket there is enough. What the pod sends comes *in* at that end, and is led through a [`detour`],
//! a device that exists only so that those packets leave somewhere: there waits the second bucket.

mod check;
mod detour;
mod limits;

use podwire_cni_plugin::{Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Version};
use podwire_kernel::rt::link;
use podwire_kernel::{detached, shaping, veth, Host, Link, Undo};

pub(crate) use check::inspect;
pub(crate) use limits::{Limit, Limits};

/// The plugin.
#[derive(Debug)]
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn about(&self) -> &'static str {
        "bandwidth: limits how fast a pod receives and sends"
    }

    fn versions(&self) -> &'static [Version] {
        Version::from(Version::V0_3_0)
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let limits = Limits::read(&req.config)?;
        let mut result = req.chained()?.clone();
        if limits.is_none() {
            return Ok(result);
        }
        let mut node = Host::here()?;
        let end = node_end(req, &mut node, &result)?;
        if let Some(detour) = limit(req, &mut node, &end, &limits)? {
            let mac = detour.mac_text();
            result.interfaces.push(Interface { name: detour.name, mac, ..Interface::default() });
        }
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        remove(req)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        inspect(req, &Limits::read(&req.config)?)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        collect(req)
    }

    /// Whether the limits that every pod of the network gets make sense.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        Limits::read(&req.config)?;
        Ok(())
    }
}

/// Limits what goes over the cable that ends in `end` on the node. Returns the detour of what the pod sends, if there is one.
pub(crate) fn limit(req: &Request<'_>, node: &mut Host, end: &Link, limits: &Limits) -> Result<Option<Link>> {
    let mut undo = Undo::new();
    if let Some(limit) = limits.into_pod {
        undo.push(|| drop(Host::here().and_then(|mut node| shaping::unlimit(&mut node, end))));
        limit_rate(node, end, limit)?;
    }
    let mut way = None;
    if let Some(limit) = limits.out_of_pod {
        undo.push(|| drop(remove(req)));
        let detour = detour::ensure(node, &req.owner(), end.mtu)?;
        // The bucket stands before the first packet comes.
        limit_rate(node, &detour, limit)?;
        redirect(node, end, &detour)?;
        way = Some(detour);
    }
    undo.keep();
    Ok(way)
}

/// Removes the detours of an attachment. The limit of what it receives goes with its cable.
pub(crate) fn remove(req: &Request<'_>) -> Result<()> {
    let mut node = Host::here()?;
    let mut errors = Vec::new();
    for detour in detour::all_of(&mut node, req)? {
        // A redirect into a device that is gone swallows packets, so it goes first.
        errors.extend(close(req, &mut node, &detour).err());
        errors.extend(delete(&detour).err());
    }
    Error::all(errors)
}

/// Removes the network's detours that belong to no valid attachment.
pub(crate) fn collect(req: &Request<'_>) -> Result<()> {
    let mut errors = Vec::new();
    for stale in detour::stale(&mut Host::here()?, req)? {
        errors.extend(delete(&stale).err());
    }
    Error::all(errors)
}

fn limit_rate(node: &mut Host, link: &Link, limit: Limit) -> Result<()> {
    shaping::limit(node, link, limit.bucket()).doing(|| format!("create a token bucket on {}", link.name))
}

fn redirect(node: &mut Host, end: &Link, detour: &Link) -> Result<()> {
    shaping::redirect(node, end, detour)
        .doing(|| format!("lead what the pod sends from {} through {}", end.name, detour.name))
}

/// The node's end of the pod's cable: each end has the other one's number. The plugin before this one should
/// have told its name; that saves us from a device which has the same number in yet another namespace.
fn node_end(req: &Request<'_>, node: &mut Host, result: &Attachment) -> Result<Link> {
    let inside = req.pod()?.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
    let told: Vec<_> = result.interfaces.iter().filter(|one| one.sandbox.is_empty()).collect();
    let end = podwire_kernel::veth::find_peer(node, &inside)?
        .filter(|end| told.is_empty() || told.iter().any(|one| one.name == end.name));
    end.ok_or_else(|| {
        let text = format!("no veth peer of container interface found in host ns: {:?}", req.ifname);
        let hint = "bandwidth limits veth interfaces only, as bridge and ptp make them";
        podwire_cni_spec::Error::invalid_config(text).with_details(hint).into()
    })
}

/// Deletes a detour over a socket of its own, which the node's notices may flood. Looking the device up first
/// gives that socket its address: one without gets no notices, and would wait for the kernel's dust.
fn delete(detour: &Link) -> Result<()> {
    let mut place = Host::here()?;
    match link::find_index(&mut place.route, detour.index)? {
        Some(found) => Ok(detached::delete_link(&mut place, &found, None)?),
        None => Ok(()),
    }
}

/// Ends the redirect into `detour` at the node's end of the cable, if that is still there.
fn close(req: &Request<'_>, node: &mut Host, detour: &Link) -> Result<()> {
    let mut ends: Vec<Link> = Vec::new();
    if let Some(inside) = req.find_pod()?.and_then(|mut pod| pod.find_link(&req.ifname).ok().flatten()) {
        ends.extend(podwire_kernel::veth::find_peer(node, &inside)?);
    }
    let told = req.prev.iter().flat_map(|prev| &prev.interfaces).filter(|one| one.sandbox.is_empty());
    let names = told.map(|one| one.name.clone()).chain([veth::host_name(&req.owner())]);
    for name in names.filter(|name| *name != detour.name) {
        ends.extend(node.find_link(&name)?.filter(|link| link.kind == "veth"));
    }
    for end in ends {
        if shaping::is_redirected(node, &end, detour)? {
            shaping::stop_redirect(node, &end)?;
        }
    }
    Ok(())
}
