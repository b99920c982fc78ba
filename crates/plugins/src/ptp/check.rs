//! CHECK of a pod of ptp: both ends of the veth pair, and every route through it.

use std::net::IpAddr;

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::{Attachment, Ip};
use podwire_ip::IpFamily;
use podwire_kernel::rt::{address, route, route::Route};
use podwire_kernel::{Host, Link};

use super::config::Conf;
use super::routes::{connected, node_end_sysctl, through_gateway};
use crate::addresses::{addresses_of, hosts};
use crate::inspection::{self, VethEnds};
use crate::{lease, masquerade};

/// Compares the desired state with the kernel's. The order matters for repair: later findings depend on earlier ones.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded_or("ptp: Required prevResult missing")?;
    let (mut pod, mut node) = (req.pod()?, Host::here()?);
    let mut findings = Vec::new();
    if let Some(pod_end) = pod.find_link(&req.ifname)? {
        findings.extend(node_end(req, conf, &mut node, &pod_end)?);
    }
    findings.extend(inspection::pod_interface(req, &mut pod)?);
    findings.extend(routes(req, &mut pod, recorded)?);
    if conf.ip_masq {
        findings.extend(masquerade::inspect(req, &mut node)?);
    }
    findings.extend(lease::inspect(req)?);
    Ok(findings)
}

/// The node's end of the veth pair: up, with the gateways' addresses and a route to each address of the pod.
fn node_end<'p>(req: &Request<'p>, conf: &Conf, node: &mut Host, pod_end: &Link) -> Result<Vec<Finding<'p>>> {
    let pods = hosts(&addresses_of(req.recorded()?, &req.ifname));
    let end = match inspection::other_end(node, pod_end)? {
        Ok(end) => end,
        Err(lost) => return Ok(vec![lost]),
    };
    let mut findings = inspection::mtu(req, VethEnds { pod: pod_end, node: Some(&end) }, conf.mtu);
    findings.extend(inspection::is_up(&end, "the node's end"));
    // A Go plugin does not set this sysctl.
    if inspection::is_ours(req, &end) {
        let (knob, value) = node_end_sysctl(&end.name, pods.iter().any(IpAddr::is_ipv6));
        findings.extend(inspection::sysctl(knob, value));
    }
    findings.extend(gateways(req, node, &end)?);
    findings.extend(inspection::node_routes(node, &end, &pods)?);
    findings.extend(inspection::forwarding(&pods));
    Ok(findings)
}

/// The node's end has the gateways' addresses.
fn gateways<'p>(req: &Request<'p>, node: &mut Host, end: &Link) -> Result<Vec<Finding<'p>>> {
    let found = address::list(&mut node.route, end.index)?;
    let wanted = own(req, req.recorded()?).filter_map(|ip| ip.gateway);
    let missing = wanted.filter(|gateway| !found.iter().any(|one| one.ip == *gateway));
    Ok(missing
        .map(|gateway| {
            let full = IpFamily::of(gateway).bits();
            let again = address::add(end.index, gateway, full, false);
            Finding::new(format!("{} on the node lost the gateway's address {gateway}", end.name))
                .repaired_by(inspection::change_node(again))
        })
        .collect())
}

/// The recorded addresses of the interface.
fn own<'a>(req: &Request<'_>, recorded: &'a Attachment) -> impl Iterator<Item = &'a Ip> {
    let nets = addresses_of(recorded, &req.ifname);
    recorded.ips.iter().filter(move |ip| nets.contains(&ip.address))
}

/// In the pod the gateway is on the link and the subnet is behind the gateway; no route in the main table puts the
/// subnet on the link. A later plugin may have moved the routes to another table.
fn routes<'p>(req: &Request<'p>, pod: &mut Host, recorded: &Attachment) -> Result<Vec<Finding<'p>>> {
    let Some(pod_end) = pod.find_link(&req.ifname)? else { return Ok(Vec::new()) };
    let found = route::list(&mut pod.route)?;
    let on_link = |wanted: &Route, one: &Route| {
        (one.dst, one.prefix, one.link) == (wanted.dst, wanted.prefix, wanted.link)
            && one.gateway == wanted.gateway
    };
    let mut findings = Vec::new();
    for ip in own(req, recorded).filter(|ip| ip.gateway.is_some()) {
        for wanted in through_gateway(ip, &pod_end) {
            if !found.iter().any(|one| on_link(&wanted, one)) {
                let to = format!("{}/{}", wanted.dst, wanted.prefix);
                let via = wanted.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
                findings.push(
                    Finding::new(format!("route to {to}{via} on {} is missing", pod_end.name))
                        .repaired_by(inspection::change(req, wanted.add())),
                );
            }
        }
        let unwanted = connected(ip, &pod_end);
        // Deleted by all of its attributes, because the route through the gateway is similar.
        if let Some(present) = found.iter().find(|one| on_link(&unwanted, one) && one.table == route::MAIN) {
            let text =
                format!("route to {} is on {}, not behind the gateway", ip.address.trunc(), pod_end.name);
            findings.push(Finding::new(text).repaired_by(inspection::change(req, present.delete())));
        }
    }
    Ok(findings)
}
