//! calico: a cable of its own for each pod, routed; no bridge and no subnet.
//!
//! A pod has one address of full length. All that it sends goes to `169.254.1.1`, which nobody has: the node's end of the cable answers
//! for it, always with the same hardware address, and forwards. The node knows each pod by a route to its address. Names, addresses and
//! knobs are those of Calico's plugin of this type, whose node agent takes ours for its own.

mod check;
mod cluster;
mod config;
mod gate;
mod guest;
mod name;
mod pod_cidr;
mod quantity;
mod wishes;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::Conf;
use ipnet::IpNet;
use podwire_cni_plugin::policy::{self, Policy};
use podwire_cni_plugin::{Context, Error, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::neighbour::{Neighbour, Table};
use podwire_kernel::rt::{address, link, route, route::Route};
use podwire_kernel::veth::{self, End, Pair, Veth};
use podwire_kernel::{detached, sysctl, Host, Link, Mac, Undo};
use podwire_netlink::Batch;
use wishes::Wishes;

use crate::calico_ipam::Given;
use crate::lease::{self, Lease};
use crate::{bandwidth, cable, plumbing};

/// The plugin.
#[derive(Debug)]
pub struct Calico;

/// The hardware address of every node's end.
const END: Mac = Mac([0xee; 6]);
/// Where a pod sends what it sends.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// The same for IPv6: what the kernel makes for the node's end of its hardware address, if nobody was faster.
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee));

impl Plugin for Calico {
    fn name(&self) -> &'static str {
        "calico"
    }

    fn about(&self) -> &'static str {
        "calico: connects a pod to the node by a cable of its own, and routes its one address"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let policy = Policy::read(req)?.filter(Policy::is_somebody_there);
        conf.gates.iter().try_for_each(gate::Gate::pass)?;
        let mut node = Host::here()?;
        let mut pod = req.pod()?;
        if let Some(joined) = guest::join(req, &mut node, &mut pod)? {
            return Ok(joined);
        }
        let known = cluster::known(req)?;
        let wishes =
            known.as_ref().map(|pod| Wishes::read(pod, &conf.rights)).transpose()?.unwrap_or_default();
        let own = pod_cidr::substituted(req)?;
        let asked = wishes.applied(&own)?;
        let mut undo = Undo::new();
        let lease = match &wishes.unmanaged[..] {
            [] => lease::begin(&asked, &mut undo).map_err(|error| wishes.explain(error))?,
            addresses => Lease::Here(unmanaged(addresses)),
        };
        // The addresses are on their way, and the cable needs none.
        let connected = connect(req, &conf, wishes.mac, (&mut node, &mut pod));
        if let Ok(pair) = &connected {
            let end = pair.host.clone();
            undo.push(move || veth::remove(&end));
        }
        let leased = lease.obtain(&asked, &mut undo).map_err(|error| wishes.explain(error));
        let (pair, Given { lease: mut result, line }) = (connected?, leased?);
        shorten(&mut result);
        let (v4, v6) = families(&result);
        let nets: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        sysctl::enable_forwarding(&IpFamily::among(&nets))
            .doing(|| "could not enable IP forwarding".into())?;
        for (knob, value) in knobs(&pair.host, v4, v6) {
            sysctl::set_if_there(&knob, value)?;
        }
        limit(req, &mut node, &pair, &wishes.bandwidth(), &mut undo)?;
        result.interfaces = cable::interfaces(req, conf.mtu, &pair);
        result.ips.iter_mut().for_each(|ip| (ip.interface, ip.gateway) = (Some(1), None));

        let asked = cluster::publish(req, line, &result, (known, &wishes))?;
        let connected = policy::stand(policy, req, &result, &mut undo)
            .and_then(|()| wire_pod(req, &conf, &mut pod, &result))
            .and_then(|()| wire_node(&mut node, &pair, &result));
        cluster::published(req, asked, connected)?;
        result.routes.clear();
        undo.keep();
        detached::after_adding(&node);
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let mut errors = Vec::new();
        errors.extend(cluster::withdraw(req).err());
        errors.extend(disconnect(req, &mut node).err());
        errors.extend(bandwidth::remove(req).err());
        errors.extend(pod_cidr::substituted(req).and_then(|req| lease::release(&req)).err());
        policy::farewell(req);
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
        errors.extend(cluster::collect(req).err());
        errors.extend(pod_cidr::substituted(req).and_then(|req| lease::collect(&req)).err());
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        let own = pod_cidr::substituted(req)?;
        lease::status(&own)
    }
}

/// Addresses that the pod has brought with it. Nobody knows whether they are somebody else's, too.
fn unmanaged(addresses: &[IpAddr]) -> Attachment {
    let ip = |ip: &IpAddr| Ip { address: IpNet::from(*ip), interface: None, gateway: None };
    Attachment { ips: addresses.iter().map(ip).collect(), ..Attachment::default() }
}

/// A pod has no subnet: nobody is on its wire but the node.
fn shorten(lease: &mut Attachment) {
    for ip in &mut lease.ips {
        ip.address = IpNet::from(ip.address.addr());
    }
}

fn families(result: &Attachment) -> (bool, bool) {
    let has = |v4: bool| result.ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4);
    (has(true), has(false))
}

fn connect(
    req: &Request<'_>,
    conf: &Conf,
    mac: Option<Mac>,
    (node, pod): (&mut Host, &mut Host),
) -> Result<Pair> {
    let (owner, name) = (req.owner(), free_name(req, node)?);
    let end = Some(End { name: &name, mac: END, queues: conf.queues });
    let cable = Veth { name: &req.ifname, owner: &owner, mtu: conf.mtu, mac, port: None, end };
    cable::create(&cable, req, (node, pod), "the node")
}

/// A name for the node's end. A cable that has it may be of this pod's sandbox before, which was not deleted yet, or never will be: then it goes. A
/// container's name is its own, and a cable with that name is another's unless it is signed.
fn free_name(req: &Request<'_>, node: &mut Host) -> Result<String> {
    let names = name::of_end(req);
    let is_pods = names.len() == 1;
    for name in &names {
        // A glance waits for nobody.
        if node.peek_link(name).is_err_and(|error| error.is_gone()) {
            return Ok(name.clone());
        }
        let Some(there) = node.find_link(name)? else { return Ok(name.clone()) };
        if there.kind == "veth" && (is_pods || req.owner().matches(&there.alias)) {
            node.route
                .request(link::delete(&there))
                .doing(|| format!("remove the pod's former cable {name}"))?;
            return Ok(name.clone());
        }
    }
    let text = format!("the node has links called {} already, which are not this pod's", names.join(" and "));
    let hint = "see whose they are with `ip -d link show`, and delete them if nobody needs them";
    Err(podwire_cni_spec::Error::internal(text).with_details(hint).into())
}

/// What the node's end is set to besides what it is born with. The kernel would let a pod wait for an answer on behalf of others.
fn knobs(end: &str, v4: bool, v6: bool) -> Vec<(String, &'static str)> {
    let mut all = vec![(format!("net/ipv6/conf/{end}/accept_ra"), "0")];
    if v4 {
        all.push((format!("net/ipv4/neigh/{end}/proxy_delay"), "0"));
    }
    match v6 {
        true => {
            for (knob, value) in
                [("disable_ipv6", "0"), ("accept_dad", "0"), ("proxy_ndp", "1"), ("forwarding", "1")]
            {
                all.push((format!("net/ipv6/conf/{end}/{knob}"), value));
            }
        }
        false => all.push((format!("net/ipv6/conf/{end}/disable_ipv6"), "1")),
    }
    all
}

/// Limits how fast the pod receives and sends, if it wants that.
fn limit<'a>(
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

/// The gateway is on the wire, and everything is behind it. The pod knows its hardware address from the beginning, and need not ask.
fn wire_pod(req: &Request<'_>, conf: &Conf, pod: &mut Host, result: &Attachment) -> Result<()> {
    let inside = pod.peek_link(&req.ifname)?;
    let bare = Attachment { routes: Vec::new(), ..result.clone() };
    plumbing::configure(pod, &inside, &bare, plumbing::Options::default())?;
    let mut batch = Batch::new();
    for wanted in routes(conf, result, &inside) {
        batch.push(wanted.add());
    }
    let (v4, v6) = families(result);
    for gateway in [v4.then_some(GATEWAY), v6.then_some(GATEWAY_V6)].into_iter().flatten() {
        batch.push(Neighbour::permanent(inside.index, gateway, END.0).replace(Table::Addresses));
    }
    pod.route.batch(batch).doing(|| format!("route {} in the pod", inside.name))?;
    if let Some(forwards) = conf.allow_ip_forwarding {
        let value = if forwards { "1" } else { "0" };
        pod.run(|| sysctl::ensure_if_there("net/ipv4/ip_forward", value))??;
        pod.run(|| sysctl::ensure_if_there("net/ipv6/conf/all/forwarding", value))??;
    }
    Ok(())
}

/// The pod's routes: to the gateway of each family, and through it to everything, or to what the config names.
fn routes(conf: &Conf, result: &Attachment, inside: &Link) -> Vec<Route> {
    let on = |route: Route| Route { link: Some(inside.index), ..route };
    let mut all = Vec::new();
    for ip in &result.ips {
        let v4 = ip.address.addr().is_ipv4();
        let gateway = if v4 { GATEWAY } else { GATEWAY_V6 };
        if v4 {
            all.push(on(Route { scope: route::LINK, ..Route::to(GATEWAY, 32) }));
        }
        for net in conf.destinations(v4) {
            all.push(on(Route { gateway: Some(gateway), ..Route::to(net.addr(), net.prefix_len()) }));
        }
    }
    all
}

/// The gateway's address, and the node's route to each of the pod's addresses.
fn wire_node(node: &mut Host, pair: &Pair, result: &Attachment) -> Result<()> {
    let end = node.peek_link(&pair.host)?;
    if families(result).1 {
        // As the kernel makes it when it hears of the cable's other end; that may be later than somebody looks.
        match node.route.request(address::add(end.index, GATEWAY_V6, 64, true)) {
            Err(error) if error.is_exists() => {}
            done => done.doing(|| format!("give {} the gateway's address", end.name))?,
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
                let hint = "another pod has this address, or a dead one left its route: `ip route` names its interface";
                return Err(podwire_cni_spec::Error::internal(text).with_details(hint).into());
            }
            done => done.doing(|| format!("route {} on the node", end.name))?,
        }
    }
    Ok(())
}

/// Deletes the pod's cable, if it is still this container's: a sandbox that came after it has the same name.
fn disconnect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let mut found = Vec::new();
    for name in name::of_end(req) {
        found.extend(node.find_link(&name)?.filter(|link| link.kind == "veth"));
    }
    let in_pod = match req.find_pod()? {
        None => None,
        Some(mut pod) => pod.find_link(&req.ifname)?.map(|link| (pod, link)),
    };
    if let Some((mut pod, inside)) = in_pod {
        if found.iter().any(|end| inside.link == Some(end.index)) {
            return match cable::is_anothers(req, node, &inside)? {
                true => Ok(()),
                false => Ok(detached::delete_link(&mut pod, &inside, None)?),
            };
        }
    }
    // Calico's own signs nothing: whose it is can be told by the pod's end only.
    match found.iter().find(|end| req.owner().matches(&end.alias)) {
        Some(end) => Ok(detached::delete_link(&mut Host::here()?, end, None)?),
        None => Ok(()),
    }
}

/// Deletes the network's cables that belong to no valid attachment.
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

/// Whether the node's end has the address that must be there for IPv6.
fn has_gateway(node: &mut Host, end: &Link) -> Result<bool> {
    Ok(address::list(&mut node.route, end.index)?.iter().any(|one| one.ip == GATEWAY_V6))
}
