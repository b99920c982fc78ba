//! Comparing what is on the node for a pod, and putting it back.

use std::net::IpAddr;

use podwire_cni_plugin::{ledger, Context, Finding, Request, Result};
use podwire_kernel::rt::link::{self, attribute, Link};
use podwire_kernel::{detached, sysctl, veth, Host};

use super::{change, change_node};
use crate::tuning::Settings;

/// Does `work` on the node, when it comes to that.
pub fn on_node<'p>(work: impl FnOnce(&mut Host) -> Result<()> + 'p) -> impl FnOnce() -> Result<()> + 'p {
    move || {
        let mut node = Host::here()?;
        let done = work(&mut node);
        detached::after_adding(&node);
        done
    }
}

/// What is missing of the rules that all pods of a feature share, as one finding: they are made all at once.
pub fn rules<'p>(
    feature: &str,
    absent: &[String],
    prepare: impl FnOnce(&mut Host) -> Result<()> + 'p,
) -> Option<Finding<'p>> {
    let text = || format!("the rules of {feature} are not complete: {}", absent.join(", "));
    (!absent.is_empty()).then(|| Finding::new(text()).mended_by(on_node(prepare)))
}

/// A sysctl of the node that must have this value. A kernel that does not have it needs none.
pub fn sysctl<'p>(key: String, wanted: &'static str) -> Option<Finding<'p>> {
    match sysctl::read(&key) {
        Ok(found) if found == wanted => None,
        Ok(found) => Some(
            Finding::new(format!("/proc/sys/{key} is {found}, not {wanted}"))
                .mended_by(move || Ok(sysctl::write(&key, wanted)?)),
        ),
        Err(error) if error.is_gone() => None,
        Err(error) => Some(podwire_cni_plugin::Error::from(error).into()),
    }
}

/// The node forwards packets of the families that the pod has.
pub fn forwarding<'p>(pods: &[IpAddr]) -> Vec<Finding<'p>> {
    let v4 = pods.iter().any(IpAddr::is_ipv4).then_some("net/ipv4/ip_forward");
    let v6 = pods.iter().any(IpAddr::is_ipv6).then_some("net/ipv6/conf/all/forwarding");
    v4.into_iter().chain(v6).filter_map(|key| sysctl(key.into(), "1")).collect()
}

/// Both ends of a pod's cable have the MTU that was asked for: as the result tells of the pod's, which a later
/// plugin may have changed, else as the config says; unless tuning has set one, of which results before 1.1.0 do not tell.
pub fn mtu<'p>(
    req: &Request<'p>,
    (inside, end): (&Link, Option<&Link>),
    configured: u32,
) -> Vec<Finding<'p>> {
    let told = req.prev.as_ref().and_then(|prev| super::recorded_interface(prev, &req.ifname));
    let told = told.map(|one| one.mtu).filter(|mtu| *mtu != 0);
    let wanted = told.unwrap_or(configured);
    let is_tuned = || told.is_none() && tuning_sets_mtu(req);
    let differs = |link: &Link, wanted: u32| wanted != 0 && link.mtu != wanted;
    let text =
        |link: &Link, wanted: u32| format!("interface {} has MTU {}, not {wanted}", link.name, link.mtu);
    let set = |link: &Link, wanted: u32| {
        link::change(link.index, format!("set MTU of {} to {wanted}", link.name)).u32(attribute::MTU, wanted)
    };
    let mut findings = Vec::new();
    if differs(inside, wanted) && !is_tuned() {
        findings.push(Finding::new(text(inside, wanted)).mended_by(change(req, set(inside, wanted))));
    }
    if let Some(end) = end.filter(|end| differs(end, configured)) {
        findings.push(Finding::new(text(end, configured)).mended_by(change_node(set(end, configured))));
    }
    findings
}

/// Whether tuning was asked for an MTU when the pod was attached.
fn tuning_sets_mtu(req: &Request<'_>) -> bool {
    let tuned = ledger::requests(&req.owner(), "tuning", req.registry);
    tuned.iter().any(|tuned| Settings::read(tuned).is_ok_and(|settings| settings.link.mtu.is_some()))
}

/// The node's end of the cable, if it is there. A cable that ends elsewhere, or is none, needs a new attachment.
pub fn other_end<'p>(node: &mut Host, inside: &Link) -> Result<Result<Link, Finding<'p>>> {
    if inside.kind != "veth" {
        let text = format!("interface {} is not a veth but a {}", inside.name, inside.kind);
        return Ok(Err(Finding::new(text)));
    }
    let end = podwire_kernel::veth::find_peer(node, inside)
        .doing(|| format!("look for the other end of {}", inside.name))?;
    let text = || format!("the other end of {} is not on this node", inside.name);
    Ok(end.ok_or_else(|| Finding::new(text())))
}

/// Whether the node's end was made by us: a Go plugin gives it another name, and makes less of it.
pub fn is_ours(req: &Request<'_>, end: &Link) -> bool {
    end.name == veth::host_name(&req.owner())
}

/// The node's end is up.
pub fn is_up<'p>(end: &Link, what: &str) -> Option<Finding<'p>> {
    let text = || format!("{what} {} is down", end.name);
    (!end.is_up()).then(|| Finding::new(text()).mended_by(change_node(link::up(end))))
}
