//! The detour of what a pod sends: an ifb device on the node, one for each attachment.
//!
//! The Go plugin names it after network and container, and one container that joins the same network twice
//! meets itself there. So that name is taken when it is free; the next interface gets one with its own name
//! in it. Whose a device is stands in its alias. A device with Go's name and no alias was made by Go.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::ValidAttachment;
use podwire_kernel::rt::link;
use podwire_kernel::{ifb, Host, Link, Owner};
use sha2::{Digest, Sha512};

const PREFIX: &str = "bwp";

/// The names that the device of `owner` may have: the one that Go gives, and the one with the interface in it.
pub fn names(owner: &Owner) -> [String; 2] {
    let Owner { network, container, ifname } = owner;
    [format!("{network}{container}"), format!("{network}{container}{ifname}")].map(|text| hashed(&text))
}

/// Interface names have room for 12 digits of the hash.
fn hashed(text: &str) -> String {
    let hash = Sha512::digest(text.as_bytes());
    let digits: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digits}")
}

/// The device of `owner`, made if it is not there.
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
            format!("the devices {go} and {own} are there already, and neither is of {}", owner.comment());
        return Err(podwire_cni_spec::Error::internal(text)
            .with_details("delete the one that nobody uses")
            .into());
    };
    Ok(ifb::create(node, name, mtu, owner)?)
}

/// Every device of the attachment: ours by its alias; without alias, the one that a Go plugin made.
pub fn all_of(node: &mut Host, req: &Request<'_>) -> Result<Vec<Link>> {
    let owner = req.owner();
    let mut all = Vec::new();
    for name in names(&owner) {
        let Some(found) = node.find_link(&name)?.filter(|link| link.kind == "ifb") else { continue };
        // A result that does not name it: the unsigned device belongs to another interface of the container.
        let recorded = |name: &str| {
            req.prev.as_ref().is_none_or(|prev| prev.interfaces.iter().any(|one| one.name == name))
        };
        let of_go = || found.alias.is_empty() && !req.signed_only && recorded(&name);
        if owner.matches(&found.alias) || of_go() {
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
    fn names_fit_and_the_first_is_gos() {
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
