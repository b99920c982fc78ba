//! What may have become of a device that was lent to a pod, and how to put it right.

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link};
use podwire_netlink::Batch;

use super::loan::{self, Loan};
use super::sysfs::Sysfs;
use super::wanted::Wanted;
use super::wire;
use crate::inspection::{self, recorded_interface};

/// Compares the device with its record.
pub fn inspect<'p>(req: &Request<'p>, wanted: &Wanted) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    // A device without a link has none in the record either.
    let is_link = recorded_interface(recorded, &req.ifname).is_some();
    if !is_link {
        return Ok(Vec::new());
    }
    let mut pod = req.pod()?;
    let named = pod.find_link(&req.ifname)?;
    match (loan::find(req, Some(wanted), &mut pod)?, named) {
        (Some(device), Some(named)) if device.name == req.ifname && device.alias != named.alias => {
            unsigned(req, wanted, &mut pod, &named)
        }
        (Some(device), _) if device.name == req.ifname => inspection::pod_interface(req, &mut pod),
        (Some(device), named) => Ok(vec![renamed(req, device, named.is_some())]),
        (None, Some(other)) => unsigned(req, wanted, &mut pod, &other),
        (None, None) => Ok(vec![away(req, wanted)?]),
    }
}

/// Somebody called it something else.
fn renamed<'p>(req: &Request<'p>, device: Link, name_is_taken: bool) -> Finding<'p> {
    let text = format!("the pod has no interface {}: the device is called {}", req.ifname, device.name);
    if name_is_taken {
        return Finding::new(format!("{text}, and {} is something else", req.ifname));
    }
    let req = req.clone();
    Finding::new(text).repaired_by(move || {
        let doing = format!("rename {} to {}", device.name, req.ifname);
        let mut batch = Batch::new();
        // Most kernels rename only what is down.
        batch.push(link::down(&device));
        batch.push(link::change(device.index, doing).string(attribute::IFNAME, &req.ifname));
        batch.push(link::up(&device));
        let mut pod = req.pod()?;
        pod.route.batch(batch)?;
        // Routes went when it was down.
        inspection::pod_interface(&req, &mut pod)?.into_iter().try_for_each(Finding::repair)
    })
}

/// The interface is there, but does not say which device it is.
fn unsigned<'p>(
    req: &Request<'p>,
    wanted: &Wanted,
    pod: &mut Host,
    found: &Link,
) -> Result<Vec<Finding<'p>>> {
    let recorded = recorded_interface(req.recorded()?, &req.ifname);
    if recorded.is_none_or(|one| one.mac != found.mac_text()) {
        let text =
            format!("interface {} is not the device {wanted}: its alias is {:?}", found.name, found.alias);
        return Ok(vec![Finding::new(text)]);
    }
    let lost = Finding::new(format!(
        "interface {} lost its alias, the name that it had on the node: it could not be given back",
        found.name
    ));
    let lost = match wanted {
        Wanted::Name(name) => {
            let doing = format!("note the name {name} on {}", found.name);
            lost.repaired_by(inspection::change(
                req,
                link::change(found.index, doing).string(attribute::IFALIAS, name),
            ))
        }
        _ => lost,
    };
    let mut all = vec![lost];
    all.extend(inspection::pod_interface(req, pod)?);
    Ok(all)
}

/// The device is not in the pod. If it is on the node, it can be lent again.
fn away<'p>(req: &Request<'p>, wanted: &Wanted) -> Result<Finding<'p>> {
    let text = format!("the pod has no interface {}", req.ifname);
    let Ok(Some(device)) = wanted.find(&mut Host::here()?, &Sysfs::default()) else {
        return Ok(Finding::new(format!("{text}, and the node has no device {wanted}")));
    };
    let (req, text) = (req.clone(), format!("{text}: the device {} is on the node", device.name));
    Ok(Finding::new(text).repaired_by(move || {
        let (mut node, mut pod) = (Host::here()?, req.pod()?);
        let inside = Loan::of(&mut node, &device)?.hand_to(&req, &mut node, &mut pod)?;
        let mut recorded = req.recorded()?.clone();
        wire(&mut pod, &inside, &mut recorded, &podwire_kernel::LinkConfig::default())
            .doing(|| format!("lend {} to the pod again", device.name))
    }))
}
