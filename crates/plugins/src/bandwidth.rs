//! bandwidth: limits how fast a pod receives and sends.
//!
//! A queue holds back only what leaves a device. What the pod receives leaves the node's end of its cable, so
//! a token bucket there is enough. What the pod sends comes *in* at that end, and is led through a [`detour`],
//! a device that exists only so that those packets leave somewhere: there waits the second bucket.

mod detour;
mod limits;

use cni::{Attachment, Interface, Version};
use cni_plugin::{Context, Error, Finding, Plugin, Request, Result};
use kernel::rt::link;
use kernel::{detached, shaping, veth, Host, Link, Undo};

use crate::plumbing::differs;
use limits::{Limit, Limits};

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
        let mut undo = Undo::new();
        if let Some(limit) = limits.into_pod {
            undo.push(|| drop(Host::here().and_then(|mut node| shaping::unlimit(&mut node, &end))));
            limit_rate(&mut node, &end, limit)?;
        }
        if let Some(limit) = limits.out_of_pod {
            undo.push(|| drop(self.del(req)));
            let detour = detour::ensure(&mut node, &req.owner(), end.mtu)?;
            // The bucket stands before the first packet comes.
            limit_rate(&mut node, &detour, limit)?;
            shaping::redirect(&mut node, &end, &detour)
                .doing(|| format!("lead what the pod sends from {} through {}", end.name, detour.name))?;
            let mac = detour.mac_text();
            result.interfaces.push(Interface { name: detour.name, mac, ..Interface::default() });
        }
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        for detour in detour::all_of(&mut node, req)? {
            // A redirect into a device that is gone swallows packets, so it goes first.
            errors.extend(close(req, &mut node, &detour).err());
            errors.extend(delete(&detour).err());
        }
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let compare = || -> Result<()> {
            let limits = Limits::read(&req.config)?;
            if limits.is_none() {
                return Ok(());
            }
            let mut node = Host::here()?;
            let end = node_end(req, &mut node, req.recorded()?)?;
            let mut wrong = Vec::new();
            if let Some(limit) = limits.into_pod {
                wrong.extend(wrong_bucket(&mut node, &end, limit)?);
            }
            if let Some(limit) = limits.out_of_pod {
                match detour::all_of(&mut node, req)?.first() {
                    None => wrong.push(format!("the device {} is missing", detour::names(&req.owner())[0])),
                    Some(detour) => wrong.extend(wrong_detour(&mut node, &end, detour, limit)?),
                }
            }
            match wrong.is_empty() {
                true => Ok(()),
                false => Err(differs(format!("the limits of {} differ: {}", req.ifname, wrong.join("; ")))),
            }
        };
        compare().map(|()| Vec::new())
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        for stale in detour::stale(&mut Host::here()?, req)? {
            errors.extend(delete(&stale).err());
        }
        Error::all(errors)
    }

    /// Whether the limits that every pod of the network gets make sense.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        Limits::read(&req.config)?;
        Ok(())
    }
}

fn limit_rate(node: &mut Host, link: &Link, limit: Limit) -> Result<()> {
    shaping::limit(node, link, limit.bucket()).doing(|| format!("create a token bucket on {}", link.name))
}

/// The node's end of the pod's cable: each end has the other one's number. The plugin before this one should
/// have told its name; that saves us from a device which has the same number in yet another namespace.
fn node_end(req: &Request<'_>, node: &mut Host, result: &Attachment) -> Result<Link> {
    let inside = req.pod()?.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
    let told: Vec<_> = result.interfaces.iter().filter(|one| one.sandbox.is_empty()).collect();
    let end = other_end(node, &inside)?
        .filter(|end| told.is_empty() || told.iter().any(|one| one.name == end.name));
    end.ok_or_else(|| {
        let text = format!("no veth peer of container interface found in host ns: {:?}", req.ifname);
        let hint = "bandwidth limits veth interfaces only, as bridge and ptp make them";
        cni::Error::invalid_config(text).with_details(hint).into()
    })
}

fn other_end(node: &mut Host, inside: &Link) -> Result<Option<Link>> {
    let Some(index) = inside.link.filter(|_| inside.kind == "veth") else { return Ok(None) };
    let end = link::find_index(&mut node.route, index)?;
    Ok(end.filter(|end| end.kind == "veth" && end.link == Some(inside.index)))
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
        ends.extend(other_end(node, &inside)?);
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

fn wrong_bucket(node: &mut Host, link: &Link, limit: Limit) -> Result<Vec<String>> {
    Ok(match shaping::find(node, link)? {
        None => vec![format!("{} has no token bucket", link.name)],
        Some(found) => {
            let all = shaping::differences(&limit.bucket(), &found);
            all.into_iter().map(|text| format!("{}: {text}", link.name)).collect()
        }
    })
}

fn wrong_detour(node: &mut Host, end: &Link, detour: &Link, limit: Limit) -> Result<Vec<String>> {
    let mut wrong = wrong_bucket(node, detour, limit)?;
    if !detour.is_up() {
        wrong.push(format!("{} is down", detour.name));
    }
    if !shaping::is_redirected(node, end, detour)? {
        wrong.push(format!("what the pod sends to {} is not redirected to {}", end.name, detour.name));
    }
    Ok(wrong)
}
