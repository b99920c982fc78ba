//! Moves a device into a pod and back. While the device is in the pod, its alias holds the name that it had on the
//! node. The Go plugin does the same, so each plugin can return devices that the other moved.

use podwire_cni_plugin::{Context, Error, Request, Result};
use podwire_cni_spec::IfName;
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link, LinkConfig, Netns};
use podwire_netlink::Batch;

use super::selector::Selector;
use crate::inspection::recorded_interface;

/// The name pattern for a device whose name is taken on the node.
const TEMPORARY_NAME: &str = "dev%d";

/// A device with its configuration on the node, to restore it if ADD fails.
#[derive(Clone, Debug)]
pub struct Hold {
    device: Link,
    link_config: LinkConfig,
}

impl Hold {
    /// Reads the device's configuration on the node.
    pub fn of(node: &mut Host, device: &Link) -> Result<Hold> {
        let link_config = LinkConfig::read(node, device.index)?;
        Ok(Hold { device: device.clone(), link_config })
    }

    /// The addresses and routes that the device had on the node.
    pub fn link_config(&self) -> &LinkConfig {
        &self.link_config
    }

    /// Moves the device into the pod and gives it the interface name of the request.
    pub fn move_to_pod(&self, req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<Link> {
        let name = &self.device.name;
        if let Some(other) = pod.find_link(&req.ifname)? {
            let text = format!(
                "failed to move link {name}: the pod has an interface {}, of kind {:?}",
                req.ifname, other.kind
            );
            let hint = "the container is already attached under that name: run DEL first";
            return Err(podwire_cni_spec::Error::internal(text).with_details(hint).into());
        }
        node.move_link(&self.device, &req.netns()?, &req.ifname, name)
            .doing(|| format!("failed to move link {name}"))?;
        Ok(pod.get_link(&req.ifname)?)
    }

    /// Moves the device back after a failed ADD and restores its name, alias, bridge, addresses and routes.
    pub fn undo(&self, req: &Request<'_>) {
        let undo = || -> Result<()> {
            let (mut node, mut pod) = (Host::here()?, req.pod()?);
            let Link { name, alias, mac, index, .. } = &self.device;
            let is_on_node = node.find_link(name)?.is_some_and(|link| link.index == *index);
            let is_device = |one: &Link| (one.alias == *name || one.name == *name) && one.mac == *mac;
            let inside = link::list(&mut pod.route)?.into_iter().filter(|_| !is_on_node).find(is_device);
            if let Some(inside) = inside {
                pod.move_link(&inside, &Netns::current()?, name, alias)?;
            }
            let home = node.get_link(name)?;
            let mut batch = Batch::new();
            if let Some(master) = self.device.master {
                let doing = format!("make {name} a port of its bridge again");
                batch.push(link::change(home.index, doing).u32(attribute::MASTER, master));
            }
            if self.device.is_up() {
                batch.push(link::up(&home));
            }
            node.route.batch(batch)?;
            Ok(self.link_config.restore(&mut node, home.index)?)
        };
        // The user sees the error of the failed ADD.
        let _ = undo();
    }
}

/// Whether a link's alias holds another interface name, as that of every device that was moved into a pod.
fn has_original_name(link: &Link) -> bool {
    IfName::parse(&link.alias).is_ok() && link.alias != link.name
}

/// Whether the recorded result of the attachment lists this link.
fn is_recorded(req: &Request<'_>, link: &Link) -> bool {
    let recorded = req.prev.as_ref().and_then(|prev| recorded_interface(prev, &req.ifname));
    recorded.is_some_and(|one| !one.mac.is_empty() && one.mac == link.mac_text())
}

/// Finds the attachment's device in the pod, even if it was renamed there. The alias of the returned link is the
/// device's name on the node, even if the alias was cleared.
///
/// Without a recorded result, only the interface of the request's name is considered, and only if it is not known to be
/// another device. A runtime follows a failed ADD with DEL, and the ADD may have failed because another attachment has
/// the device or the name.
pub fn find(req: &Request<'_>, selector: Option<&Selector>, pod: &mut Host) -> Result<Option<Link>> {
    let is_selected = |link: &Link| selector.and_then(|selector| selector.matches(link));
    let all: Vec<Link> = link::list(&mut pod.route)?
        .into_iter()
        .filter_map(|link| with_original_name(req, selector, link))
        .collect();
    let named = all.iter().find(|link| link.name == req.ifname);
    if let Some(link) = named.filter(|link| is_selected(link) != Some(false) || is_recorded(req, link)) {
        return Ok(Some(link.clone()));
    }
    let renamed = |link: &&Link| is_selected(link) == Some(true) || is_recorded(req, link);
    Ok(all.iter().filter(|_| req.prev.is_some()).find(renamed).cloned())
}

/// The link with its name on the node as alias: from its alias, else from the config if the link is recorded.
fn with_original_name(req: &Request<'_>, selector: Option<&Selector>, link: Link) -> Option<Link> {
    match selector {
        // The alias may equal the name: in a pod a device may have its name of the node.
        _ if IfName::parse(&link.alias).is_ok() => Some(link),
        Some(Selector::Name(name)) if link.name == req.ifname && is_recorded(req, &link) => {
            Some(Link { alias: name.clone(), ..link })
        }
        _ => None,
    }
}

/// Moves `device` from the pod to the node. If another link on the node has its name, it gets a temporary one.
pub fn move_to_node(pod: &mut Host, device: &Link, node: &mut Host) -> Result<()> {
    let (inside, name) = (&device.name, &device.alias);
    let home = Netns::current()?;
    if node.find_link(name)?.is_none() {
        return match pod.move_link(device, &home, name, "") {
            // A concurrent DEL was faster.
            Err(error) if error.is_gone() => Ok(()),
            done => done.doing(|| format!("failed to restore {inside:?} to original name {name:?}")),
        };
    }
    match pod.move_link(device, &home, TEMPORARY_NAME, name) {
        // A concurrent DEL was faster: the link of that name is the device.
        Err(error) if error.is_gone() => return Ok(()),
        moved => moved.doing(|| format!("failed to move {inside:?} to host netns"))?,
    }
    let here = link::list(&mut node.route)?;
    let here = here.iter().find(|link| link.alias == *name && link.mac == device.mac);
    let current = here.map(|link| link.name.as_str()).unwrap_or(TEMPORARY_NAME);
    let text = format!(
        "failed to restore {inside:?} to original name {name:?}: the node has another link of that name"
    );
    let hint = format!("the device is back on the node as {current}; rename it when {name} is free");
    Err(podwire_cni_spec::Error::internal(text).with_details(hint).into())
}

/// Restores the names of devices that the kernel moved back: when a namespace is destroyed, the kernel moves physical
/// devices to the node, down and under a free name. `names` lists names, besides temporary ones, that such a device may
/// have.
pub fn restore_names(node: &mut Host, is_device: impl Fn(&Link) -> bool, names: &[&str]) -> Result<()> {
    let mut errors: Vec<Error> = Vec::new();
    for link in link::list(&mut node.route)? {
        let was_moved_back = names.contains(&link.name.as_str()) || is_temporary(&link.name);
        // A link that is up is in use.
        if !has_original_name(&link) || link.is_up() || !was_moved_back || !is_device(&link) {
            continue;
        }
        if node.find_link(&link.alias)?.is_none() {
            let doing = format!("rename {} to its original name {}", link.name, link.alias);
            let message = link::change(link.index, doing).string(attribute::IFNAME, &link.alias);
            errors.extend(node.route.request(message.bytes(attribute::IFALIAS, &[])).err().map(Error::from));
        }
    }
    Error::all(errors)
}

fn is_temporary(name: &str) -> bool {
    let digits = name.strip_prefix("dev").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// [`restore_names`] for the device of this attachment.
pub fn restore_own_name(req: &Request<'_>, selector: Option<&Selector>, node: &mut Host) -> Result<()> {
    let is_selected = |link: &Link| selector.and_then(|selector| selector.matches(link)) == Some(true);
    restore_names(node, |link| is_selected(link) || is_recorded(req, link), &[&req.ifname])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_recognized() {
        assert!(is_temporary("dev0") && is_temporary("dev12"));
        assert!(
            !is_temporary("dev")
                && !is_temporary("device0")
                && !is_temporary("eth0")
                && !is_temporary("dev1a")
        );
    }
}
