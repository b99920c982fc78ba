//! The ifb device on the node that shapes what a pod sends, one for each attachment.
//!
//! The Go plugin derives its name from network and container, so two interfaces of one container on the same network
//! collide. Podwire uses Go's name if it is free; a further interface gets a name that also depends on the interface.
//! The alias holds the owner. A device with Go's name and without an alias was created by the Go plugin.

use podwire_cni_plugin::{Context, Request, Result};
use podwire_cni_spec::ValidAttachment;
use podwire_kernel::rt::link;
use podwire_kernel::{ifb, shaping, Host, Link, Owner};
use sha2::{Digest, Sha512};

const PREFIX: &str = "bwp";

/// The possible names of the device of `owner`: Go's, and the one that depends on the interface.
pub fn names(owner: &Owner) -> [String; 2] {
    let Owner { network, container, ifname } = owner;
    [format!("{network}{container}"), format!("{network}{container}{ifname}")].map(|text| hashed(&text))
}

/// Interface names have room for the prefix and 12 digits of the hash.
fn hashed(text: &str) -> String {
    let hash = Sha512::digest(text.as_bytes());
    let digits: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digits}")
}

/// The device of `owner`, created if it does not exist.
pub fn ensure(node: &mut Host, owner: &Owner, mtu: u32) -> Result<Link> {
    let mut free = Vec::new();
    for name in names(owner) {
        match node.find_link(&name)? {
            Some(found) if found.kind == "ifb" && owner.matches(&found.alias) => return Ok(found),
            Some(_) => {}
            None => free.push(name),
        }
    }
    let Some(name) = free.first() else {
        let [go, own] = names(owner);
        let text =
            format!("the devices {go} and {own} already exist, and neither belongs to {}", owner.comment());
        return Err(podwire_cni_spec::Error::internal(text)
            .with_details("delete the device that is unused")
            .into());
    };
    Ok(ifb::create(node, name, mtu, owner)?)
}

/// Redirects what enters at `end`, the packets that the pod sends, to the ifb device.
pub fn redirect(node: &mut Host, end: &Link, ifb: &Link) -> Result<()> {
    shaping::redirect(node, end, ifb)
        .doing(|| format!("redirect what the pod sends from {} to {}", end.name, ifb.name))
}

/// All devices of the attachment: those with its owner as alias, and one without an alias that the Go plugin created.
pub fn all_of(node: &mut Host, req: &Request<'_>) -> Result<Vec<Link>> {
    let owner = req.owner();
    let mut all = Vec::new();
    for name in names(&owner) {
        let Some(found) = node.find_link(&name)?.filter(|link| link.kind == "ifb") else { continue };
        // If the result does not list a device without alias, it belongs to another interface of the container.
        let recorded = |name: &str| {
            req.prev.as_ref().is_none_or(|prev| prev.interfaces.iter().any(|one| one.name == name))
        };
        let is_from_go = || found.alias.is_empty() && !req.signed_only && recorded(&name);
        if owner.matches(&found.alias) || is_from_go() {
            all.push(found);
        }
    }
    Ok(all)
}

/// The network's devices that belong to no valid attachment.
pub fn stale(node: &mut Host, req: &Request<'_>) -> Result<Vec<Link>> {
    let valid = req.valid()?;
    let signature = |one: &ValidAttachment| {
        Owner { container: one.container_id.clone(), ifname: one.ifname.clone(), ..req.owner() }.comment()
    };
    let kept: Vec<String> = valid.iter().map(signature).collect();
    let mut all = link::list(&mut node.route)?;
    all.retain(|link| {
        let ours = link.kind == "ifb" && link.name.starts_with(PREFIX);
        ours && Owner::is_in(&link.alias, &req.network) && !kept.contains(&link.alias)
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_the_first_equals_gos() {
        let owner =
            |ifname: &str| Owner { network: "net".into(), container: "id".into(), ifname: ifname.into() };
        let [go, own] = names(&owner("eth0"));
        // echo -n netid | sha512sum
        assert_eq!(go, GO_NAME);
        assert_eq!((go.len(), own.len()), (15, 15));
        assert_eq!(names(&owner("eth1"))[0], go);
        assert_ne!(names(&owner("eth1"))[1], own);
    }

    const GO_NAME: &str = "bwp30e7440e95de";
}
