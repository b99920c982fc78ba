//! bandwidth: limits how fast a pod receives and sends.
//!
//! A qdisc shapes only what leaves a device. What the pod receives leaves the node's end of its veth
//! pair, so a token bucket there is enough. What the pod sends *enters* at that end: it is redirected to an [ifb
//! device](ifb_device), and the second token bucket shapes what leaves that device.

mod check;
mod ifb_device;
mod limits;
mod node_end;

use limits::Destinations;
use podwire_cni_plugin::{Context, Error, Finding, Keys, Plugin, Request, Result};
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

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[limits::CONFIG_KEYS]))
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
        let end = node_end::get(req, &mut node, &result)?;
        if let Some(ifb) = limit(req, &mut node, &end, &limits)? {
            let mac = ifb.mac_text();
            result.interfaces.push(Interface { name: ifb.name, mac, ..Interface::default() });
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

    /// Checks the limits of the config.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        Limits::read(&req.config)?;
        Ok(())
    }
}

/// Limits a veth pair with the node's end `end`. Returns the ifb device if what the pod sends is limited.
pub(crate) fn limit(req: &Request<'_>, node: &mut Host, end: &Link, limits: &Limits) -> Result<Option<Link>> {
    let mut undo = Undo::new();
    if let Some(limit) = limits.into_pod {
        undo.push(|| drop(Host::here().and_then(|mut node| shaping::unlimit(&mut node, end))));
        limit_rate(node, end, limit, &limits.destinations)?;
    }
    let mut redirected_to = None;
    if let Some(limit) = limits.out_of_pod {
        undo.push(|| drop(remove(req)));
        let ifb = ifb_device::ensure(node, &req.owner(), end.mtu)?;
        // The token bucket exists before the first packet is redirected.
        limit_rate(node, &ifb, limit, &limits.destinations)?;
        ifb_device::redirect(node, end, &ifb)?;
        redirected_to = Some(ifb);
    }
    undo.keep();
    Ok(redirected_to)
}

/// Removes the ifb devices of an attachment. The token bucket on the node's end is deleted with the veth pair.
pub(crate) fn remove(req: &Request<'_>) -> Result<()> {
    let mut node = Host::here()?;
    let mut errors = Vec::new();
    for ifb in ifb_device::all_of(&mut node, req)? {
        // Redirect first: a redirect to a deleted device drops packets.
        errors.extend(stop_redirect(req, &mut node, &ifb).err());
        errors.extend(delete(&ifb).err());
    }
    Error::all(errors)
}

/// Removes the network's ifb devices that belong to no valid attachment.
pub(crate) fn collect(req: &Request<'_>) -> Result<()> {
    let mut errors = Vec::new();
    for stale in ifb_device::stale(&mut Host::here()?, req)? {
        errors.extend(delete(&stale).err());
    }
    Error::all(errors)
}

fn limit_rate(node: &mut Host, link: &Link, limit: Limit, destinations: &Destinations) -> Result<()> {
    let limited = match destinations.limit(limit) {
        None => shaping::limit(node, link, limit.bucket()),
        Some(some) => shaping::limit_some(node, link, &some),
    };
    limited.doing(|| format!("create a token bucket on {}", link.name))
}

/// Deletes an ifb device over a separate socket, because link notifications of the node may flood it. The lookup binds
/// the socket: an unbound socket gets no notifications, and the deletion would wait for the kernel's cleanup.
fn delete(ifb: &Link) -> Result<()> {
    let mut host = Host::here()?;
    match link::find_index(&mut host.route, ifb.index)? {
        Some(found) => Ok(detached::delete_link(&mut host, &found, None)?),
        None => Ok(()),
    }
}

/// Removes the redirect to `ifb` at the node's end of the veth pair, if that still exists.
fn stop_redirect(req: &Request<'_>, node: &mut Host, ifb: &Link) -> Result<()> {
    let mut ends: Vec<Link> = Vec::new();
    if let Some(pod_end) = req.find_pod()?.and_then(|mut pod| pod.find_link(&req.ifname).ok().flatten()) {
        ends.extend(node_end::find(node, &pod_end)?);
    }
    let listed = req.prev.iter().flat_map(|prev| &prev.interfaces).filter(|one| one.sandbox.is_empty());
    let names = listed.map(|one| one.name.clone()).chain([veth::host_name(&req.owner())]);
    for name in names.filter(|name| *name != ifb.name) {
        ends.extend(node.find_link(&name)?.filter(|link| link.kind == "veth"));
    }
    for end in ends {
        if shaping::is_redirected(node, &end, ifb)? {
            shaping::stop_redirect(node, &end)?;
        }
    }
    Ok(())
}
