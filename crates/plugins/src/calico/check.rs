//! CHECK of a routed pod: both ends of its veth pair, its routes and neighbour entries, the node's routes to it.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_ip::IpFamily;
use podwire_kernel::rt::neighbour::{self, Neighbour, Table};
use podwire_kernel::rt::{address, link, route};
use podwire_kernel::{Host, Link};

use super::annotations::Annotations;
use super::config::Conf;
use super::desired::{gateway, node_end_sysctls, pod_routes, GATEWAY_V6, NODE_END_MAC};
use super::{agent, pod_cidr, secondary};
use crate::addresses::{addresses_of, families, hosts};
use crate::inspection::{self, VethEnds};
use crate::{bandwidth, lease};

/// Compares the desired state with the kernel's. The order matters for repair: later findings depend on earlier ones.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let (mut pod, mut node) = (req.pod()?, Host::here()?);
    if secondary::is_secondary(req, &mut node, &mut pod)? {
        // The network that created the interface checks the rest.
        return inspection::pod_interface(req, &mut pod);
    }
    let mut findings = Vec::new();
    let pod_end = pod.find_link(&req.ifname)?;
    if let Some(pod_end) = &pod_end {
        findings.extend(node_end(req, conf, &mut node, pod_end)?);
    }
    findings.extend(inspection::pod_interface(req, &mut pod)?);
    if let Some(pod_end) = &pod_end {
        findings.extend(pod_side(req, conf, &mut pod, pod_end)?);
    }
    if pod_end.is_some() {
        findings.extend(limits(req, conf)?);
    }
    findings.extend(addresses(req, conf)?);
    Ok(findings)
}

/// The bandwidth limits that the pod requests. Skipped if the agent cannot return the pod's annotations now.
fn limits<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let Ok(Some(pod)) = agent::find_pod(req) else { return Ok(Vec::new()) };
    bandwidth::inspect(req, &Annotations::read(&pod, &conf.permissions)?.bandwidth())
}

/// The findings of the IPAM plugin, unless the pod has addresses of the annotation `ipAddrsNoIpam`.
fn addresses<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    if conf.permissions.no_ipam {
        let pod = agent::find_pod(req)?.unwrap_or_default();
        if !Annotations::read(&pod, &conf.permissions)?.unmanaged.is_empty() {
            return Ok(Vec::new());
        }
    }
    let with_cidrs = pod_cidr::substitute(req)?;
    lease::inspect(&with_cidrs)
}

/// The node's end: up, with Calico's hardware address and sysctls, and a route to each address of the pod.
fn node_end<'p>(req: &Request<'p>, conf: &Conf, node: &mut Host, pod_end: &Link) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let pods = hosts(&addresses_of(recorded, &req.ifname));
    let end = match inspection::other_end(node, pod_end)? {
        Ok(end) => end,
        Err(lost) => return Ok(vec![lost]),
    };
    let mut findings = inspection::mtu(req, VethEnds { pod: pod_end, node: Some(&end) }, conf.mtu);
    if end.mac[..] != NODE_END_MAC.0[..] {
        let is = end.mac_text();
        let text = format!("{} on the node has hardware address {is}, not {NODE_END_MAC}", end.name);
        let message = link::change(end.index, format!("set the hardware address of {}", end.name))
            .bytes(link::attribute::ADDRESS, &NODE_END_MAC.0);
        findings.push(Finding::new(text).repaired_by(inspection::change_node(message)));
    }
    findings.extend(inspection::is_up(&end, "the node's end"));
    let families = families(recorded);
    if families.contains(&IpFamily::V4) {
        for knob in ["proxy_arp", "forwarding"] {
            findings.extend(inspection::sysctl(format!("net/ipv4/conf/{}/{knob}", end.name), "1"));
        }
    }
    let sysctls = node_end_sysctls(&end.name, &families);
    findings.extend(sysctls.into_iter().filter_map(|(knob, value)| inspection::sysctl(knob, value)));
    if families.contains(&IpFamily::V6) && !has_ipv6_gateway(node, &end)? {
        let again = address::add(end.index, GATEWAY_V6, 64, false);
        let text = format!("{} on the node lost the gateway's address {GATEWAY_V6}", end.name);
        findings.push(Finding::new(text).repaired_by(inspection::change_node(again)));
    }
    findings.extend(inspection::node_routes(node, &end, &pods)?);
    findings.extend(inspection::forwarding(&pods));
    Ok(findings)
}

/// Whether the node's end has the address of the IPv6 gateway.
fn has_ipv6_gateway(node: &mut Host, end: &Link) -> Result<bool> {
    Ok(address::list(&mut node.route, end.index)?.iter().any(|one| one.ip == GATEWAY_V6))
}

/// The pod's routes to the gateways and through them, and its neighbour entries for the gateways.
fn pod_side<'p>(req: &Request<'p>, conf: &Conf, pod: &mut Host, pod_end: &Link) -> Result<Vec<Finding<'p>>> {
    let recorded = req.recorded()?;
    let found = route::list(&mut pod.route)?;
    let mut findings = Vec::new();
    for wanted in pod_routes(conf, recorded, pod_end) {
        let same = |one: &route::Route| {
            (one.dst, one.prefix, one.link, one.gateway)
                == (wanted.dst, wanted.prefix, wanted.link, wanted.gateway)
        };
        if !found.iter().any(same) {
            let via = wanted.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
            let text =
                format!("route to {}/{}{via} on {} is missing", wanted.dst, wanted.prefix, pod_end.name);
            findings.push(Finding::new(text).repaired_by(inspection::change(req, wanted.add())));
        }
    }
    for gateway in families(recorded).into_iter().map(gateway) {
        let entries = neighbour::list(&mut pod.route, pod_end.index, IpFamily::of(gateway))?;
        // No entry is fine: Calico's plugin adds none, and the kernel resolves the gateway by ARP.
        let is_wrong = |mac: [u8; 6]| mac != NODE_END_MAC.0;
        if entries.iter().any(|one| one.ip == gateway && one.mac.is_some_and(is_wrong)) {
            let text =
                format!("{} in the pod has a wrong hardware address for gateway {gateway}", pod_end.name);
            let again =
                Neighbour::permanent(pod_end.index, gateway, NODE_END_MAC.0).replace(Table::Addresses);
            findings.push(Finding::new(text).repaired_by(inspection::change(req, again)));
        }
    }
    Ok(findings)
}
