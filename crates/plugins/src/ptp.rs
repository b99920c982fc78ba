//! ptp: a veth pair between the pod and the node, without a bridge.
//!
//! The node is the pod's only neighbour. The pod's address has the subnet's prefix, as if all pods shared one L2
//! segment, but a route sends the whole subnet through the gateway, whose address is on the node's end of the veth
//! pair. The node has a host route to each address of the pod.

mod check;
mod config;
mod routes;

use config::Conf;
use ipnet::IpNet;
use podwire_cni_plugin::{Context, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_ip::IpFamily;
use podwire_kernel::rt::{address, link, route, route::Route};
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, sysctl, Host, Link, Undo};
use podwire_netlink::Batch;
use routes::{connected, node_end_sysctl, through_gateway};

use crate::addresses::families;
use crate::policy::{self, Policy};
use crate::veth_pair::{self, Namespaces};
use crate::{lease, masquerade, pod_interface};

/// The plugin.
#[derive(Debug)]
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn about(&self) -> &'static str {
        "ptp: connects a pod to the node by a veth pair, routed"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM, crate::keys::POLICY]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let policy = Policy::read(&req.config)?;
        lease::check_kind(req)?;
        let mut undo = Undo::new();
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        // Before IPAM: if the pod is already attached, the failure of this ADD would release the address that it uses.
        veth_pair::require_free_name(&pod, &req.ifname)?;
        let mut result = lease::obtain(req, &mut undo)?;
        check_lease(&result)?;
        let nets: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let families = families(&result);
        pod_interface::enable_forwarding(&families).doing(|| "Could not enable IP forwarding".into())?;

        let pair = connect(req, &conf, Namespaces { node: &mut node, pod: &mut pod })?;
        let end = pair.host.clone();
        undo.push(move || veth::remove(&end));
        let (knob, value) = node_end_sysctl(&pair.host, families.contains(&IpFamily::V6));
        sysctl::ensure_if_there(&knob, value)?;
        result.interfaces = veth_pair::interfaces(req, conf.mtu, &pair);
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(1));

        policy::await_enforcement(policy, req, &result, &mut undo)?;
        configure_pod(req, &mut pod, &result)?;
        configure_node(&mut node, &pair, &result)?;
        if conf.ip_masq {
            masquerade::add_with_undo(req, &mut node, &nets, &mut undo)?;
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
        if !Conf::read(req)?.ip_masq {
            return Ok(Vec::new());
        }
        masquerade::inspect(req, &mut Host::here()?)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(masquerade::collect(req, &mut node).err());
        errors.extend(veth_pair::collect(req, &mut node).err());
        errors.extend(lease::collect(req).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        policy::status(req)?;
        lease::status(req)
    }
}

/// Every address needs a gateway: the node's end of the veth pair gets its address.
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

fn connect(req: &Request<'_>, conf: &Conf, hosts: Namespaces<'_>) -> Result<Pair> {
    let owner = req.owner();
    let veth = Veth { name: &req.ifname, owner: &owner, mtu: conf.mtu, mac: None, port: None, end: None };
    veth_pair::create(&veth, req, hosts, "the node")
}

/// Adds the addresses, and replaces the kernel's routes by routes through the gateway.
fn configure_pod(req: &Request<'_>, pod: &mut Host, result: &Attachment) -> Result<()> {
    let pod_end = pod.peek_link(&req.ifname)?;
    let options = pod_interface::Options::default();
    // Routes of the lease may lead through the gateway, so they are added after the routes to it.
    pod_interface::configure(pod, &pod_end, &Attachment { routes: Vec::new(), ..result.clone() }, options)?;
    let mut batch = Batch::new();
    for ip in &result.ips {
        batch.push(connected(ip, &pod_end).delete());
        batch.extend(through_gateway(ip, &pod_end).iter().map(Route::add));
    }
    batch.extend(
        result.routes.iter().map(|route| pod_interface::kernel_route(route, &pod_end, result).prepend()),
    );
    pod.route.batch(batch).doing(|| format!("add routes of {} in the pod", pod_end.name))
}

/// Adds the gateways' addresses to the node's end, and a route to each address of the pod.
fn configure_node(node: &mut Host, pair: &Pair, result: &Attachment) -> Result<()> {
    let end = node.get_link(&pair.host)?;
    let mut batch = Batch::new();
    for ip in &result.ips {
        let (addr, gateway) = (ip.address.addr(), ip.gateway.unwrap_or(ip.address.addr()));
        let full = ip.address.max_prefix_len();
        batch.push(address::add(end.index, gateway, full, false));
        // Not another route beside an existing one: packets would take the route of the other pod.
        batch.push(Route { link: Some(end.index), scope: route::LINK, ..Route::to(addr, full) }.create());
    }
    let added = node.route.batch(batch);
    let taken = added.as_ref().is_err_and(podwire_netlink::Error::is_exists);
    if let Some(taken) = taken.then(|| find_other_pod(node, &end, result)).flatten() {
        return Err(taken.into());
    }
    added.doing(|| format!("add addresses and routes of {} on the node", end.name))
}

/// The pod to which the node already has a route for one of these addresses: two networks overlap.
fn find_other_pod(node: &mut Host, end: &Link, result: &Attachment) -> Option<podwire_kernel::Error> {
    result.ips.iter().map(|ip| ip.address.addr()).find_map(|addr| {
        let index = route::get(&mut node.route, addr).ok()?.link.filter(|index| *index != end.index)?;
        let link = link::find_index(&mut node.route, index).ok()??;
        let holder = if link.alias.is_empty() { link.name } else { link.alias };
        Some(podwire_kernel::Error::AddressTaken { address: addr.to_string(), holder })
    })
}
