//! The node as the pods' router: the bridge's hardware address, the gateway's addresses, forwarding.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::address;
use podwire_kernel::rt::link::{self, attribute};
use podwire_kernel::{Host, Link, Mac};

use super::ports;
use crate::bridge::config::Conf;
use crate::bridge::gateway;
use crate::inspection::{self, change_node, on_node};
use crate::lease::{addresses_of, hosts};

/// What a gateway needs. `bridge` is not there if it was deleted.
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
    let leg = match conf.leg_name() {
        Some(name) => {
            findings.extend(leg(req, conf, node, (&name, bridge))?);
            node.find_link(&name)?
        }
        None => bridge.cloned(),
    };
    findings.extend(addresses(req, conf, node, leg)?);
    findings.extend(inspection::forwarding(&hosts(&addresses_of(req.recorded()?, &req.ifname))));
    Ok(findings)
}

/// The neighbours know the gateway by it.
fn hardware_address<'p>(req: &Request<'p>, bridge: &Link) -> Result<Option<Finding<'p>>> {
    let recorded = &req.recorded()?.interfaces;
    let told = recorded.iter().find(|one| one.name == bridge.name && one.sandbox.is_empty());
    let Some(wanted) = told.and_then(|one| one.mac.parse::<Mac>().ok()) else { return Ok(None) };
    if wanted.0[..] == bridge.mac[..] {
        return Ok(None);
    }
    let (name, is) = (&bridge.name, bridge.mac_text());
    let text = format!("bridge {name:?} has hardware address {is}, recorded was {wanted}");
    let again = link::change(bridge.index, format!("set the hardware address of bridge {name}"))
        .bytes(attribute::ADDRESS, &wanted.0);
    Ok(Some(Finding::new(text).repaired_by(change_node(again))))
}

/// The gateway's leg into a VLAN, and its port on the bridge.
fn leg<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    (name, bridge): (&str, Option<&Link>),
) -> Result<Vec<Finding<'p>>> {
    let mut findings = Vec::new();
    let found = node.find_link(name)?;
    if !found.as_ref().is_some_and(Link::is_up) {
        let state = if found.is_some() { "down" } else { "missing" };
        let again = complete(req);
        findings.push(Finding::new(format!("the gateway's leg {name} is {state}")).repaired_by(again));
    }
    let Some(port) = gateway::leg_port(node, &conf.bridge, name)? else { return Ok(findings) };
    if bridge.is_none_or(|bridge| port.master != Some(bridge.index)) {
        let text =
            format!("{} of the gateway's leg {name} is not a port of bridge {:?}", port.name, conf.bridge);
        findings.push(Finding::new(text).repaired_by(ports::plug_in(&conf.bridge, &port)));
    }
    findings.extend(inspection::is_up(&port, "bridge port"));
    findings.extend(ports::vlans(node, &port, vec![gateway::leg_vlan(conf)], !conf.preserve_default_vlan)?);
    Ok(findings)
}

/// Makes the leg as ADD does.
fn complete<'p>(req: &Request<'p>) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    on_node(move |node| {
        let conf = Conf::read(&req)?;
        let bridge = node.get_link(&conf.bridge)?;
        gateway::leg(&conf, node, &bridge).map(drop)
    })
}

/// The gateways' addresses are on the bridge, or on its leg. All are given at once, as ADD does.
fn addresses<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    leg: Option<Link>,
) -> Result<Vec<Finding<'p>>> {
    let name = conf.leg_name().unwrap_or_else(|| conf.bridge.clone());
    let found = match &leg {
        Some(leg) => address::list(&mut node.route, leg.index)?,
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
                let leg = node.get_link(&name)?;
                gateway::assign(&Conf::read(&req)?, node, &leg, &one)
            }))
        })
        .collect())
}
