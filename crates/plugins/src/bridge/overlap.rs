//! Other bridges with the subnet of this network. The node then sends the packets for both networks to one of them, and
//! pods of both can get the same address.

use ipnet::IpNet;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{code, Error};
use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Link};

use super::config::Conf;
use super::gateway;
use crate::host_local;

/// Refuses subnets that another gateway link has: the same subnet, or a part of it that has pods. `own` is this
/// network's gateway link, if it exists.
pub(super) fn refuse(node: &mut Host, own: Option<&Link>, subnets: &[IpNet]) -> Result<()> {
    let is_other = |one: &address::Address| own.is_none_or(|own| own.index != one.link);
    for found in address::list(&mut node.route, 0)?.iter().filter(|one| is_other(one)) {
        let Ok(theirs) = IpNet::new(found.ip, found.prefix) else { continue };
        let theirs = theirs.trunc();
        let overlaps = |subnet: &&IpNet| subnet.contains(&theirs) || theirs.contains(*subnet);
        let Some(subnet) = subnets.iter().find(overlaps) else { continue };
        let Some(other) = link::find_index(&mut node.route, found.link)? else { continue };
        // A VRF has its own routes.
        let is_in_other_vrf = other.master != own.and_then(|own| own.master);
        let is_gateway_link = other.kind == "bridge" || gateway::is_link_of_vlan(&other);
        if is_in_other_vrf || !is_gateway_link || !(theirs == *subnet || has_pods(node, &other)?) {
            continue;
        }
        return Err(podwire_kernel::Error::SubnetTaken {
            subnet: subnet.to_string(),
            address: format!("{}/{}", found.ip, found.prefix),
            link: other.name,
        }
        .into());
    }
    Ok(())
}

/// Whether a gateway link leads to pods. Those of a VLAN are ports of the bridge, with those of other VLANs.
fn has_pods(node: &mut Host, gateway_link: &Link) -> Result<bool> {
    let is_port = |one: &Link| one.master == Some(gateway_link.index) && one.kind == "veth";
    Ok(gateway::is_link_of_vlan(gateway_link) || link::list(&mut node.route)?.iter().any(is_port))
}

/// STATUS: the next ADD would be refused.
pub(super) fn status(req: &Request<'_>, conf: &Conf) -> Result<()> {
    refuse_configured(req, conf).map_err(|error| Error { code: code::NOT_AVAILABLE, ..error.to_cni() }.into())
}

/// The error of an ADD whose address another pod has: if another bridge has the subnet, that is the cause.
pub(super) fn cause(
    req: &Request<'_>,
    conf: &Conf,
    error: podwire_cni_plugin::Error,
) -> podwire_cni_plugin::Error {
    match error {
        podwire_cni_plugin::Error::Kernel(podwire_kernel::Error::AddressTaken { .. }) => {
            refuse_configured(req, conf).err().unwrap_or(error)
        }
        _ => error,
    }
}

/// Refuses the subnets of the config. Only host-local's config names the subnets; a gateway link with its address is
/// used already.
fn refuse_configured(req: &Request<'_>, conf: &Conf) -> Result<()> {
    if !conf.is_gateway {
        return Ok(());
    }
    let mut node = Host::here()?;
    let name = conf.gateway_link_name().unwrap_or_else(|| conf.bridge.clone());
    let own = node.find_link(&name)?;
    let mut subnets = host_local::subnets(req)?;
    if let Some(own) = &own {
        let has = address::list(&mut node.route, own.index)?;
        subnets.retain(|subnet| {
            !has.iter().any(|one| subnet.contains(&one.ip) && one.prefix == subnet.prefix_len())
        });
    }
    refuse(&mut node, own.as_ref(), &subnets)
}
