//! CHECK of a routed pod: both ends of its cable, its routes and its neighbour, the node's routes to it.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_kernel::rt::neighbour::{self, Neighbour, Table};
use podwire_kernel::rt::{address, link, route};
use podwire_kernel::{Host, Link};

use super::wishes::Wishes;
use super::{cluster, families, guest, has_gateway, knobs, pod_cidr, routes, Conf, END, GATEWAY, GATEWAY_V6};
use crate::lease::{addresses_of, hosts};
use crate::{bandwidth, inspection, lease};

/// Compares the whole wanted state with the kernel's. What comes first is needed by what follows.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let (mut pod, mut node) = (req.pod()?, Host::here()?);
    if guest::is_guest(req, &mut node, &mut pod)? {
        // The rest is for the network to look at that the container has the interface by.
        return inspection::pod_interface(req, &mut pod);
    }
    let mut findings = Vec::new();
    let inside = pod.find_link(&req.ifname)?;
    if let Some(inside) = &inside {
        findings.extend(node_end(req, conf, &mut node, inside)?);
    }
    findings.extend(inspection::pod_interface(req, &mut pod)?);
    if let Some(inside) = &inside {
        findings.extend(ways_out(req, conf, &mut pod, inside)?);
    }
    if inside.is_some() {
        findings.extend(limits(req, conf)?);
    }
    findings.extend(addresses(req, conf)?);
    Ok(findings)
}

/// The limits that the pod has asked for. If nobody can be asked about pods now, nothing is known of them.
fn limits<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let Ok(Some(pod)) = cluster::known(req) else { return Ok(Vec::new()) };
    bandwidth::inspect(req, &Wishes::read(&pod, &conf.rights)?.bandwidth())
}

/// What the IPAM plugin says, unless the pod has brought its addresses with it.
fn addresses<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    if conf.rights.without_ipam {
        let known = cluster::known(req)?;
        let wishes = known.map(|pod| Wishes::read(&pod, &conf.rights)).transpose()?.unwrap_or_default();
        if !wishes.unmanaged.is_empty() {
            return Ok(Vec::new());
        }
    }
    let own = pod_cidr::substituted(req)?;
    lease::inspect(&own)
}

/// The node's end: up, with Calico's hardware address and knobs, and a route to each address of the pod.
fn node_end<'p>(req: &Request<'p>, conf: &Conf, node: &mut Host, inside: &Link) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let pods = hosts(&addresses_of(recorded, &req.ifname));
    let end = match inspection::other_end(node, inside)? {
        Ok(end) => end,
        Err(lost) => return Ok(vec![lost]),
    };
    let mut findings = inspection::mtu(req, (inside, Some(&end)), conf.mtu);
    if end.mac[..] != END.0[..] {
        let text = format!("{} on the node has hardware address {}, not {END}", end.name, end.mac_text());
        let message = link::change(end.index, format!("set the hardware address of {}", end.name))
            .bytes(link::attribute::ADDRESS, &END.0);
        findings.push(Finding::new(text).repaired_by(inspection::change_node(message)));
    }
    findings.extend(inspection::is_up(&end, "the node's end"));
    let (v4, v6) = families(recorded);
    if v4 {
        for knob in ["proxy_arp", "forwarding"] {
            findings.extend(inspection::sysctl(format!("net/ipv4/conf/{}/{knob}", end.name), "1"));
        }
    }
    findings.extend(
        knobs(&end.name, v4, v6).into_iter().filter_map(|(knob, value)| inspection::sysctl(knob, value)),
    );
    if v6 && !has_gateway(node, &end)? {
        let again = address::add(end.index, GATEWAY_V6, 64, false);
        let text = format!("{} on the node lost the gateway's address {GATEWAY_V6}", end.name);
        findings.push(Finding::new(text).repaired_by(inspection::change_node(again)));
    }
    findings.extend(inspection::node_routes(node, &end, &pods)?);
    findings.extend(inspection::forwarding(&pods));
    Ok(findings)
}

/// The pod's routes to the gateways and through them, and what it knows of the gateways.
fn ways_out<'p>(req: &Request<'p>, conf: &Conf, pod: &mut Host, inside: &Link) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let found = route::list(&mut pod.route)?;
    let mut findings = Vec::new();
    for wanted in routes(conf, recorded, inside) {
        let same = |one: &route::Route| {
            (one.dst, one.prefix, one.link, one.gateway)
                == (wanted.dst, wanted.prefix, wanted.link, wanted.gateway)
        };
        if !found.iter().any(same) {
            let via = wanted.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
            let text =
                format!("route to {}/{}{via} on {} is missing", wanted.dst, wanted.prefix, inside.name);
            findings.push(Finding::new(text).repaired_by(inspection::change(req, wanted.add())));
        }
    }
    let (v4, v6) = families(recorded);
    for gateway in [v4.then_some(GATEWAY), v6.then_some(GATEWAY_V6)].into_iter().flatten() {
        let known = neighbour::list(&mut pod.route, inside.index, podwire_ip::IpFamily::of(gateway))?;
        // Calico's own leaves it to the kernel to ask.
        if known.iter().any(|one| one.ip == gateway && one.mac.is_some_and(|mac| mac != END.0)) {
            let text = format!("{} in the pod takes another than the node for {gateway}", inside.name);
            let again = Neighbour::permanent(inside.index, gateway, END.0).replace(Table::Addresses);
            findings.push(Finding::new(text).repaired_by(inspection::change(req, again)));
        }
    }
    Ok(findings)
}
