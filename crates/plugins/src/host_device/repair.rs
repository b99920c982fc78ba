//! CHECK of a device in a pod, and its repair.

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link};
use podwire_netlink::Batch;

use super::configure::configure;
use super::hold::{self, Hold};
use super::selector::Selector;
use super::sysfs::Sysfs;
use crate::inspection::{self, recorded_interface};

/// Compares the device with the recorded result.
pub fn inspect<'p>(req: &Request<'p>, selector: &Selector) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    // A device with a user-space driver has no link.
    let is_link = recorded_interface(recorded, &req.ifname).is_some();
    if !is_link {
        return Ok(Vec::new());
    }
    let mut pod = req.pod()?;
    let named = pod.find_link(&req.ifname)?;
    match (hold::find(req, Some(selector), &mut pod)?, named) {
        (Some(device), Some(named)) if device.name == req.ifname && device.alias != named.alias => {
            without_alias(req, selector, &mut pod, &named)
        }
        (Some(device), _) if device.name == req.ifname => inspection::pod_interface(req, &mut pod),
        (Some(device), named) => Ok(vec![renamed(req, device, named.is_some())]),
        (None, Some(other)) => without_alias(req, selector, &mut pod, &other),
        (None, None) => Ok(vec![missing(req, selector)?]),
    }
}

/// The device was renamed in the pod.
fn renamed<'p>(req: &Request<'p>, device: Link, name_is_taken: bool) -> Finding<'p> {
    let text = format!("the pod has no interface {}: the device is called {}", req.ifname, device.name);
    if name_is_taken {
        return Finding::new(format!("{text}, and {} is another device", req.ifname));
    }
    let req = req.clone();
    Finding::new(text).repaired_by(move || {
        let doing = format!("rename {} to {}", device.name, req.ifname);
        let mut batch = Batch::new();
        // Most kernels rename a link only while it is down.
        batch.push(link::down(&device));
        batch.push(link::change(device.index, doing).string(attribute::IFNAME, &req.ifname));
        batch.push(link::up(&device));
        let mut pod = req.pod()?;
        pod.route.batch(batch)?;
        // The kernel deleted the routes when the link went down.
        inspection::pod_interface(&req, &mut pod)?.into_iter().try_for_each(Finding::repair)
    })
}

/// The interface exists, but its alias does not hold the device's name.
fn without_alias<'p>(
    req: &Request<'p>,
    selector: &Selector,
    pod: &mut Host,
    found: &Link,
) -> Result<Vec<Finding<'p>>> {
    let recorded = recorded_interface(req.recorded()?, &req.ifname);
    if recorded.is_none_or(|one| one.mac != found.mac_text()) {
        let text =
            format!("interface {} is not the device {selector}: its alias is {:?}", found.name, found.alias);
        return Ok(vec![Finding::new(text)]);
    }
    let lost = Finding::new(format!(
        "interface {} lost its alias, the name that it had on the node: DEL could not restore the name",
        found.name
    ));
    let lost = match selector {
        Selector::Name(name) => {
            let doing = format!("set the alias of {} to {name}", found.name);
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

/// The device is not in the pod. If it is on the node, the repair moves it again.
fn missing<'p>(req: &Request<'p>, selector: &Selector) -> Result<Finding<'p>> {
    let text = format!("the pod has no interface {}", req.ifname);
    let Ok(Some(device)) = selector.find(&mut Host::here()?, &Sysfs::default()) else {
        return Ok(Finding::new(format!("{text}, and the node has no device {selector}")));
    };
    let (req, text) = (req.clone(), format!("{text}: the device {} is on the node", device.name));
    Ok(Finding::new(text).repaired_by(move || {
        let (mut node, mut pod) = (Host::here()?, req.pod()?);
        let link = Hold::of(&mut node, &device)?.move_to_pod(&req, &mut node, &mut pod)?;
        let mut recorded = req.recorded()?.clone();
        configure(&mut pod, &link, &mut recorded, &podwire_kernel::LinkConfig::default())
            .doing(|| format!("move {} into the pod again", device.name))
    }))
}
