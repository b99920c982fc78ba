//! CHECK of a pod on a bridge: the bridge, the veth pair, its port, and the settings that the config asks for.

mod ports;
mod router;

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_kernel::rt::link;
use podwire_kernel::{veth, Host, Link};

use super::config::Conf;
use crate::inspection::{self, change_node, on_node, VethEnds};
use crate::{lease, masquerade};

/// Compares the desired state with the kernel's. The order matters for repair: later findings depend on earlier ones.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    req.recorded()?;
    let (mut pod, mut node) = (req.pod()?, Host::here()?);
    let (found, mut findings) = bridge(req, conf, &mut node)?;
    match pod.find_link(&req.ifname)? {
        None => findings.push(Finding::new(format!("the pod has no interface {}", req.ifname))),
        Some(pod_end) => findings.extend(veth_pair(req, conf, &mut node, &pod_end, found.as_ref())?),
    }
    if conf.is_gateway && conf.has_ipam() {
        findings.extend(router::inspect(req, conf, &mut node, found.as_ref())?);
    }
    let has_interface = pod.find_link(&req.ifname)?.is_some() && !conf.disable_container_interface;
    if has_interface {
        findings.extend(inspection::pod_interface(req, &mut pod)?);
    }
    if conf.has_ipam() && conf.ip_masq {
        findings.extend(masquerade::inspect(req, &mut node)?);
    }
    findings.extend(lease::inspect(req)?);
    Ok(findings)
}

/// The part of CHECK that concerns firewall rules.
pub(super) fn rules<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let mut node = Host::here()?;
    let mut findings = Vec::new();
    if conf.macspoofchk {
        if let Some(end) = node.find_link(&veth::host_name(&req.owner()))? {
            findings.extend(ports::spoof_check(req, conf, &mut node, &end)?);
        }
    }
    if conf.has_ipam() && conf.ip_masq {
        findings.extend(masquerade::inspect(req, &mut node)?);
    }
    Ok(findings)
}

/// The bridge, if it exists, and its findings.
fn bridge<'p>(req: &Request<'p>, conf: &Conf, node: &mut Host) -> Result<(Option<Link>, Vec<Finding<'p>>)> {
    let Some(found) = node.find_link(&conf.bridge)? else {
        let req = req.clone();
        let make = on_node(move |node| {
            Conf::read(&req)?.bridge().ensure(node)?;
            Ok(())
        });
        let missing = Finding::new(format!("bridge {:?} is missing", conf.bridge)).repaired_by(make);
        return Ok((None, vec![missing]));
    };
    if found.kind != "bridge" {
        let text = format!("{:?} is not a bridge but a {}", found.name, found.kind);
        return Ok((None, vec![Finding::new(text)]));
    }
    let mut findings = Vec::new();
    if conf.uses_vlans() && !found.vlan_filtering {
        // No repair: enabling VLAN filtering would cut off other ports of the bridge.
        findings.push(Finding::new(format!("bridge {:?} does not filter VLANs any more", found.name)));
    }
    if conf.promisc_mode && found.promiscuity == 0 {
        let text = format!("bridge {:?} is not promiscuous", found.name);
        let doing = format!("set bridge {} promiscuous", found.name);
        let again = link::set_flags(found.index, link::PROMISC, link::PROMISC, doing);
        findings.push(Finding::new(text).repaired_by(change_node(again)));
    }
    if !found.is_up() {
        let text = format!("bridge {:?} is down", found.name);
        findings.push(Finding::new(text).repaired_by(change_node(link::up(&found))));
    }
    Ok((Some(found), findings))
}

/// The veth pair, and its port on the bridge.
fn veth_pair<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    pod_end: &Link,
    bridge: Option<&Link>,
) -> Result<Vec<Finding<'p>>> {
    let end = match inspection::other_end(node, pod_end)? {
        Ok(end) => end,
        Err(lost) => return Ok(vec![lost]),
    };
    let mut findings = inspection::mtu(req, VethEnds { pod: pod_end, node: Some(&end) }, conf.mtu);
    findings.extend(ports::inspect(req, conf, node, &end, bridge)?);
    Ok(findings)
}
