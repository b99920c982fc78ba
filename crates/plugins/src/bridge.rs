//! bridge: a switch on the node, and a cable from it into each pod.
//!
//! The pod's end of the cable gets an address and routes; the bridge gets the gateway's address, if the node
//! is to be the pods' router. With a VLAN the gateway's address is on a leg of its own, `<bridge>.<vlan>`.

mod check;
mod config;
mod gateway;
mod identity;
mod port;

use podwire_cni_plugin::policy::{self, Policy};
use podwire_cni_plugin::{Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface};
use podwire_ip::IpFamily;
use podwire_kernel::rt::link;
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, sysctl, Host, Link, Undo};

use crate::plumbing::{self, Options};
use crate::{cable, lease, masquerade};
use config::Conf;

/// The plugin.
#[derive(Debug)]
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn about(&self) -> &'static str {
        "bridge: connects pods to a bridge on the node"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let policy = Policy::read(req)?;
        let mut undo = Undo::new();
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        let bridge = conf.bridge().ensure(&mut node).doing(|| format!("set up bridge {:?}", conf.bridge))?;
        port::require_vlan_filtering(&conf, &bridge)?;
        if policy.is_some() {
            podwire_kernel::bridge::ensure_seen_by_ip_rules(&mut node, &bridge)?;
        }

        let mut pair = connect(req, &conf, (&mut node, &mut pod), &bridge)?;
        let end = pair.host.clone();
        undo.push(move || veth::remove(&end));
        let bridge = gateway::keep_address(&conf, &mut node, bridge)?;
        port::restrict(&conf, &mut node, &pair)?;

        let mut result = Attachment::default();
        if conf.has_ipam() {
            // Later plugins and the IPAM daemon find the link in the pod; the address comes last.
            obtain(req, &conf, &mut result, &mut undo)?;
        }
        let identity = identity::choose(req, &conf, &mut node, (&bridge, &result))?;
        pair.pod_mac = identity.mac.unwrap_or(pair.pod_mac);
        result.interfaces = interfaces(req, &conf, &bridge, &pair);
        if conf.macspoofchk {
            port::guard(req, &mut node, &pair, &mut undo)?;
        }
        policy::stand(policy, req, &result, &mut undo)?;
        let inside = pod.peek_link(&req.ifname)?;
        if conf.has_ipam() {
            let options = Options { detect_duplicates: conf.enabledad, mac: identity.mac, announce: false };
            plumbing::configure(&mut pod, &inside, &result, options)?;
            route(req, &conf, &mut node, (&bridge, &mut result), &mut undo)?;
        } else if !conf.disable_container_interface {
            pod.route.request(link::up(&inside))?;
        }
        if !conf.disable_container_interface {
            port::wait_until_it_forwards(&mut node, &pair.host)?;
            if identity.announce {
                // Not a moment earlier: a port that does not forward yet drops it.
                plumbing::announce(&mut pod, &inside, pair.pod_mac)?;
            }
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
        errors.extend(port::unguard(req, &mut node).err());
        errors.extend(lease::release_over_the_wire(req).err());
        let mut links = Host::here()?;
        errors.extend(cable::remove(req, &mut links, node.used_nft()).err());
        errors.extend(lease::release(req).err());
        policy::farewell(req);
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &Conf::read(req)?)
    }

    fn inspect_rules<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::rules(req, &Conf::read(req)?)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(masquerade::collect(req, &mut node).err());
        errors.extend(port::collect_guards(req, &mut node).err());
        errors.extend(cable::collect(req, &mut node).err());
        errors.extend(lease::collect(req).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        policy::status(req)?;
        lease::status(req)
    }
}

/// Makes the cable, the node's end on the bridge.
fn connect(
    req: &Request<'_>,
    conf: &Conf,
    (node, pod): (&mut Host, &mut Host),
    bridge: &Link,
) -> Result<Pair> {
    let owner = req.owner();
    let port = veth::Port {
        bridge: bridge.index,
        hairpin: conf.hairpin_mode,
        isolated: conf.port_isolation,
        ipv6: bridge.has_ipv6(),
    };
    let cable = Veth {
        name: &req.ifname,
        owner: &owner,
        mtu: conf.mtu,
        mac: conf.mac(req)?,
        port: Some(port),
        end: None,
    };
    cable::create(&cable, req, (node, pod), &format!("bridge {:?}", bridge.name))
}

/// [bridge, the cable's end on the node, its end in the pod].
fn interfaces(req: &Request<'_>, conf: &Conf, bridge: &Link, pair: &Pair) -> Vec<Interface> {
    let (name, mac) = (bridge.name.clone(), bridge.mac_text());
    let ends = cable::interfaces(req, conf.mtu, pair);
    std::iter::once(Interface { name, mac, ..Interface::default() }).chain(ends).collect()
}

/// The place of the pod's interface in the result.
const INSIDE: usize = 2;

/// Addresses and routes for the result: the IPAM's, completed by the gateway that the config asks for.
fn obtain<'a>(req: &'a Request<'a>, conf: &Conf, result: &mut Attachment, undo: &mut Undo<'a>) -> Result<()> {
    let mut leased = lease::obtain(req, undo)?;
    (result.ips, result.routes, result.dns) = (leased.ips, leased.routes, std::mem::take(&mut leased.dns));
    for ip in &mut result.ips {
        ip.interface = Some(INSIDE);
        if conf.is_gateway && ip.gateway.is_none() {
            ip.gateway = Some(gateway::expected(&ip.address)?);
        }
    }
    if conf.is_default_gateway {
        gateway::add_default_routes(result);
    }
    Ok(())
}

/// Makes the node the pods' router, as far as the config asks for it.
fn route<'a>(
    req: &'a Request<'a>,
    conf: &Conf,
    node: &mut Host,
    (bridge, result): (&Link, &mut Attachment),
    undo: &mut Undo<'a>,
) -> Result<()> {
    let nets: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
    if conf.is_gateway {
        let leg = gateway::leg(conf, node, bridge)?;
        gateway::assign(conf, node, &leg, result)?;
        if leg.index != bridge.index {
            let mac = leg.mac_text();
            result.interfaces.push(Interface { name: leg.name, mac, ..Interface::default() });
        }
        sysctl::enable_forwarding(&IpFamily::among(&nets)).doing(|| "failed to enable forwarding".into())?;
    }
    if conf.ip_masq {
        masquerade::add(req, node, &nets)?;
        undo.push(|| drop(Host::here().map(|mut node| masquerade::remove(req, &mut node))));
    }
    Ok(())
}
