//! bridge: connects each pod to a bridge on the node by a veth pair.
//!
//! The pod's end of the veth pair gets addresses and routes. With `isGateway` the bridge gets the gateway's address and
//! the node routes for the pods. With a VLAN, a separate link `<bridge>.<vlan>` has the gateway's address.

mod check;
mod config;
mod gateway;
mod identity;
mod overlap;
mod port;

use podwire_cni_plugin::{Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface};
use podwire_kernel::rt::link;
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, Host, Link, Undo};

use crate::addresses::families;
use crate::pod_interface::{self, Options};
use crate::policy::{self, Policy};
use crate::veth_pair::{self, Namespaces};
use crate::{lease, masquerade};
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

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM, crate::keys::POLICY]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let policy = Policy::read(&req.config)?;
        let mut undo = Undo::new();
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        let bridge =
            conf.bridge().ensure(&mut node).doing(|| format!("failed to create bridge {:?}", conf.bridge))?;
        port::require_vlan_filtering(&conf, &bridge)?;
        if policy.is_some() {
            podwire_kernel::bridge::ensure_seen_by_ip_rules(&mut node, &bridge)?;
        }

        let hosts = Namespaces { node: &mut node, pod: &mut pod };
        let mut pair = connect(req, &conf, hosts, &bridge)?;
        let end = pair.host.clone();
        undo.push(move || veth::remove(&end));
        let bridge = gateway::keep_hardware_address(&conf, &mut node, bridge)?;
        port::set_vlans(&conf, &mut node, &pair)?;

        let mut result = Attachment::default();
        if conf.has_ipam() {
            // After the link exists in the pod: the DHCP daemon sends its requests through it.
            obtain(req, &conf, &mut result, &mut undo)?;
        }
        let identity = identity::choose(req, &conf, &mut node, &bridge, &result)?;
        pair.pod_mac = identity.mac.unwrap_or(pair.pod_mac);
        result.interfaces = interfaces(req, &conf, &bridge, &pair);
        if conf.macspoofchk {
            port::add_spoof_check(req, &mut node, &pair, conf.is_trunk(), &mut undo)?;
        }
        policy::await_enforcement(policy, req, &result, &mut undo)?;
        let pod_end = pod.peek_link(&req.ifname)?;
        if conf.has_ipam() {
            let options = Options { detect_duplicates: conf.enabledad, mac: identity.mac, announce: false };
            pod_interface::configure(&mut pod, &pod_end, &result, options)?;
            if conf.is_gateway {
                route_for_pods(&conf, &mut node, &bridge, &mut result)?;
            }
            if conf.ip_masq {
                let nets: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
                masquerade::add_with_undo(req, &mut node, &nets, &mut undo)?;
            }
        } else if !conf.disable_container_interface {
            pod.route.request(link::up(&pod_end))?;
        }
        if !conf.disable_container_interface {
            port::wait_until_forwarding(&mut node, &pair.host)?;
            if identity.announce {
                // Not earlier: a port that does not forward yet drops the announcement.
                pod_interface::announce(&mut pod, &pod_end, pair.pod_mac)?;
            }
        }
        result.dns = lease::choose_dns(req, &conf.dns, std::mem::take(&mut result.dns));
        undo.keep();
        detached::after_adding(&node);
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        // Rules first: no rule may apply to an address that the next pod can get.
        errors.extend(masquerade::remove(req, &mut node).err());
        errors.extend(port::remove_spoof_check(req, &mut node).err());
        errors.extend(lease::release_through_interface(req).err());
        let mut links = Host::here()?;
        errors.extend(veth_pair::remove(req, &mut links, node.used_nft()).err());
        // Before the release: the agent forgets the connections of an address before it lets the next pod have it.
        policy::detach(req);
        errors.extend(lease::release(req).err());
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
        errors.extend(port::collect_spoof_checks(req, &mut node).err());
        errors.extend(veth_pair::collect(req, &mut node).err());
        errors.extend(lease::collect(req).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf = Conf::read(req)?;
        policy::status(req)?;
        overlap::status(req, &conf)?;
        lease::status(req)
    }
}

/// Creates the veth pair with the node's end as a port of the bridge.
fn connect(req: &Request<'_>, conf: &Conf, hosts: Namespaces<'_>, bridge: &Link) -> Result<Pair> {
    let owner = req.owner();
    let port = veth::Port {
        bridge: bridge.index,
        hairpin: conf.hairpin_mode,
        isolated: conf.port_isolation,
        ipv6: bridge.has_ipv6(),
    };
    let veth = Veth {
        name: &req.ifname,
        owner: &owner,
        mtu: conf.mtu,
        mac: conf.mac(req)?,
        port: Some(port),
        end: None,
    };
    veth_pair::create(&veth, req, hosts, &format!("bridge {:?}", bridge.name))
}

/// The interfaces of the result: the bridge, the veth pair's end on the node, its end in the pod.
fn interfaces(req: &Request<'_>, conf: &Conf, bridge: &Link, pair: &Pair) -> Vec<Interface> {
    let (name, mac) = (bridge.name.clone(), bridge.mac_text());
    let ends = veth_pair::interfaces(req, conf.mtu, pair);
    std::iter::once(Interface { name, mac, ..Interface::default() }).chain(ends).collect()
}

/// The index of the pod's interface in the result.
const POD_INTERFACE: usize = 2;

/// Adds the IPAM plugin's addresses and routes to the result, and the gateway if the config asks for one.
fn obtain<'a>(req: &'a Request<'a>, conf: &Conf, result: &mut Attachment, undo: &mut Undo<'a>) -> Result<()> {
    let mut leased = lease::obtain(req, undo).map_err(|error| overlap::cause(req, conf, error))?;
    (result.ips, result.routes, result.dns) = (leased.ips, leased.routes, std::mem::take(&mut leased.dns));
    for ip in &mut result.ips {
        ip.interface = Some(POD_INTERFACE);
        if conf.is_gateway && ip.gateway.is_none() {
            ip.gateway = Some(gateway::expected(&ip.address)?);
        }
    }
    if conf.is_default_gateway {
        gateway::add_default_routes(result);
    }
    Ok(())
}

/// Makes the node the pods' router: the gateway's addresses on the gateway link, and forwarding.
fn route_for_pods(conf: &Conf, node: &mut Host, bridge: &Link, result: &mut Attachment) -> Result<()> {
    let link = gateway::ensure_link(conf, node, bridge)?;
    gateway::assign(conf, node, &link, result)?;
    if link.index != bridge.index {
        let mac = link.mac_text();
        result.interfaces.push(Interface { name: link.name, mac, ..Interface::default() });
    }
    pod_interface::enable_forwarding(&families(result)).doing(|| "failed to enable forwarding".into())
}
