//! The veth pair between a pod and its node: create it, find it again from whatever still exists, delete it without
//! waiting for the kernel's cleanup, and collect the pairs of pods that no longer exist.

use std::collections::HashSet;

use podwire_cni_plugin::{Context, Error, Request, Result};
use podwire_cni_spec::{Interface, Version};
use podwire_kernel::rt::link;
use podwire_kernel::veth::{self, Pair, Veth};
use podwire_kernel::{detached, fast_path, Host, Link, Owner};
use podwire_netlink::Socket;

/// The MTUs that the kernel accepts (`ETH_MIN_MTU` and `ETH_MAX_MTU` of linux/if_ether.h). 0 selects the kernel's
/// default.
const MTUS: std::ops::RangeInclusive<u32> = 68..=65535;

/// Checks `mtu`. The kernel would only answer "invalid argument".
pub fn check_mtu(mtu: u32) -> Result<()> {
    if mtu == 0 || MTUS.contains(&mtu) {
        return Ok(());
    }
    Err(impossible_mtu(mtu.into()))
}

/// The error for an MTU that no interface can have.
pub fn impossible_mtu(mtu: i64) -> Error {
    let (least, most) = (MTUS.start(), MTUS.end());
    let text = format!("mtu: {mtu} is not possible, it must be {least} to {most}, or 0 for the default");
    podwire_cni_spec::Error::invalid_config(text).into()
}

/// The two namespaces that a pair connects.
pub struct Namespaces<'h> {
    /// The node.
    pub node: &'h mut Host,
    /// The pod.
    pub pod: &'h mut Host,
}

/// Creates the pair. `target` names what the pod is connected to, for the error text: the node, or a bridge.
pub fn create(veth: &Veth<'_>, req: &Request<'_>, hosts: Namespaces<'_>, target: &str) -> Result<Pair> {
    let pod = req.netns()?;
    // Without the fast path everything works, so its errors are none of an ADD.
    let created = if fast_path::is_on(hosts.node).unwrap_or(false) && !has_foreign_bandwidth(req) {
        veth.create_with_clsact(hosts.node, &pod)
    } else {
        veth.create(hosts.node, &pod)
    };
    created.or_else(|error| {
        if veth::name_taken(hosts.pod, &req.ifname, &error) {
            return Err(name_taken(&req.ifname));
        }
        Err(error).doing(|| format!("connect the pod to {target}"))
    })
}

/// Whether the chain can contain a `bandwidth` that is not of this build. Another project's fails on a device with the
/// qdisc for programs, because it adds one that excludes it; ours removes the qdisc.
fn has_foreign_bandwidth(req: &Request<'_>) -> bool {
    const BANDWIDTH: &str = "bandwidth";
    let found = req.path.iter().map(|folder| folder.join(BANDWIDTH)).find(|file| file.is_file());
    found.is_some_and(|file| req.registry.in_file(BANDWIDTH, &file).is_none())
}

/// Fails an ADD if the pod already has an interface of that name.
pub fn require_free_name(pod: &Host, ifname: &str) -> Result<()> {
    pod.peek_link(ifname).map_or(Ok(()), |_| Err(name_taken(ifname)))
}

fn name_taken(ifname: &str) -> Error {
    let text = format!("failed to make veth pair: container veth name provided ({ifname}) already exists");
    podwire_cni_spec::Error::internal(text)
        .with_details("the container is already attached under that name: run DEL first")
        .into()
}

/// The pair's interfaces for a result: the node's end, then the pod's end.
pub fn interfaces(req: &Request<'_>, mtu: u32, pair: &Pair) -> Vec<Interface> {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    // Results before 1.1.0 have no MTU.
    let mtu = if req.version >= Version::V1_1_0 { mtu } else { 0 };
    let interface =
        |name: &str, mac: String| Interface { name: name.into(), mac, mtu, ..Interface::default() };
    vec![
        interface(&pair.host, pair.host_mac.to_string()),
        Interface { sandbox, ..interface(&req.ifname, pair.pod_mac.to_string()) },
    ]
}

/// The pair of a request, by the end from which to delete it.
enum Found {
    PodEnd(Host, Link),
    NodeEnd(Link),
}

/// Deletes the pod's pair, if it exists. `hold` is a firewall socket that has just deleted something.
pub fn remove(req: &Request<'_>, node: &mut Host, hold: Option<&Socket>) -> Result<()> {
    match find(req, node)? {
        None => Ok(()),
        Some(Found::PodEnd(mut pod, link)) => Ok(detached::delete_link(&mut pod, &link, hold)?),
        Some(Found::NodeEnd(link)) => {
            let mut host = Host::here()?;
            Ok(detached::delete_link(&mut host, &link, hold)?)
        }
    }
}

/// Finds the pair. Podwire's pairs are found by the name of the node's end. A Go plugin gives that end a random name,
/// so its pairs are found by the pod's end, or by the recorded result.
fn find(req: &Request<'_>, node: &mut Host) -> Result<Option<Found>> {
    let own = node.find_link(&veth::host_name(&req.owner()))?.filter(|link| link.kind == "veth");
    let in_pod = match req.find_pod()? {
        None => None,
        Some(mut pod) => pod.find_link(&req.ifname)?.map(|link| (pod, link)),
    };
    // Deleting from the pod's end is preferred: a pod's namespace has few link notifications, the node's has many.
    match (own, in_pod) {
        (Some(own), Some((pod, link))) if link.link == Some(own.index) => Ok(Some(Found::PodEnd(pod, link))),
        (Some(own), _) => Ok(Some(Found::NodeEnd(own))),
        (None, _) if req.signed_only => Ok(None),
        (None, Some((pod, link))) if link.kind == "veth" && !belongs_to_another(req, node, &link)? => {
            Ok(Some(Found::PodEnd(pod, link)))
        }
        (None, _) => find_recorded(req, node),
    }
}

/// Whether the pod's interface belongs to another attachment. A runtime follows a failed ADD with DEL. If the ADD
/// failed because the pod had an interface of that name, this DEL must not touch that interface or what belongs to it.
/// Podwire writes the owner into the alias of the node's end of a veth pair, and into the alias of a device without a
/// peer.
pub fn belongs_to_another(req: &Request<'_>, node: &mut Host, in_pod: &Link) -> Result<bool> {
    let mut alias = in_pod.alias.clone();
    if let (true, Some(index)) = (alias.is_empty() && in_pod.kind == "veth", in_pod.link) {
        alias = link::find_index(&mut node.route, index)?.map(|end| end.alias).unwrap_or_default();
    }
    if alias.is_empty() {
        return Ok(req.signed_only);
    }
    Ok(!req.owner().matches(&alias))
}

/// The node's end that the recorded result names, if the pod's namespace is gone.
fn find_recorded(req: &Request<'_>, node: &mut Host) -> Result<Option<Found>> {
    if req.find_pod()?.is_some() {
        return Ok(None);
    }
    // A result lists the node's end before the pod's interface. What follows, such as a VLAN's gateway, must stay.
    for interface in
        req.prev.iter().flat_map(|prev| &prev.interfaces).take_while(|one| one.sandbox.is_empty())
    {
        let end = node.find_link(&interface.name)?;
        if let Some(end) =
            end.filter(|end| end.kind == "veth" && end.alias.is_empty() && end.mac_text() == interface.mac)
        {
            return Ok(Some(Found::NodeEnd(end)));
        }
    }
    Ok(None)
}

/// Deletes the network's veth pairs that belong to no valid attachment.
pub fn collect(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let kept: HashSet<String> = req.kept_owners()?.iter().map(veth::host_name).collect();
    let prefix = veth::network_prefix(&req.network);
    let mut errors = Vec::new();
    for end in link::list(&mut node.route)? {
        let is_ours = end.kind == "veth" && end.name.len() == 15 && end.name.starts_with(&prefix);
        // Two networks may hash to the same prefix: the owner in the alias decides.
        let is_other_network = !end.alias.is_empty() && !Owner::is_in(&end.alias, &req.network);
        if !is_ours || kept.contains(&end.name) || is_other_network {
            continue;
        }
        match node.route.request(link::delete(&end)) {
            Err(error) if !error.is_gone() => errors.push(error.into()),
            _ => {}
        }
    }
    Error::all(errors)
}
