//! portmap: maps ports of the node to the pod.
//!
//! A packet to a mapped port of the node gets the pod's address as its destination. One map serves the whole node, so a
//! port has one owner. An ADD for a taken port fails with an error that names the owner. Only interfaces of one
//! container may share a port: see [`pending_ports`].

mod check;
mod conditions;
mod config;
mod pending_ports;
mod target;

use podwire_cni_plugin::{ledger, Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::hostports::{self, Options, PortMap, Snat};
use podwire_kernel::firewall::legacy;
use podwire_kernel::{detached, sysctl, Host, Owner, Undo};

use config::Conf;
use target::{find_device, loopback_sysctl, pod_addresses};

/// The plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn about(&self) -> &'static str {
        "portmap: maps ports of the node to the pod"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let prev = req.chained()?;
        let maps = conf.maps(&pod_addresses(prev, req));
        if maps.is_empty() {
            return Ok(prev.clone());
        }
        let mut node = Host::here()?;
        let mut undo = Undo::new();
        let (owner, is_running) = (req.owner(), &crate::address_holder::is_running);
        let is_pending = hostports::add_if_free(node.nft()?, &owner, &maps, &conf.options, is_running)
            .doing(|| "map the pod's ports".into())?;
        undo.push(|| {
            let mapped = Mapped::read(req).into_iter().collect();
            drop(Host::here().map(|mut node| remove(req, &mut node, mapped, true)));
        });
        // After the table exists, which drops packets with a loopback address from outside.
        if conf.options.snat != Snat::Off {
            allow_loopback(&mut node, &maps)?;
        }
        if is_pending {
            pending_ports::enter(&req.owner())?;
        }
        // Datagrams of an existing flow would still go to the old destination.
        hostports::forget_earlier_connections(node.nft()?, &maps)
            .doing(|| "delete conntrack entries of the mapped ports".into())?;
        undo.keep();
        detached::after_adding(&node);
        Ok(prev.clone())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let (mapped, is_complete) = Mapped::since_add(req);
        remove(req, &mut node, mapped, is_complete)?;
        detached::after_deleting(&node);
        Ok(())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &Conf::read(req)?)
    }

    fn inspect_rules<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        self.inspect(req)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let (kept, mut node) = (req.kept_owners()?, Host::here()?);
        let mut errors: Vec<Error> = Vec::new();
        if let Some(nft) = node.find_nft()? {
            errors.extend(hostports::collect(nft, &req.network, &kept).err().map(Error::from));
            errors.extend(legacy::collect_ports(nft, &req.network, &kept).err().map(Error::from));
        }
        errors.extend(pending_ports::collect().err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req).map(drop)
    }
}

/// Sets `route_localnet` on the device towards the pod. A packet from the node's loopback to a mapped port leaves
/// through that device with a loopback source, which the kernel drops as a martian unless `route_localnet` is on. The
/// port maps' table drops such packets from outside, which the kernel would have dropped otherwise.
fn allow_loopback(node: &mut Host, maps: &[PortMap]) -> Result<()> {
    // A node without a route to the pod needs nothing.
    let Some(device) = find_device(node, maps)? else { return Ok(()) };
    if device.route_localnet == Some(true) {
        return Ok(());
    }
    sysctl::write(&loopback_sysctl(&device.name), "1")
        .doing(|| "let the node's loopback reach mapped ports (snat)".into())
}

/// The port maps that a request describes.
struct Mapped {
    maps: Vec<PortMap>,
    options: Options,
}

impl Mapped {
    /// `None` if unknown: the config is invalid, or the pod has ports and no address.
    fn read(req: &Request<'_>) -> Option<Mapped> {
        let conf = Conf::read(req).ok()?;
        // A later plugin of the chain may have dropped the pod's addresses from the result.
        let addresses = req.prev.as_ref().map(|prev| pod_addresses(prev, req)).unwrap_or_default();
        let is_known = !conf.has_ports() || !addresses.is_empty();
        is_known.then(|| Mapped { maps: conf.maps(&addresses), options: conf.options })
    }

    /// All port maps that the pod of a DEL may have, and whether the list is complete. The ledger's entry of the ADD
    /// comes first: a runtime that lost its state passes less, and containerd passes nothing for a pod without ports.
    fn since_add(req: &Request<'_>) -> (Vec<Mapped>, bool) {
        let added = ledger::requests(&req.owner(), "portmap", req.registry);
        let recorded: Vec<_> = added.iter().map(Mapped::read).collect();
        let passed =
            Conf::read(req).is_ok_and(|conf| conf.ports_are_known).then(|| Mapped::read(req)).flatten();
        let is_complete =
            if recorded.is_empty() { passed.is_some() } else { recorded.iter().all(Option::is_some) };
        (recorded.into_iter().flatten().chain(passed).collect(), is_complete)
    }
}

/// Removes the pod's port maps, and those of a Go plugin.
fn remove(req: &Request<'_>, node: &mut Host, mapped: Vec<Mapped>, is_complete: bool) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return pending_ports::leave(req) };
    let owner = req.owner();
    let (mut maps, mut found): (Vec<PortMap>, bool) = (Vec::new(), false);
    for one in mapped {
        if one.maps.iter().all(|map| maps.contains(map)) {
            continue;
        }
        found |= hostports::remove(nft, &owner, &one.maps, &one.options)?;
        maps.extend(one.maps);
    }
    if !maps.is_empty() {
        // A client that keeps sending must reach the port's next owner, or none.
        hostports::forget_connections_to_pod(nft, &maps)?;
    }
    // The config may have had other conditions at ADD, and the maps are then in other sets.
    let is_elsewhere = !found && !maps.is_empty();
    if !is_complete || is_elsewhere {
        remove_by_owner(&owner, nft)?;
    }
    if !req.signed_only {
        legacy::remove_ports(nft, &owner)?;
    }
    pending_ports::leave(req)
}

/// Removes all port maps of the owner.
fn remove_by_owner(owner: &Owner, nft: &mut podwire_netlink::Socket) -> Result<()> {
    let mapped = hostports::list(nft)?.into_iter().filter(|(_, comment)| owner.matches(comment));
    let maps: Vec<PortMap> = mapped.map(|(map, _)| map).collect();
    hostports::remove_all(nft, owner)?;
    Ok(hostports::forget_connections_to_pod(nft, &maps)?)
}
