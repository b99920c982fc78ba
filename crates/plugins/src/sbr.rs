//! sbr: source based routing, for pods with interfaces in several networks.
//!
//! Normally the destination of a packet selects its route. A pod that replies from its second interface's address would
//! send the reply through the first interface's gateway, which drops it. With sbr the source selects the route: each
//! address of the interface gets its own routing table with the interface's routes, and a rule that sends packets
//! *from* that address to the table.
//!
//! All rules and routes are in the pod's namespace and disappear with it.

mod apply;
mod check;
mod desired;

use std::net::IpAddr;

use podwire_cni_plugin::{Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_kernel::rt::{address, route, rule};
use podwire_kernel::{Host, Undo};
use serde::Deserialize;

use crate::pod_lock::{self, PodLock};
use crate::veth_pair;
use apply::NO_POLICY_ROUTING;
use desired::{Gateways, SourceRouting};

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["table", "gateways", "addSourceHints"];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conf {
    /// A table that the administrator fills; sbr adds only rules.
    table: Option<u32>,
    /// The gateways to use instead of the recorded ones.
    gateways: Vec<String>,
    /// Keep on-link routes in the main table, too, for packets without a source address yet.
    add_source_hints: bool,
}

impl Conf {
    fn routing(&self) -> Result<SourceRouting> {
        Ok(SourceRouting {
            table: self.table,
            gateways: Gateways::parse(&self.gateways)?,
            hints: self.add_source_hints,
        })
    }
}

/// The plugin.
#[derive(Debug)]
pub struct Sbr;

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
    }

    fn about(&self) -> &'static str {
        "sbr: routes by source address, for pods with several interfaces"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS]))
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let routing = req.config::<Conf>()?.routing()?;
        let result = req.chained_or("This plugin must be called as chained plugin")?;
        let sources = sources(result, &req.ifname)?;
        let mut pod = req.pod()?;
        let _lock = PodLock::acquire(&pod)?;
        let link = apply::interface(req, &mut pod)?;
        let mut undo = Undo::new();
        undo.push(|| drop(undo_rules(req, &sources)));
        let tables = apply::add_rules(&mut pod, &sources, &routing)?;
        if routing.table.is_none() {
            let moves = routing.moves(&tables, &route::list(&mut pod.route)?, link.index);
            let moved = moves.clone();
            undo.push(move || drop(apply::undo_moves(req, &moved)));
            apply::move_routes(&mut pod, &moves)?;
        }
        undo.keep();
        Ok(result.clone())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let Some(mut pod) = req.find_pod()? else { return Ok(()) };
        let _lock = PodLock::acquire(&pod)?;
        let recorded = req.prev.iter().flat_map(|prev| apply::of_interface(prev, &req.ifname));
        let mut addresses: Vec<IpAddr> = recorded.map(|ip| ip.address.addr()).collect();
        match present_addresses(req, &mut pod)? {
            Some(Present::Own(present)) => addresses.extend(present),
            // Another attachment may have got an address that was this one's.
            Some(Present::Anothers(present)) => addresses.retain(|address| !present.contains(address)),
            None => {}
        }
        let table = req.config::<Conf>().ok().and_then(|conf| conf.table);
        apply::remove_rules(&mut pod, &addresses, table)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, req.config::<Conf>()?.routing()?)
    }

    fn gc(&self, _: &Request<'_>) -> Result<()> {
        pod_lock::collect()
    }

    /// Fails if the kernel has no policy routing.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        req.config::<Conf>()?.routing()?;
        if rule::is_supported(&mut Host::here()?.route)? {
            return Ok(());
        }
        Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, NO_POLICY_ROUTING).into())
    }
}

/// The addresses of the interface that has the request's name now, by its attachment.
enum Present {
    Own(Vec<IpAddr>),
    Anothers(Vec<IpAddr>),
}

fn present_addresses(req: &Request<'_>, pod: &mut Host) -> Result<Option<Present>> {
    let Some(link) = pod.find_link(&req.ifname)? else { return Ok(None) };
    let addresses = match address::list(&mut pod.route, link.index) {
        Ok(all) => all.into_iter().map(|one| one.ip).collect(),
        // The interface was deleted in between.
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if veth_pair::belongs_to_another(req, &mut Host::here()?, &link)? {
        return Ok(Some(Present::Anothers(addresses)));
    }
    Ok(Some(Present::Own(addresses)))
}

fn sources(result: &Attachment, ifname: &str) -> Result<Vec<Ip>> {
    let all: Vec<Ip> = apply::of_interface(result, ifname).cloned().collect();
    if all.is_empty() {
        let text = format!("No IP addresses supplied on interface: {ifname}");
        let hint = "put sbr after a plugin that has an IPAM plugin";
        return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
    }
    Ok(all)
}

fn undo_rules(req: &Request<'_>, sources: &[Ip]) -> Result<()> {
    let addresses: Vec<IpAddr> = sources.iter().map(|ip| ip.address.addr()).collect();
    apply::remove_rules(&mut req.pod()?, &addresses, req.config::<Conf>()?.table)
}
