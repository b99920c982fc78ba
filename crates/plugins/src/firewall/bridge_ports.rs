//! The pod's ports on a bridge whose pods are isolated from each other. IP rules see what passes the bridge only if the
//! bridge hands it to them, and never frames with a VLAN tag or of another protocol.

use podwire_cni_plugin::{Context, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::forward::{Policy, Rules};
use podwire_kernel::firewall::spoof;
use podwire_kernel::{bridge, Host, Link};

/// Makes the rules of `ingressPolicy: isolated` see everything that the pod sends to other ports of its bridge. A trunk
/// may send tagged frames: its VLANs are separated by the bridge.
pub(super) fn restrict(req: &Request<'_>, node: &mut Host, prev: &Attachment, rules: &Rules) -> Result<()> {
    let Some(bridge) = isolated(node, rules)? else { return Ok(()) };
    bridge::ensure_seen_by_ip_rules(node, &bridge).doing(|| "ingressPolicy isolated".into())?;
    for port in ports(node, prev, &bridge)? {
        spoof::require_untagged(node.nft()?, &req.owner(), &port)
            .doing(|| format!("ingressPolicy isolated: drop tagged frames from port {port}"))?;
    }
    Ok(())
}

/// The ports that [`restrict`] should restrict and that are not restricted.
pub(super) fn unrestricted(
    req: &Request<'_>,
    node: &mut Host,
    prev: &Attachment,
    rules: &Rules,
) -> Result<Vec<String>> {
    let Some(bridge) = isolated(node, rules)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for port in ports(node, prev, &bridge)? {
        if !spoof::requires_untagged(node.nft()?, &req.owner(), &port)? {
            found.push(port);
        }
    }
    Ok(found)
}

/// Reverts [`restrict`]. The port may be gone, so its name is all that is known. The guard of `macspoofchk` is the bridge
/// plugin's, and stays if this plugin's ADD failed.
pub(super) fn release(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    match &req.prev {
        Some(prev) => {
            let outside = prev.interfaces.iter().filter(|one| one.sandbox.is_empty());
            let ports: Vec<&str> = outside.map(|one| one.name.as_str()).collect();
            spoof::permit_tagged(nft, &req.owner(), &ports)?;
        }
        None => drop(spoof::remove_all(nft, &req.owner())?),
    }
    Ok(())
}

fn isolated(node: &mut Host, rules: &Rules) -> Result<Option<Link>> {
    match &rules.bridge {
        Some(bridge) if rules.policy == Policy::Isolated => Ok(node.find_link(bridge)?),
        _ => Ok(None),
    }
}

/// The names of the pod's ports on this bridge that carry no tagged VLANs.
fn ports(node: &mut Host, prev: &Attachment, bridge: &Link) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for interface in prev.interfaces.iter().filter(|one| one.sandbox.is_empty()) {
        let Some(link) = node.find_link(&interface.name)?.filter(|link| link.master == Some(bridge.index))
        else {
            continue;
        };
        let is_trunk = bridge::vlans(node, link.index)?.iter().any(|vlans| !vlans.native);
        found.extend((!is_trunk).then_some(link.name));
    }
    Ok(found)
}
