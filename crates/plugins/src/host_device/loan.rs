//! Lending a device to a pod, and bringing it home. While it is away its alias is the name that it had on the node:
//! so the Go plugin notes it, and either brings home what the other lent.

use podwire_cni_plugin::{Context, Error, Request, Result};
use podwire_cni_spec::IfName;
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link, LinkConfig, Netns};
use podwire_netlink::Batch;

use super::wanted::Wanted;
use crate::inspection::recorded_interface;

/// What the kernel calls a device whose name is taken where it goes to.
const MAKESHIFT: &str = "dev%d";

/// A device as it was on the node, to put it back there if the ADD comes to no good end.
#[derive(Clone, Debug)]
pub struct Loan {
    device: Link,
    belongings: LinkConfig,
}

impl Loan {
    /// Notes what there is to restore.
    pub fn of(node: &mut Host, device: &Link) -> Result<Loan> {
        let belongings = LinkConfig::read(node, device.index)?;
        Ok(Loan { device: device.clone(), belongings })
    }

    /// The addresses and routes that it had.
    pub fn belongings(&self) -> &LinkConfig {
        &self.belongings
    }

    /// Moves the device into the pod, under the pod's name for it.
    pub fn hand_to(&self, req: &Request<'_>, node: &mut Host, pod: &mut Host) -> Result<Link> {
        let name = &self.device.name;
        if let Some(other) = pod.find_link(&req.ifname)? {
            let text = format!(
                "failed to move link {name}: the pod has an interface {}, of kind {:?}",
                req.ifname, other.kind
            );
            let hint = "the container is attached under that name: DEL it first";
            return Err(podwire_cni_spec::Error::internal(text).with_details(hint).into());
        }
        node.move_link(&self.device, &req.netns()?, &req.ifname, name)
            .doing(|| format!("failed to move link {name}"))?;
        Ok(pod.get_link(&req.ifname)?)
    }

    /// Takes the loan back as if it had never been: the name, the alias, the bridge, the addresses, the routes.
    pub fn take_back(&self, req: &Request<'_>) {
        let take = || -> Result<()> {
            let (mut node, mut pod) = (Host::here()?, req.pod()?);
            let Link { name, alias, mac, index, .. } = &self.device;
            let never_left = node.find_link(name)?.is_some_and(|link| link.index == *index);
            let is_it = |one: &Link| (one.alias == *name || one.name == *name) && one.mac == *mac;
            let inside = link::list(&mut pod.route)?.into_iter().filter(|_| !never_left).find(is_it);
            if let Some(inside) = inside {
                pod.move_link(&inside, &Netns::current()?, name, alias)?;
            }
            let home = node.get_link(name)?;
            let mut batch = Batch::new();
            if let Some(master) = self.device.master {
                let doing = format!("give {name} its place back");
                batch.push(link::change(home.index, doing).u32(attribute::MASTER, master));
            }
            if self.device.is_up() {
                batch.push(link::up(&home));
            }
            node.route.batch(batch)?;
            Ok(self.belongings.restore(&mut node, home.index)?)
        };
        // The error that the user sees is the one that made it necessary.
        let _ = take();
    }
}

/// Whether a link has the name of a device as its alias, as every device has that is away from home.
fn is_away(link: &Link) -> bool {
    IfName::parse(&link.alias).is_ok() && link.alias != link.name
}

/// Whether the record of the attachment tells of this link.
fn is_recorded(req: &Request<'_>, link: &Link) -> bool {
    let recorded = req.prev.as_ref().and_then(|prev| recorded_interface(prev, &req.ifname));
    recorded.is_some_and(|one| !one.mac.is_empty() && one.mac == link.mac_text())
}

/// The device of this attachment in the pod, also if somebody renamed it there, with the name that it has at home as its
/// alias, also if somebody wiped that out.
///
/// Without a record only the interface of the right name can be meant, and only if it is not seen to be another device: an
/// ADD that failed since another attachment has the device, or the name, is followed by a DEL.
pub fn find(req: &Request<'_>, wanted: Option<&Wanted>, pod: &mut Host) -> Result<Option<Link>> {
    let is_wanted = |link: &Link| wanted.and_then(|wanted| wanted.is(link));
    let all: Vec<Link> =
        link::list(&mut pod.route)?.into_iter().filter_map(|link| signed(req, wanted, link)).collect();
    let named = all.iter().find(|link| link.name == req.ifname);
    if let Some(link) = named.filter(|link| is_wanted(link) != Some(false) || is_recorded(req, link)) {
        return Ok(Some(link.clone()));
    }
    let renamed = |link: &&Link| is_wanted(link) == Some(true) || is_recorded(req, link);
    Ok(all.iter().filter(|_| req.prev.is_some()).find(renamed).cloned())
}

/// A link with the name of a device at home as its alias: it says so, or it is known to be the one of which the config
/// says so.
fn signed(req: &Request<'_>, wanted: Option<&Wanted>, link: Link) -> Option<Link> {
    match wanted {
        // In a pod a device may well have the name that it has on the node.
        _ if IfName::parse(&link.alias).is_ok() => Some(link),
        Some(Wanted::Name(name)) if link.name == req.ifname && is_recorded(req, &link) => {
            Some(Link { alias: name.clone(), ..link })
        }
        _ => None,
    }
}

/// Brings `device` home from the pod. If its name is taken on the node meanwhile it comes home under a makeshift one.
pub fn bring_home(pod: &mut Host, device: &Link, node: &mut Host) -> Result<()> {
    let (inside, name) = (&device.name, &device.alias);
    let home = Netns::current()?;
    if node.find_link(name)?.is_none() {
        return match pod.move_link(device, &home, name, "") {
            // Another DEL was faster.
            Err(error) if error.is_gone() => Ok(()),
            done => done.doing(|| format!("failed to restore {inside:?} to original name {name:?}")),
        };
    }
    match pod.move_link(device, &home, MAKESHIFT, name) {
        // Another DEL was faster, and the name is the device's own.
        Err(error) if error.is_gone() => return Ok(()),
        moved => moved.doing(|| format!("failed to move {inside:?} to host netns"))?,
    }
    let here = link::list(&mut node.route)?;
    let here = here.iter().find(|link| link.alias == *name && link.mac == device.mac);
    let called = here.map(|link| link.name.as_str()).unwrap_or(MAKESHIFT);
    let text = format!(
        "failed to restore {inside:?} to original name {name:?}: the node has another link of that name"
    );
    let hint = format!("the device is back on the node as {called}; rename it when {name} is free");
    Err(podwire_cni_spec::Error::internal(text).with_details(hint).into())
}

/// Gives its name back to a device that came home by itself: when a pod's namespace ends, the kernel puts the machine's
/// own devices back on the node, down and under whatever name is free there. `names` says which name it may have.
pub fn rename_home(node: &mut Host, is_it: impl Fn(&Link) -> bool, names: &[&str]) -> Result<()> {
    let mut errors: Vec<Error> = Vec::new();
    for link in link::list(&mut node.route)? {
        let came_back = names.contains(&link.name.as_str()) || is_makeshift(&link.name);
        // One that is up is in use, whatever it is called.
        if !is_away(&link) || link.is_up() || !came_back || !is_it(&link) {
            continue;
        }
        if node.find_link(&link.alias)?.is_none() {
            let doing = format!("give {} its name {} back", link.name, link.alias);
            let message = link::change(link.index, doing).string(attribute::IFNAME, &link.alias);
            errors.extend(node.route.request(message.bytes(attribute::IFALIAS, &[])).err().map(Error::from));
        }
    }
    Error::all(errors)
}

fn is_makeshift(name: &str) -> bool {
    let digits = name.strip_prefix("dev").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// [`rename_home`] for the device of this attachment.
pub fn rename_own(req: &Request<'_>, wanted: Option<&Wanted>, node: &mut Host) -> Result<()> {
    let is_it =
        |link: &Link| wanted.and_then(|wanted| wanted.is(link)) == Some(true) || is_recorded(req, link);
    rename_home(node, is_it, &[&req.ifname])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_kernel_makes_up_are_makeshift() {
        assert!(is_makeshift("dev0") && is_makeshift("dev12"));
        assert!(
            !is_makeshift("dev")
                && !is_makeshift("device0")
                && !is_makeshift("eth0")
                && !is_makeshift("dev1a")
        );
    }
}
