//! `ipMasq`: what leaves the pod's network gets the node's address. Shared by the plugins that offer it.
//!
//! The rules stand once; a pod adds an element to a map. What the Go plugins made for a pod, chains and all, is
//! removed with it.

use ipnet::IpNet;
use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_kernel::firewall::{legacy, masquerade};
use podwire_kernel::Host;

use crate::inspection;
use crate::lease::{addresses_of, hosts};

/// Checks `ipMasqBackend`. Either value is served by nftables: the effect is the same.
pub fn check_backend(backend: &Option<String>) -> Result<()> {
    match backend.as_deref() {
        None | Some("" | "iptables" | "nftables") => Ok(()),
        Some(other) => {
            let text = format!("ipMasqBackend: unknown backend {other:?}, choose nftables or iptables");
            Err(podwire_cni_spec::Error::invalid_config(text).into())
        }
    }
}

/// Lets the pod's traffic to the outside leave with the node's address.
pub fn add(req: &Request<'_>, node: &mut Host, nets: &[IpNet]) -> Result<()> {
    masquerade::add(node.nft()?, &req.owner(), nets)
        .doing(|| "masquerade the pod's addresses (ipMasq)".into())
}

/// Takes it back, and what a Go plugin may have left for this container. Without a recorded result, or with one in
/// which a later plugin of the chain dropped the pod's addresses, the pod's elements are looked for.
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

/// Each of the pod's addresses is masqueraded, by us or by a Go plugin, and so are the rules complete.
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
        let (req, text) = (req.clone(), format!("{} is not masqueraded any more (ipMasq)", net.addr()));
        let again = inspection::on_node(move |node| add(&req, node, &[net]));
        findings.push(Finding::new(text).repaired_by(again));
    }
    Ok(findings)
}

/// Takes back what belongs to attachments that are not valid any more.
pub fn collect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let kept = req.kept_owners()?;
    let Some(nft) = node.find_nft()? else { return Ok(()) };
    masquerade::collect(nft, &req.network, &kept)?;
    legacy::collect_masquerades(nft, &req.network, &kept)?;
    Ok(())
}
