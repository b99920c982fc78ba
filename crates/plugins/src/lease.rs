//! Addresses from the IPAM plugin that the config names.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni_plugin::{delegate, Error, Finding, Request, Result};
use podwire_cni_spec::{Attachment, Dns};
use podwire_kernel::Undo;

use crate::calico_ipam::{self, Awaited, Given};

/// Asks the IPAM plugin for addresses; they are given back if the ADD does not come to its end.
pub fn obtain<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Attachment> {
    let kind = kind(req)?;
    let lease = delegate::add(req, kind)?;
    undo.push(move || drop(delegate::del(req, kind)));
    filled(lease, kind)
}

/// A lease without an address is none.
fn filled(lease: Attachment, kind: &str) -> Result<Attachment> {
    if lease.ips.is_empty() {
        return Err(podwire_cni_spec::Error::internal(format!(
            "IPAM plugin {kind} returned missing IP config"
        ))
        .into());
    }
    Ok(lease)
}

/// Addresses that are there, or will be in a moment.
pub(crate) enum Lease {
    /// These.
    Here(Attachment),
    /// Somebody was asked for them.
    Awaited(Awaited),
}

/// Asks the IPAM plugin for addresses. The owner of the node's blocks finds them while its caller does something else; every other one is waited for.
pub(crate) fn begin<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Lease> {
    match kind(req)? {
        kind @ "calico-ipam" if delegate::is_own(req, kind) => calico_ipam::begin(req).map(Lease::Awaited),
        _ => obtain(req, undo).map(Lease::Here),
    }
}

impl Lease {
    /// The addresses; they are given back if the ADD does not come to its end. To be called whatever else has failed: who was asked gives them.
    pub(crate) fn obtain<'a>(self, req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Given> {
        match self {
            Lease::Here(lease) => Ok(Given { lease, line: None }),
            Lease::Awaited(awaited) => {
                let given = awaited.answer(req)?;
                undo.push(move || drop(release(req)));
                Ok(Given { lease: filled(given.lease, kind(req)?)?, ..given })
            }
        }
    }
}

/// Refuses a config whose IPAM plugin is none, before anything else is looked at.
pub fn check_kind(req: &Request<'_>) -> Result<()> {
    delegate::refuse_circle(req, kind(req)?)
}

/// The IPAM plugin that the config names.
fn kind<'v>(req: &'v Request<'_>) -> Result<&'v str> {
    let kind = delegate::ipam(req).ok_or_else(missing)?;
    if podwire_cni_spec::json::get(&req.config, "type").and_then(|own| own.as_str()) == Some(kind) {
        let text = format!("ipam.type: {kind} is no IPAM plugin, such as host-local");
        return Err(podwire_cni_spec::Error::invalid_config(text).into());
    }
    Ok(kind)
}

fn missing() -> Error {
    podwire_cni_spec::Error::invalid_config("ipam.type: an IPAM plugin is required, such as host-local")
        .into()
}

/// Gives the addresses back. A network without IPAM has none.
pub fn release(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::del(req, kind))
}

/// Gives the addresses back while the pod's interface is still there, if that has to be said over it: a DHCP server hears
/// of it from the pod. Whatever the IPAM plugin is, [`release`] comes when the interface is gone.
pub fn release_over_the_wire(req: &Request<'_>) -> Result<()> {
    match delegate::ipam(req) {
        Some("dhcp") => release(req),
        _ => Ok(()),
    }
}

/// What the IPAM plugin finds changed.
pub fn inspect<'p>(req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
    delegate::ipam(req).map_or(Ok(Vec::new()), |kind| delegate::inspect(req, kind))
}

/// GC of the IPAM plugin.
pub fn collect(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::gc(req, kind))
}

/// STATUS of the IPAM plugin.
pub fn status(req: &Request<'_>) -> Result<()> {
    delegate::ipam(req).map_or(Ok(()), |kind| delegate::status(req, kind))
}

/// The name servers of the config, if it has any, else those that came with the lease.
pub fn choose_dns(configured: &Dns, leased: Dns) -> Dns {
    if configured.is_empty() {
        return leased;
    }
    configured.clone()
}

/// The first address of a subnet that a host can have: where a gateway is expected.
pub fn first_host(net: &IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(v4) => IpAddr::from((u32::from(v4).wrapping_add(1)).to_be_bytes()),
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6).wrapping_add(1)).to_be_bytes()),
    }
}

/// The addresses that `ifname` in the pod got, as recorded: those that name no interface count as its own.
pub fn addresses_of(recorded: &Attachment, ifname: &str) -> Vec<IpNet> {
    let own = |index: Option<usize>| match index.and_then(|index| recorded.interfaces.get(index)) {
        Some(interface) => interface.name == ifname && !interface.sandbox.is_empty(),
        None => true,
    };
    recorded.ips.iter().filter(|ip| own(ip.interface)).map(|ip| ip.address).collect()
}

/// The addresses without their prefixes.
pub fn hosts(nets: &[IpNet]) -> Vec<IpAddr> {
    nets.iter().map(IpNet::addr).collect()
}
