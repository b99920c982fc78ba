//! CHECK of the node as the pods' router: the bridge's hardware address, the gateway's addresses, forwarding.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::address;
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link, Mac};

use super::ports;
use crate::addresses::{addresses_of, hosts};
use crate::bridge::config::Conf;
use crate::bridge::gateway;
use crate::inspection::{self, change_node, on_node};

/// Compares what a gateway needs. `bridge` is `None` if it was deleted.
pub(super) fn inspect<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    bridge: Option<&Link>,
) -> Result<Vec<Finding<'p>>> {
    let mut findings = Vec::new();
    if let Some(bridge) = bridge {
        findings.extend(hardware_address(req, bridge)?);
        findings.extend(inspection::sysctl(format!("net/ipv6/conf/{}/accept_ra", bridge.name), "0"));
    }
    let link = match conf.gateway_link_name() {
        Some(name) => {
            findings.extend(gateway_link(req, conf, node, &name, bridge)?);
            node.find_link(&name)?
        }
        None => bridge.cloned(),
    };
    findings.extend(addresses(req, conf, node, link)?);
    findings.extend(inspection::forwarding(&hosts(&addresses_of(req.recorded()?, &req.ifname))));
    Ok(findings)
}

/// The bridge has its recorded hardware address, which the pods' ARP caches hold for the gateway.
fn hardware_address<'p>(req: &Request<'p>, bridge: &Link) -> Result<Option<Finding<'p>>> {
    let recorded = &req.recorded()?.interfaces;
    let own = recorded.iter().find(|one| one.name == bridge.name && one.sandbox.is_empty());
    let Some(wanted) = own.and_then(|one| one.mac.parse::<Mac>().ok()) else { return Ok(None) };
    if wanted.0[..] == bridge.mac[..] {
        return Ok(None);
    }
    let (name, is) = (&bridge.name, bridge.mac_text());
    let text = format!("bridge {name:?} has hardware address {is}, recorded was {wanted}");
    let again = link::change(bridge.index, format!("set the hardware address of bridge {name}"))
        .bytes(attribute::ADDRESS, &wanted.0);
    Ok(Some(Finding::new(text).repaired_by(change_node(again))))
}

/// The gateway link of a VLAN, and its port on the bridge.
fn gateway_link<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    name: &str,
    bridge: Option<&Link>,
) -> Result<Vec<Finding<'p>>> {
    let mut findings = Vec::new();
    let found = node.find_link(name)?;
    if !found.as_ref().is_some_and(Link::is_up) {
        let state = if found.is_some() { "down" } else { "missing" };
        let again = ensure_link(req);
        findings.push(Finding::new(format!("the gateway link {name} is {state}")).repaired_by(again));
    }
    let Some(port) = gateway::link_port(node, &conf.bridge, name)? else { return Ok(findings) };
    if bridge.is_none_or(|bridge| port.master != Some(bridge.index)) {
        let text =
            format!("{} of the gateway link {name} is not a port of bridge {:?}", port.name, conf.bridge);
        findings.push(Finding::new(text).repaired_by(ports::plug_in(&conf.bridge, &port)));
    }
    findings.extend(inspection::is_up(&port, "bridge port"));
    findings.extend(ports::vlans(node, &port, vec![gateway::link_vlan(conf)], !conf.preserve_default_vlan)?);
    Ok(findings)
}

/// A repair that creates or completes the gateway link, as ADD does.
fn ensure_link<'p>(req: &Request<'p>) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    on_node(move |node| {
        let conf = Conf::read(&req)?;
        let bridge = node.get_link(&conf.bridge)?;
        gateway::ensure_link(&conf, node, &bridge).map(drop)
    })
}

/// The gateway link has the gateways' addresses.
fn addresses<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    link: Option<Link>,
) -> Result<Vec<Finding<'p>>> {
    let name = conf.gateway_link_name().unwrap_or_else(|| conf.bridge.clone());
    let found = match &link {
        Some(link) => address::list(&mut node.route, link.index)?,
        None => Vec::new(),
    };
    let nets = addresses_of(req.recorded()?, &req.ifname);
    let own = req.recorded()?.ips.iter().filter(|ip| nets.contains(&ip.address));
    let missing =
        own.filter(|ip| ip.gateway.is_some_and(|gateway| !found.iter().any(|one| one.ip == gateway)));
    Ok(missing
        .map(|ip| {
            let text =
                format!("{name:?} lost the gateway's address {}", ip.gateway.unwrap_or(ip.address.addr()));
            let (req, name) = (req.clone(), name.clone());
            let one = Attachment { ips: vec![ip.clone()], ..Attachment::default() };
            Finding::new(text).repaired_by(on_node(move |node| {
                let link = node.get_link(&name)?;
                gateway::assign(&Conf::read(&req)?, node, &link, &one)
            }))
        })
        .collect())
}
