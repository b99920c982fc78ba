//! The veth cable between a pod and its node, from its beginning to its end: making it, finding it again whatever was lost
//! meanwhile, deleting it without waiting, sweeping up those of pods that are gone.

use std::collections::HashSet;

use podwire_cni_plugin::{Context, Error, Request, Result};
use podwire_cni_spec::{Interface, Version};
use podwire_kernel::rt::link;
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, Host, Link, Owner};
use podwire_netlink::Socket;

/// What a cable can be set to (`ETH_MIN_MTU` and `ETH_MAX_MTU` of linux/if_ether.h); 0 leaves it to the kernel.
const MTUS: std::ops::RangeInclusive<u32> = 68..=65535;

/// Checks `mtu`. The kernel would only say that something is invalid.
pub fn check_mtu(mtu: u32) -> Result<()> {
    if mtu == 0 || MTUS.contains(&mtu) {
        return Ok(());
    }
    let text = format!(
        "mtu: {mtu} is not possible, it must be {} to {}, or 0 for the default",
        MTUS.start(),
        MTUS.end()
    );
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

/// Makes the cable that connects the pod to something: to the node, or to a bridge of it.
pub fn create(
    cable: &Veth<'_>,
    req: &Request<'_>,
    (node, pod): (&mut Host, &mut Host),
    to: &str,
) -> Result<Pair> {
    let made = cable.create(node, &req.netns()?);
    made.or_else(|error| match veth::name_taken(pod, &req.ifname, &error) {
        true => Err(name_taken(&req.ifname)),
        false => Err(error).doing(|| format!("connect the pod to {to}")),
    })
}

/// Refuses an ADD whose interface is there.
pub fn refuse_taken(pod: &Host, ifname: &str) -> Result<()> {
    pod.peek_link(ifname).map_or(Ok(()), |_| Err(name_taken(ifname)))
}

/// What an ADD says when the pod has an interface of that name.
fn name_taken(ifname: &str) -> Error {
    let text = format!("failed to make veth pair: container veth name provided ({ifname}) already exists");
    podwire_cni_spec::Error::internal(text)
        .with_details("the container is attached under that name: DEL it first")
        .into()
}

/// As a result tells them: the node's end, the pod's end.
pub fn interfaces(req: &Request<'_>, mtu: u32, pair: &Pair) -> Vec<Interface> {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    // Older versions of the spec know no MTU in a result.
    let mtu = if req.version >= Version::V1_1_0 { mtu } else { 0 };
    let interface =
        |name: &str, mac: String| Interface { name: name.into(), mac, mtu, ..Interface::default() };
    vec![
        interface(&pair.host, pair.host_mac.to_string()),
        Interface { sandbox, ..interface(&req.ifname, pair.pod_mac.to_string()) },
    ]
}

/// The cable of a request, and from which end it is to be deleted.
enum Found {
    FromPod(Host, Link),
    FromNode(Link),
}

/// Deletes the pod's cable, if it is there. `hold` is a firewall socket that has just deleted something.
pub fn remove(req: &Request<'_>, node: &mut Host, hold: Option<&Socket>) -> Result<()> {
    match find(req, node)? {
        None => Ok(()),
        Some(Found::FromPod(mut pod, link)) => Ok(detached::delete_link(&mut pod, &link, hold)?),
        Some(Found::FromNode(link)) => {
            let mut place = Host::here()?;
            Ok(detached::delete_link(&mut place, &link, hold)?)
        }
    }
}

/// Our own cables are known by the name of their end on the node. One that a Go plugin made has a random name
/// there, and is known by its end in the pod, or by the recorded result.
fn find(req: &Request<'_>, node: &mut Host) -> Result<Option<Found>> {
    let own = node.find_link(&veth::host_name(&req.owner()))?.filter(|link| link.kind == "veth");
    let in_pod = match req.find_pod()? {
        None => None,
        Some(mut pod) => pod.find_link(&req.ifname)?.map(|link| (pod, link)),
    };
    // Few others live in a pod: its notices are quiet, the node's are not. So begin there where possible.
    match (own, in_pod) {
        (Some(own), Some((pod, link))) if link.link == Some(own.index) => Ok(Some(Found::FromPod(pod, link))),
        (Some(own), _) => Ok(Some(Found::FromNode(own))),
        (None, _) if req.signed_only => Ok(None),
        (None, Some((pod, link))) if link.kind == "veth" && !is_anothers(req, node, &link)? => {
            Ok(Some(Found::FromPod(pod, link)))
        }
        (None, _) => recorded(req, node),
    }
}

/// Whether the pod's interface is another attachment's: an ADD that failed since the pod had an interface of that name
/// is followed by a DEL, which must not take that interface, nor what belongs to it. Ours note the owner on the node's end
/// of a cable; on a device that lives in the pod alone, or was lent to it, the alias is on the device.
pub fn is_anothers(req: &Request<'_>, node: &mut Host, in_pod: &Link) -> Result<bool> {
    let mut signature = in_pod.alias.clone();
    if let (true, Some(index)) = (signature.is_empty() && in_pod.kind == "veth", in_pod.link) {
        signature = link::find_index(&mut node.route, index)?.map(|end| end.alias).unwrap_or_default();
    }
    Ok(match signature.is_empty() {
        true => req.signed_only,
        false => !req.owner().matches(&signature),
    })
}

/// The end on the node that the recorded result names, if the pod's end cannot be reached any more.
fn recorded(req: &Request<'_>, node: &mut Host) -> Result<Option<Found>> {
    if req.find_pod()?.is_some() {
        return Ok(None);
    }
    // The pod's cable stands before its interface in the pod; what stands behind, a VLAN's gateway, stays.
    for interface in
        req.prev.iter().flat_map(|prev| &prev.interfaces).take_while(|one| one.sandbox.is_empty())
    {
        let end = node.find_link(&interface.name)?;
        if let Some(end) =
            end.filter(|end| end.kind == "veth" && end.alias.is_empty() && end.mac_text() == interface.mac)
        {
            return Ok(Some(Found::FromNode(end)));
        }
    }
    Ok(None)
}

/// Deletes the network's cables that belong to no valid attachment.
pub fn collect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let kept: HashSet<String> = req.kept_owners()?.iter().map(veth::host_name).collect();
    let prefix = veth::network_prefix(&req.network);
    let mut errors = Vec::new();
    for cable in link::list(&mut node.route)? {
        let ours = cable.kind == "veth" && cable.name.len() == 15 && cable.name.starts_with(&prefix);
        // The owner noted on a cable saves it from a network whose name has the same letters.
        if !ours
            || kept.contains(&cable.name)
            || !(cable.alias.is_empty() || Owner::is_in(&cable.alias, &req.network))
        {
            continue;
        }
        match node.route.request(link::delete(&cable)) {
            Err(error) if !error.is_gone() => errors.push(error.into()),
            _ => {}
        }
    }
    Error::all(errors)
}
