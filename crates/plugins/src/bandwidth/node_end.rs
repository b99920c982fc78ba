//! The node's end of the pod's veth pair, where the limits apply.

use podwire_cni_plugin::{Context, Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::rt::link;
use podwire_kernel::{Host, Link};

/// The node's end: each end of a veth pair has the other end's index. The previous plugin should have listed its name.
/// Checking the name rules out a device that has the same index in another namespace.
pub(super) fn get(req: &Request<'_>, node: &mut Host, result: &Attachment) -> Result<Link> {
    let pod_end = req.pod()?.get_link(&req.ifname).doing(|| "interface in the pod".into())?;
    let listed: Vec<_> = result.interfaces.iter().filter(|one| one.sandbox.is_empty()).collect();
    let end = find(node, &pod_end)?
        .filter(|end| listed.is_empty() || listed.iter().any(|one| one.name == end.name));
    end.ok_or_else(|| {
        let text = "no veth peer of container interface found in host ns";
        let hint = format!(
            "{} has none: bandwidth limits veth interfaces only, as bridge and ptp create them",
            req.ifname
        );
        podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into()
    })
}

/// The other end of the pair, if it is on the node.
pub(super) fn find(node: &mut Host, pod_end: &Link) -> Result<Option<Link>> {
    let Some(index) = pod_end.link.filter(|_| pod_end.kind == "veth") else { return Ok(None) };
    let end = link::find_index(&mut node.route, index)?;
    Ok(end.filter(|end| end.kind == "veth" && end.link == Some(pod_end.index)))
}
