//! CHECK of a pod's host ports: the elements of the maps, the shared rules, the node's loopback.

use podwire_cni_plugin::{Context, Finding, Request, Result};
use podwire_kernel::firewall::hostports::{self, PortMap, Snat};
use podwire_kernel::firewall::legacy;
use podwire_kernel::Host;

use super::config::Conf;
use super::target::{find_device, loopback_sysctl, pod_addresses};
use crate::address_holder;
use crate::inspection::{self, on_node};

/// Compares the config with the kernel's state. Maps of a Go plugin are not compared further.
pub(super) fn inspect<'p>(req: &Request<'p>, conf: &Conf) -> Result<Vec<Finding<'p>>> {
    let maps = conf.maps(&pod_addresses(req.recorded()?, req));
    let mut node = Host::here()?;
    if maps.is_empty() || legacy::maps_ports(node.nft()?, &req.owner())? {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    findings.extend(loopback(req, conf, &mut node, &maps)?);
    let nft = node.nft()?;
    let (of_all, options) = (maps.clone(), conf.options.clone());
    findings.extend(inspection::rules(
        "port maps",
        &hostports::absent(nft, &maps, &conf.options)?,
        move |node| Ok(hostports::prepare(node.nft()?, &of_all, &options)?),
    ));
    let missing = hostports::missing(nft, &req.owner(), &maps, &conf.options)?;
    findings.extend(missing.into_iter().map(|map| missing_map(req, conf, map)));
    Ok(findings)
}

fn missing_map<'p>(req: &Request<'p>, conf: &Conf, map: PortMap) -> Finding<'p> {
    let (port, protocol, pod) = (map.host_port, map.protocol.name(), map.pod.addr());
    let at = map.host_ip.map(|ip| format!(" of {ip}")).unwrap_or_default();
    let text = format!("host port {port}/{protocol}{at} is not mapped to {pod} any more");
    let (owner, options) = (req.owner(), conf.options.clone());
    Finding::new(text).repaired_by(on_node(move |node| {
        let nft = node.nft()?;
        hostports::add_if_free(nft, &owner, &[map], &options, &address_holder::is_running)
            .doing(|| "map the pod's port again".into())?;
        Ok(hostports::forget_earlier_connections(nft, &[map])?)
    }))
}

/// The node's loopback can reach the pod. Checked only if the device towards the pod is one that the chain created:
/// without that device the node's route leads through another one, whose sysctl must not change.
fn loopback<'p>(
    req: &Request<'p>,
    conf: &Conf,
    node: &mut Host,
    maps: &[PortMap],
) -> Result<Option<Finding<'p>>> {
    let Ok(Some(device)) = find_device(node, maps) else { return Ok(None) };
    let interfaces = &req.recorded()?.interfaces;
    let is_created = interfaces.iter().any(|one| one.sandbox.is_empty() && one.name == device.name);
    if conf.options.snat == Snat::Off || !is_created {
        return Ok(None);
    }
    Ok(inspection::sysctl(loopback_sysctl(&device.name), "1"))
}
