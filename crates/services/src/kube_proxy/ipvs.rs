//! ipvs mode: the device with all Service addresses, and the virtual services at them.

use std::collections::HashSet;
use std::net::IpAddr;

use podwire_netlink::ipvs::{Ipvs, VirtualService};
use podwire_netlink::rt::link::Link;
use podwire_netlink::rt::{address, link};
use podwire_netlink::{Result, Socket};

use super::names::DEVICE;

/// What ipvs mode left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IpvsMode {
    /// The device.
    pub device: Link,
    /// The virtual services at its addresses.
    pub services: Vec<VirtualService>,
    /// The number of other virtual services: those of NodePorts, and those of other programs. They look the same.
    pub others: usize,
}

/// Finds the device. Without it no virtual service is known as kube-proxy's.
pub(super) fn find(route: &mut Socket) -> Result<Option<IpvsMode>> {
    let Some(device) = link::find(route, DEVICE)? else { return Ok(None) };
    let addresses = address::list(route, device.index)?;
    let addresses: HashSet<IpAddr> = addresses.into_iter().map(|address| address.ip).collect();
    let all = Ipvs::open()?.map(|mut ipvs| ipvs.services()).transpose()?.unwrap_or_default();
    let (services, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|service| addresses.contains(&service.addr.ip()));
    Ok(Some(IpvsMode { device, services, others: others.len() }))
}

/// Deletes the virtual services, then the device: by its addresses they are found.
pub(super) fn remove(route: &mut Socket, mode: &IpvsMode) -> Result<()> {
    if let Some(mut ipvs) = Ipvs::open()? {
        for service in &mode.services {
            present(ipvs.delete(service))?;
        }
    }
    present(route.request(link::delete(&mode.device)))
}

/// What is gone already needs no deletion.
fn present(outcome: Result<()>) -> Result<()> {
    outcome.or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })
}
