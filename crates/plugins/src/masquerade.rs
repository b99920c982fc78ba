//! `ipMasq`: packets that leave the pod's network get the node's address. Shared by the plugins that offer it.
//!
//! The rules exist once; a pod adds an element to a map. DEL also removes the chains that a Go plugin made for the pod.

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_kernel::firewall::{legacy, masquerade};
use podwire_kernel::{Host, Undo};

use crate::addresses::{addresses_of, hosts};
use crate::{address_holder, inspection};

/// Checks `ipMasqBackend`. nftables serves both values: the effect is the same.
pub fn check_backend(backend: &Option<String>) -> Result<()> {
    match backend.as_deref() {
        None | Some("" | "iptables" | "nftables") => Ok(()),
        Some(other) => {
            let text = format!("unknown ipmasq backend {other:?}");
            let hint = "set ipMasqBackend to nftables or iptables";
            Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into())
        }
    }
}

/// Masquerades the pod's traffic to destinations outside of its network. Fails if another running pod has an address.
pub fn add(req: &Request<'_>, node: &mut Host, nets: &[IpNet]) -> Result<()> {
    masquerade::add_if_free(node.nft()?, &req.owner(), nets, &address_holder::is_running)
        .doing(|| "masquerade the pod's addresses (ipMasq)".into())
}

/// The same; `undo` removes the elements if the caller's ADD fails.
pub fn add_with_undo<'a>(
    req: &'a Request<'a>,
    node: &mut Host,
    nets: &[IpNet],
    undo: &mut Undo<'a>,
) -> Result<()> {
    add(req, node, nets)?;
    undo.push(|| drop(Host::here().map(|mut node| remove(req, &mut node))));
    Ok(())
}

/// Removes the pod's elements, and the rules of a Go plugin for this container. Without a recorded result, or if a
/// later plugin of the chain dropped the pod's addresses from it, the elements are found by their owner.
pub fn remove(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    let owner = req.owner();
    let addresses = req.prev.as_ref().map(|prev| hosts(&addresses_of(prev, &req.ifname)));
    match addresses.filter(|addresses| !addresses.is_empty()) {
        Some(addresses) => masquerade::remove(nft, &owner, &addresses)?,
        None => masquerade::remove_all(nft, &owner)?,
    };
    if !req.signed_only {
        legacy::remove_masquerade(nft, &owner)?;
    }
    Ok(())
}

/// The shared rules are complete, and each of the pod's addresses is masqueraded, by Podwire or by a Go plugin.
pub fn inspect<'p>(req: &Request<'p>, node: &mut Host) -> Result<Vec<Finding<'p>>> {
    let (owner, nft) = (req.owner(), node.nft()?);
    let nets = addresses_of(req.recorded()?, &req.ifname);
    if legacy::masquerades(nft, &owner)? {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    let of_all = nets.clone();
    findings.extend(inspection::rules("ipMasq", &masquerade::absent(nft, &nets)?, move |node| {
        Ok(masquerade::prepare(node.nft()?, &of_all)?)
    }));
    for net in nets {
        if masquerade::is_present(nft, &owner, net.addr())? {
            continue;
        }
        if let Some(conflict) =
            address_holder::conflict(&owner, net.addr(), masquerade::holders(nft, net.addr())?)
        {
            findings.push(conflict);
            continue;
        }
        let (req, text) = (req.clone(), format!("{} is not masqueraded any more (ipMasq)", net.addr()));
        let again = inspection::on_node(move |node| add(&req, node, &[net]));
        findings.push(Finding::new(text).repaired_by(again));
    }
    Ok(findings)
}

/// Removes the elements and rules of attachments that are no longer valid.
pub fn collect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let kept = req.kept_owners()?;
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    masquerade::collect(nft, &req.network, &kept)?;
    legacy::collect_masquerades(nft, &req.network, &kept)?;
    Ok(())
}
