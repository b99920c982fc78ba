//! Compares what a pod needs on the node: the other end of its veth pair, routes, sysctls and shared rules.

use std::net::IpAddr;

use podwire_cni_plugin::{ledger, Context, Finding, Request, Result};
use podwire_ip::IpFamily;
use podwire_kernel::rt::link::{self, attribute, Link};
use podwire_kernel::rt::route;
use podwire_kernel::{sysctl, veth, Host};

use super::interface::recorded_interface;
use super::repair::{change, change_node, on_node};
use crate::tuning::Settings;

/// The absent rules of a feature that all pods share, as one finding: one repair creates them all.
pub fn rules<'p>(
    feature: &str,
    absent: &[String],
    prepare: impl FnOnce(&mut Host) -> Result<()> + 'p,
) -> Option<Finding<'p>> {
    let text = || format!("the rules of {feature} are not complete: {}", absent.join(", "));
    (!absent.is_empty()).then(|| Finding::new(text()).repaired_by(on_node(prepare)))
}

/// A finding if the node's sysctl `key` does not have the wanted value. A sysctl that the kernel lacks is skipped.
pub fn sysctl<'p>(key: String, wanted: &'static str) -> Option<Finding<'p>> {
    match sysctl::read(&key) {
        Ok(found) if found == wanted => None,
        Ok(found) => Some(
            Finding::new(format!("/proc/sys/{key} is {found}, not {wanted}"))
                .repaired_by(move || Ok(sysctl::write(&key, wanted)?)),
        ),
        Err(error) if error.is_gone() => None,
        Err(error) => Some(podwire_cni_plugin::Error::from(error).into()),
    }
}

/// The node forwards packets of the pod's families.
pub fn forwarding<'p>(pods: &[IpAddr]) -> Vec<Finding<'p>> {
    let v4 = pods.iter().any(IpAddr::is_ipv4).then_some("net/ipv4/ip_forward");
    let v6 = pods.iter().any(IpAddr::is_ipv6).then_some("net/ipv6/conf/all/forwarding");
    v4.into_iter().chain(v6).filter_map(|key| sysctl(key.into(), "1")).collect()
}

/// The ends of a pod's veth pair, or a device in the pod that has no other end.
#[derive(Clone, Copy)]
pub struct VethEnds<'l> {
    /// The interface in the pod.
    pub pod: &'l Link,
    /// The end on the node.
    pub node: Option<&'l Link>,
}

/// Both ends of a pod's veth pair have the expected MTU. For the pod's end this is the recorded MTU, which a later
/// plugin may have changed, else the configured one. Results before 1.1.0 record no MTU: then an MTU that tuning set is
/// accepted.
pub fn mtu<'p>(req: &Request<'p>, ends: VethEnds<'_>, configured: u32) -> Vec<Finding<'p>> {
    let recorded = req.prev.as_ref().and_then(|prev| recorded_interface(prev, &req.ifname));
    let recorded = recorded.map(|one| one.mtu).filter(|mtu| *mtu != 0);
    let wanted = recorded.unwrap_or(configured);
    let is_tuned = || recorded.is_none() && tuning_sets_mtu(req);
    let differs = |link: &Link, wanted: u32| wanted != 0 && link.mtu != wanted;
    let text =
        |link: &Link, wanted: u32| format!("interface {} has MTU {}, not {wanted}", link.name, link.mtu);
    let set = |link: &Link, wanted: u32| {
        link::change(link.index, format!("set MTU of {} to {wanted}", link.name)).u32(attribute::MTU, wanted)
    };
    let mut findings = Vec::new();
    if differs(ends.pod, wanted) && !is_tuned() {
        findings.push(Finding::new(text(ends.pod, wanted)).repaired_by(change(req, set(ends.pod, wanted))));
    }
    if let Some(end) = ends.node.filter(|end| differs(end, configured)) {
        findings.push(Finding::new(text(end, configured)).repaired_by(change_node(set(end, configured))));
    }
    findings
}

/// Whether tuning had an MTU in its config when the pod was attached.
fn tuning_sets_mtu(req: &Request<'_>) -> bool {
    let tuned = ledger::requests(&req.owner(), "tuning", req.registry);
    tuned.iter().any(|tuned| Settings::read(tuned).is_ok_and(|settings| settings.link.mtu.is_some()))
}

/// The node's end of the pod's veth pair, or a finding if it is gone. Only a new attachment repairs that.
pub fn other_end<'p>(node: &mut Host, inside: &Link) -> Result<Result<Link, Finding<'p>>> {
    if inside.kind != "veth" {
        let text = format!("interface {} is not a veth but a {}", inside.name, inside.kind);
        return Ok(Err(Finding::new(text)));
    }
    let found = link::find_index(&mut node.route, inside.link.unwrap_or(0));
    let end = found.doing(|| format!("look for the other end of {}", inside.name))?;
    // The peer's index may belong to another device: indexes are unique only within one namespace.
    let end = end.filter(|end| end.kind == "veth" && end.link == Some(inside.index));
    let text = || format!("the other end of {} is not on this node", inside.name);
    Ok(end.ok_or_else(|| Finding::new(text())))
}

/// Whether Podwire created the node's end. A Go plugin gives it another name and configures less.
pub fn is_ours(req: &Request<'_>, end: &Link) -> bool {
    end.name == veth::host_name(&req.owner())
}

/// The node's end is up.
pub fn is_up<'p>(end: &Link, what: &str) -> Option<Finding<'p>> {
    let text = || format!("{what} {} is down", end.name);
    (!end.is_up()).then(|| Finding::new(text()).repaired_by(change_node(link::up(end))))
}
/// The node has a route to each address of the pod through `end`.
pub fn node_routes<'p>(node: &mut Host, end: &Link, pods: &[IpAddr]) -> Result<Vec<Finding<'p>>> {
    let found = route::list(&mut node.route)?;
    let missing = pods
        .iter()
        .filter(|pod| !found.iter().any(|route| route.dst == **pod && route.link == Some(end.index)));
    Ok(missing
        .map(|pod| {
            let full = IpFamily::of(*pod).bits();
            let again =
                route::Route { link: Some(end.index), scope: route::LINK, ..route::Route::to(*pod, full) };
            Finding::new(format!("the node has no route to {pod} through {}", end.name))
                .repaired_by(change_node(again.add()))
        })
        .collect())
}
