//! calico: a routed veth pair for each pod, without a bridge and without a subnet.
//!
//! A pod has a /32 or /128 address. It sends everything to `169.254.1.1`, an address that no interface has: the node's
//! end of the veth pair answers ARP for it, always with the same hardware address, and forwards. The node has a route
//! to each pod's address. Names, addresses and sysctls are those of Calico's plugin of this type, so Calico's node
//! agent adopts these pods.

mod agent;
mod annotation;
mod annotations;
mod check;
mod config;
mod desired;
mod name;
mod pod_cidr;
mod qos;
mod quantity;
mod readiness_gate;
mod secondary;

use std::net::IpAddr;

use annotations::Annotations;
use config::Conf;
use desired::{gateway, node_end_sysctls, pod_routes, GATEWAY_V6, NODE_END_MAC};
use ipnet::IpNet;
use podwire_cni_plugin::{Context, Error, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::neighbour::{Neighbour, Table};
use podwire_kernel::rt::{address, link, route, route::Route};
use podwire_kernel::veth::{self, End, Pair, Veth};
use podwire_kernel::{detached, sysctl, Host, Mac, Undo};
use podwire_netlink::Batch;

use crate::addresses::families;
use crate::calico_ipam::Assigned;
use crate::lease::{self, Lease};
use crate::policy::{self, Policy};
use crate::veth_pair::{self, Namespaces};
use crate::{bandwidth, pod_interface};

/// The plugin.
#[derive(Debug)]
pub struct Calico;

impl Plugin for Calico {
    fn name(&self) -> &'static str {
        "calico"
    }

    fn about(&self) -> &'static str {
        "calico: connects a pod to the node by a veth pair, and routes its address"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[
            config::CONFIG_KEYS,
            crate::keys::IPAM,
            crate::keys::POLICY,
            crate::keys::CALICO_DATASTORE,
            config::OTHER_KEYS,
        ]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let policy = Policy::read(&req.config)?.filter(Policy::has_agent);
        conf.gates.iter().try_for_each(readiness_gate::Gate::wait)?;
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        if let Some(joined) = secondary::join(req, &mut node, &mut pod)? {
            return Ok(joined);
        }
        let info = agent::find_pod(req)?;
        let requested = info.as_ref().map(|pod| Annotations::read(pod, &conf.permissions)).transpose()?;
        let requested = requested.unwrap_or_default();
        let with_cidrs = pod_cidr::substitute(req)?;
        let ipam_req = requested.apply_to(&with_cidrs)?;
        let mut undo = Undo::new();
        let lease = if requested.unmanaged.is_empty() {
            lease::begin(&ipam_req, &mut undo).map_err(|error| requested.explain(error))?
        } else {
            Lease::Ready(unmanaged(&requested.unmanaged))
        };
        // The agent assigns addresses meanwhile; the veth pair needs none.
        let hosts = Namespaces { node: &mut node, pod: &mut pod };
        let connected = connect(req, &conf, requested.mac, hosts);
        if let Ok(pair) = &connected {
            let end = pair.host.clone();
            undo.push(move || veth::remove(&end));
        }
        let assigned = lease.obtain(&ipam_req, &mut undo).map_err(|error| requested.explain(error));
        let (pair, Assigned { lease: mut result, connection }) = (connected?, assigned?);
        set_host_prefixes(&mut result);
        let families = families(&result);
        pod_interface::enable_forwarding(&families).doing(|| "could not enable IP forwarding".into())?;
        for (knob, value) in node_end_sysctls(&pair.host, &families) {
            sysctl::set_if_there(&knob, value)?;
        }
        limit_bandwidth(req, &mut node, &pair, &requested.bandwidth(), &mut undo)?;
        result.interfaces = veth_pair::interfaces(req, conf.mtu, &pair);
        result.ips.iter_mut().for_each(|ip| (ip.interface, ip.gateway) = (Some(1), None));

        let publication = agent::begin_publish(req, connection, &result, info, &requested)?;
        let configured = policy::await_enforcement(policy, req, &result, &mut undo)
            .and_then(|()| configure_pod(req, &conf, &mut pod, &result))
            .and_then(|()| configure_node(&mut node, &pair, &result));
        agent::finish_publish(req, publication, configured)?;
        result.routes.clear();
        undo.keep();
        detached::after_adding(&node);
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(agent::withdraw(req).err());
        errors.extend(disconnect(req, &mut node).err());
        errors.extend(bandwidth::remove(req).err());
        // Before the release: the agent forgets the connections of an address before it lets the next pod have it.
        policy::detach(req);
        errors.extend(pod_cidr::substitute(req).and_then(|req| lease::release(&req)).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<podwire_cni_plugin::Finding<'p>>> {
        check::inspect(req, &Conf::read(req)?)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(collect(req, &mut node).err());
        errors.extend(bandwidth::collect(req).err());
        errors.extend(agent::collect(req).err());
        errors.extend(pod_cidr::substitute(req).and_then(|req| lease::collect(&req)).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        let own = pod_cidr::substitute(req)?;
        lease::status(&own)
    }
}

/// The lease for addresses of the annotation `ipAddrsNoIpam`. Nothing checks whether another pod has them, too.
fn unmanaged(addresses: &[IpAddr]) -> Attachment {
    let ip = |ip: &IpAddr| Ip { address: IpNet::from(*ip), interface: None, gateway: None };
    Attachment { ips: addresses.iter().map(ip).collect(), ..Attachment::default() }
}

/// Sets full prefix lengths: a routed pod has no subnet, the node is its only neighbour.
fn set_host_prefixes(lease: &mut Attachment) {
    for ip in &mut lease.ips {
        ip.address = IpNet::from(ip.address.addr());
    }
}

fn connect(req: &Request<'_>, conf: &Conf, mac: Option<Mac>, hosts: Namespaces<'_>) -> Result<Pair> {
    let (owner, name) = (req.owner(), free_name(req, hosts.node)?);
    let end = Some(End { name: &name, mac: NODE_END_MAC, queues: conf.queues });
    let veth = Veth { name: &req.ifname, owner: &owner, mtu: conf.mtu, mac, port: None, end };
    veth_pair::create(&veth, req, hosts, "the node")
}

/// A free name for the node's end. If the name is derived from the pod, an existing veth pair with that name belongs to
/// an earlier sandbox of the pod, and is deleted. If it is derived from the container id, an existing veth pair belongs
/// to another container unless its alias names this owner.
fn free_name(req: &Request<'_>, node: &mut Host) -> Result<String> {
    let names = name::node_end_names(req);
    let is_from_pod = names.len() == 1;
    for name in &names {
        // This lookup does not wait for the rtnl lock.
        if node.peek_link(name).is_err_and(|error| error.is_gone()) {
            return Ok(name.clone());
        }
        let Some(present) = node.find_link(name)? else { return Ok(name.clone()) };
        if present.kind == "veth" && (is_from_pod || req.owner().matches(&present.alias)) {
            node.route
                .request(link::delete(&present))
                .doing(|| format!("delete the pod's previous veth pair {name}"))?;
            return Ok(name.clone());
        }
    }
    let text = format!("the node already has links named {}, which are not this pod's", names.join(" and "));
    let hint = "inspect them with `ip -d link show`, and delete them if they are unused";
    Err(podwire_cni_spec::Error::internal(text).with_details(hint).into())
}

/// Applies the bandwidth limits that the pod requests.
fn limit_bandwidth<'a>(
    req: &'a Request<'a>,
    node: &mut Host,
    pair: &Pair,
    limits: &bandwidth::Limits,
    undo: &mut Undo<'a>,
) -> Result<()> {
    if limits.is_none() {
        return Ok(());
    }
    let end = node.get_link(&pair.host)?;
    bandwidth::limit(req, node, &end, limits)?;
    undo.push(|| drop(bandwidth::remove(req)));
    Ok(())
}

/// Adds the addresses, the routes through the gateways, and permanent neighbour entries for the gateways, so that the
/// pod's first packet needs no ARP.
fn configure_pod(req: &Request<'_>, conf: &Conf, pod: &mut Host, result: &Attachment) -> Result<()> {
    let pod_end = pod.peek_link(&req.ifname)?;
    let without_routes = Attachment { routes: Vec::new(), ..result.clone() };
    pod_interface::configure(pod, &pod_end, &without_routes, pod_interface::Options::default())?;
    let mut batch = Batch::new();
    for route in pod_routes(conf, result, &pod_end) {
        batch.push(route.add());
    }
    for family in families(result) {
        let entry = Neighbour::permanent(pod_end.index, gateway(family), NODE_END_MAC.0);
        batch.push(entry.replace(Table::Addresses));
    }
    pod.route.batch(batch).doing(|| format!("add routes of {} in the pod", pod_end.name))?;
    if let Some(is_allowed) = conf.allow_ip_forwarding {
        let value = if is_allowed { "1" } else { "0" };
        pod.run(|| sysctl::ensure_if_there("net/ipv4/ip_forward", value))??;
        pod.run(|| sysctl::ensure_if_there("net/ipv6/conf/all/forwarding", value))??;
    }
    Ok(())
}

/// Adds the IPv6 gateway's address to the node's end, and the node's route to each address of the pod.
fn configure_node(node: &mut Host, pair: &Pair, result: &Attachment) -> Result<()> {
    let end = node.peek_link(&pair.host)?;
    if families(result).contains(&IpFamily::V6) {
        // The kernel adds it too, when the pod's end comes up, but the pod may need it earlier.
        match node.route.request(address::add(end.index, GATEWAY_V6, 64, true)) {
            Err(error) if error.is_exists() => {}
            done => done.doing(|| format!("add the gateway's address to {}", end.name))?,
        }
    }
    for ip in &result.ips {
        let (addr, full) = (ip.address.addr(), ip.address.max_prefix_len());
        let wanted = Route { link: Some(end.index), scope: route::LINK, ..Route::to(addr, full) };
        match node.route.request(wanted.create()) {
            Err(error) if error.is_exists() => {
                let text = format!(
                    "route (Dst: {addr}/{full}) already exists for an interface other than '{}'",
                    end.name
                );
                let hint =
                    "another pod has this address, or a deleted pod left its route: `ip route` shows its interface";
                return Err(podwire_cni_spec::Error::internal(text).with_details(hint).into());
            }
            done => done.doing(|| format!("add the route to {addr} through {}", end.name))?,
        }
    }
    Ok(())
}

/// Deletes the pod's veth pair, if it still belongs to this container: a later sandbox of the pod uses the same name.
fn disconnect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let mut found = Vec::new();
    for name in name::node_end_names(req) {
        found.extend(node.find_link(&name)?.filter(|link| link.kind == "veth"));
    }
    let in_pod = match req.find_pod()? {
        None => None,
        Some(mut pod) => pod.find_link(&req.ifname)?.map(|link| (pod, link)),
    };
    if let Some((mut pod, pod_end)) = in_pod {
        if found.iter().any(|end| pod_end.link == Some(end.index)) {
            if veth_pair::belongs_to_another(req, node, &pod_end)? {
                return Ok(());
            }
            return Ok(detached::delete_link(&mut pod, &pod_end, None)?);
        }
    }
    // Calico's plugin writes no alias: its pairs are found through the pod's end only.
    match found.iter().find(|end| req.owner().matches(&end.alias)) {
        Some(end) => Ok(detached::delete_link(&mut Host::here()?, end, None)?),
        None => Ok(()),
    }
}

/// Deletes the network's veth pairs that belong to no valid attachment.
fn collect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let kept = req.kept_owners()?;
    let mut errors = Vec::new();
    for end in link::list(&mut node.route)? {
        let ours = end.kind == "veth" && end.name.starts_with(name::PREFIX);
        let is_kept = || kept.iter().any(|owner| owner.matches(&end.alias));
        if ours && podwire_kernel::Owner::is_in(&end.alias, &req.network) && !is_kept() {
            match node.route.request(link::delete(&end)) {
                Err(error) if !error.is_gone() => errors.push(error.into()),
                _ => {}
            }
        }
    }
    Error::all(errors)
}
