//! ptp: a cable between the pod and the node, no bridge.
//!
//! The pod's only neighbour is the node. It gets its address with the subnet's prefix, as if it shared a wire
//! with the other pods, but a route that sends all of the subnet through the gateway, which is the node's end
//! of the cable; the node knows each pod by a route to its one address.

mod check;

use ipnet::IpNet;
use podwire_cni_plugin::policy::{self, Policy};
use podwire_cni_plugin::{Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Dns, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::{address, route, route::Route};
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, sysctl, Host, Link, Undo};
use podwire_netlink::Batch;
use serde::Deserialize;

use crate::{cable, lease, masquerade, plumbing};

/// The plugin.
#[derive(Debug)]
pub struct Ptp;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    mtu: u32,
    dns: Dns,
}

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn about(&self) -> &'static str {
        "ptp: connects a pod to the node by a cable of its own, routed"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = read(req)?;
        let policy = Policy::read(req)?;
        lease::check_kind(req)?;
        let mut undo = Undo::new();
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        // Before an address is asked for: that of a pod which is attached already would be given back with this ADD's failure.
        cable::refuse_taken(&pod, &req.ifname)?;
        let mut result = lease::obtain(req, &mut undo)?;
        check_lease(&result)?;
        let nets: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let v6 = nets.iter().any(|net| net.addr().is_ipv6());
        sysctl::enable_forwarding(&IpFamily::among(&nets))
            .doing(|| "could not enable IP forwarding".into())?;

        let pair = connect(req, &conf, &mut node, &mut pod)?;
        let end = pair.host.clone();
        undo.push(move || veth::remove(&end));
        let (knob, value) = guard(&pair.host, v6);
        sysctl::ensure_if_there(&knob, value)?;
        result.interfaces = cable::interfaces(req, conf.mtu, &pair);
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(1));

        policy::stand(policy, req, &result, &mut undo)?;
        wire_pod(req, &mut pod, &result)?;
        wire_node(&mut node, &pair, &result)?;
        if conf.ip_masq {
            masquerade::add(req, &mut node, &nets)?;
            undo.push(|| drop(Host::here().map(|mut node| masquerade::remove(req, &mut node))));
        }
        result.dns = lease::choose_dns(&conf.dns, std::mem::take(&mut result.dns));
        undo.keep();
        detached::after_adding(&node);
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        // Rules first: nothing may lead to an address that is free for the next pod.
        errors.extend(masquerade::remove(req, &mut node).err());
        let mut links = Host::here()?;
        errors.extend(cable::remove(req, &mut links, node.used_nft()).err());
        errors.extend(lease::release(req).err());
        policy::farewell(req);
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &read(req)?)
    }

    fn inspect_rules<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        if !read(req)?.ip_masq {
            return Ok(Vec::new());
        }
        masquerade::inspect(req, &mut Host::here()?)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(masquerade::collect(req, &mut node).err());
        errors.extend(cable::collect(req, &mut node).err());
        errors.extend(lease::collect(req).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        read(req)?;
        policy::status(req)?;
        lease::status(req)
    }
}

fn read(req: &Request<'_>) -> Result<Conf> {
    let conf: Conf = req.config()?;
    masquerade::check_backend(&conf.ip_masq_backend)?;
    cable::check_mtu(conf.mtu)?;
    Ok(conf)
}

/// Every address needs a gateway: it is the address of the node's end.
fn check_lease(lease: &Attachment) -> Result<()> {
    match lease.ips.iter().find(|ip| ip.gateway.is_none()) {
        None => Ok(()),
        Some(ip) => {
            let text = format!("ipam: address {} has no gateway, and ptp needs one", ip.address);
            Err(podwire_cni_spec::Error::invalid_config(text)
                .with_details("give the IPAM plugin a gateway")
                .into())
        }
    }
}

fn connect(req: &Request<'_>, conf: &Conf, node: &mut Host, pod: &mut Host) -> Result<Pair> {
    let owner = req.owner();
    let cable = Veth { name: &req.ifname, owner: &owner, mtu: conf.mtu, mac: None, port: None, end: None };
    cable::create(&cable, req, (node, pod), "the node")
}

/// The subnet's own route would make the pod look for its neighbours on the wire, where nobody but the node is.
/// It goes; instead the gateway is on the wire, and the subnet is behind the gateway.
fn wire_pod(req: &Request<'_>, pod: &mut Host, result: &Attachment) -> Result<()> {
    let inside = pod.peek_link(&req.ifname)?;
    let options = plumbing::Options::default();
    // The routes of the lease may lead through the gateway: they come when it can be reached.
    plumbing::configure(pod, &inside, &Attachment { routes: Vec::new(), ..result.clone() }, options)?;
    let mut batch = Batch::new();
    for ip in &result.ips {
        batch.push(connected(ip, &inside).delete());
        batch.extend(through_gateway(ip, &inside).iter().map(Route::add));
    }
    batch.extend(result.routes.iter().map(|wanted| plumbing::wire_route(wanted, &inside, result).prepend()));
    pod.route.batch(batch).doing(|| format!("route {} in the pod", inside.name))
}

/// A pod must not be able to make itself the node's router, which it could try without any IPv6 address too. To one
/// without IPv6 the node does not speak IPv6 at all: each end would have routes of its own for it, all of which the
/// kernel looks at whenever a link comes or goes. The cable is not in use yet, so it has none to take away.
fn guard(end: &str, v6: bool) -> (String, &'static str) {
    let (knob, value) = if v6 { ("accept_ra", "0") } else { ("disable_ipv6", "1") };
    (format!("net/ipv6/conf/{end}/{knob}"), value)
}

/// The route that the kernel made for the address.
fn connected(ip: &Ip, inside: &Link) -> Route {
    let (subnet, prefix) = (ip.address.network(), ip.address.prefix_len());
    Route { scope: route::NOWHERE, link: Some(inside.index), protocol: 0, ..Route::to(subnet, prefix) }
}

/// Those in its place: to the gateway, and through it to the subnet.
fn through_gateway(ip: &Ip, inside: &Link) -> [Route; 2] {
    let (addr, gateway) = (ip.address.addr(), ip.gateway.unwrap_or(ip.address.addr()));
    let full = if addr.is_ipv4() { 32 } else { 128 };
    let on = |route: Route| Route { link: Some(inside.index), source: Some(addr), ..route };
    [
        on(Route { scope: route::LINK, ..Route::to(gateway, full) }),
        on(Route { gateway: Some(gateway), ..Route::to(ip.address.network(), ip.address.prefix_len()) }),
    ]
}

/// The node's end has the gateways' addresses and a route to each address of the pod.
fn wire_node(node: &mut Host, pair: &Pair, result: &Attachment) -> Result<()> {
    let end = node.get_link(&pair.host)?;
    let mut batch = Batch::new();
    for ip in &result.ips {
        let (addr, gateway) = (ip.address.addr(), ip.gateway.unwrap_or(ip.address.addr()));
        let full = if addr.is_ipv4() { 32 } else { 128 };
        batch.push(address::add(end.index, gateway, full, false));
        batch.push(Route { link: Some(end.index), scope: route::LINK, ..Route::to(addr, full) }.add());
    }
    node.route.batch(batch).doing(|| format!("route {} on the node", end.name))
}
