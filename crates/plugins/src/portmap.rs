//! portmap: ports of the node that lead into the pod.
//!
//! A packet to a mapped port of the node gets the pod's address as its destination. The map is one for the
//! whole node, so a port has one owner, and an ADD that wants a taken one is told whose it is. Only interfaces of one
//! container may want the same port: see `waiting`.

mod check;
mod conditions;
mod config;
mod waiting;

use ipnet::IpNet;
use podwire_cni_plugin::{ledger, Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::hostports::{self, Options, PortMap, Snat};
use podwire_kernel::firewall::legacy;
use podwire_kernel::rt::{link, route};
use podwire_kernel::{detached, sysctl, Host, Link, Owner, Undo};

use crate::addresses::addresses_of;
use config::Conf;

/// The plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn about(&self) -> &'static str {
        "portmap: leads ports of the node into the pod"
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
        let waits = hostports::add(node.nft()?, &req.owner(), &maps, &conf.options)
            .doing(|| "map the pod's ports".into())?;
        undo.push(|| {
            let asked = Asked::by(req).into_iter().collect();
            drop(Host::here().map(|mut node| remove(req, &mut node, asked, true)));
        });
        // Not before the table is there, which keeps those out that come from elsewhere.
        if conf.options.snat != Snat::Off {
            open_loopback(&mut node, &maps)?;
        }
        if waits {
            waiting::enter(&req.owner())?;
        }
        // Datagrams of a flow that began before the map would go on to wherever they went.
        hostports::forget_earlier_connections(node.nft()?, &maps)
            .doing(|| "forget connections to the mapped ports".into())?;
        undo.keep();
        detached::after_adding(&node);
        Ok(prev.clone())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let (asked, is_known) = Asked::ever(req);
        remove(req, &mut node, asked, is_known)?;
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
        errors.extend(waiting::collect().err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req).map(drop)
    }
}

/// The pod's first address of each family: where its ports lead.
fn pod_addresses(result: &Attachment, req: &Request<'_>) -> Vec<IpNet> {
    let all = addresses_of(result, &req.ifname);
    let first = |v4: bool| all.iter().copied().find(|net| net.addr().is_ipv4() == v4);
    first(true).into_iter().chain(first(false)).collect()
}

/// The device by which the node reaches the pod, of the family that knows no loopback off the wire.
fn way_to_pod(node: &mut Host, maps: &[PortMap]) -> Result<Option<Link>> {
    let Some(map) = maps.iter().find(|map| map.pod.addr().is_ipv4()) else { return Ok(None) };
    let Some(index) = route::find(&mut node.route, map.pod.addr())? else { return Ok(None) };
    Ok(Some(link::by_index(&mut node.route, index)?))
}

fn loopback_knob(device: &str) -> String {
    format!("net/ipv4/conf/{device}/route_localnet")
}

/// A packet from the node's own loopback to a mapped port leaves by the pod's device with a loopback source,
/// which the kernel takes for a forgery unless route_localnet is on. (The port maps' table drops those that
/// come from outside, which the kernel would have dropped else.)
fn open_loopback(node: &mut Host, maps: &[PortMap]) -> Result<()> {
    // Without a way to the pod, as to one on the wire of a node that has no other, there is nothing to open.
    let Some(device) = way_to_pod(node, maps)? else { return Ok(()) };
    if device.route_localnet == Some(true) {
        return Ok(());
    }
    sysctl::write(&loopback_knob(&device.name), "1")
        .doing(|| "let the node's loopback reach mapped ports (snat)".into())
}

/// What a request asks to be mapped.
struct Asked {
    maps: Vec<PortMap>,
    options: Options,
}

impl Asked {
    /// `None` if that cannot be told: the config makes no sense, or the pod has ports and no address.
    fn by(req: &Request<'_>) -> Option<Asked> {
        let conf = Conf::read(req).ok()?;
        // A later plugin of the chain may have dropped the pod's addresses.
        let addresses = req.prev.as_ref().map(|prev| pod_addresses(prev, req)).unwrap_or_default();
        let is_told = !conf.has_ports() || !addresses.is_empty();
        is_told.then(|| Asked { maps: conf.maps(&addresses), options: conf.options })
    }

    /// All that may have been mapped for the pod of a DEL, and whether that is everything. What is written down of its ADD comes first: a
    /// runtime that has lost its memory says less, and containerd says nothing of a pod without ports.
    fn ever(req: &Request<'_>) -> (Vec<Asked>, bool) {
        let added = ledger::requests(&req.owner(), "portmap", req.registry);
        let written: Vec<_> = added.iter().map(Asked::by).collect();
        let said = Conf::read(req).is_ok_and(|conf| conf.ports_are_known).then(|| Asked::by(req)).flatten();
        let is_known = match written.is_empty() {
            true => said.is_some(),
            false => written.iter().all(Option::is_some),
        };
        (written.into_iter().flatten().chain(said).collect(), is_known)
    }
}

/// Takes the pod's port maps away, ours and a Go plugin's.
fn remove(req: &Request<'_>, node: &mut Host, asked: Vec<Asked>, is_known: bool) -> Result<()> {
    let Some(nft) = node.find_nft()? else { return waiting::leave(req) };
    let owner = req.owner();
    let (mut maps, mut found): (Vec<PortMap>, bool) = (Vec::new(), false);
    for one in asked {
        if one.maps.iter().all(|map| maps.contains(map)) {
            continue;
        }
        found |= hostports::remove(nft, &owner, &one.maps, &one.options)?;
        maps.extend(one.maps);
    }
    if !maps.is_empty() {
        // A client that goes on sending must find the port's next owner, or nobody.
        hostports::forget_connections_to_pod(nft, &maps)?;
    }
    // Not where the config says: its conditions may have been others when the pod came.
    let is_elsewhere = !found && !maps.is_empty();
    if !is_known || is_elsewhere {
        remove_unknown(&owner, nft)?;
    }
    if !req.signed_only {
        legacy::remove_ports(nft, &owner)?;
    }
    waiting::leave(req)
}

/// Without knowing what was mapped: whatever has this owner.
fn remove_unknown(owner: &Owner, nft: &mut podwire_netlink::Socket) -> Result<()> {
    let mapped = hostports::list(nft)?.into_iter().filter(|(_, comment)| owner.matches(comment));
    let maps: Vec<PortMap> = mapped.map(|(map, _)| map).collect();
    hostports::remove_all(nft, owner)?;
    Ok(hostports::forget_connections_to_pod(nft, &maps)?)
}
