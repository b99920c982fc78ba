//! Which devices get programs, and why others do not.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use podwire_kernel::fast_path::CLSACT;
use podwire_netlink::rt::link::Link;
use podwire_netlink::rt::tc::{Qdisc, ROOT};

/// Why a pod's device without the qdisc for programs gets none: adding it now would lose packets.
const UNPREPARED: &str = "it was attached before the fast path was on, or by another plugin";

/// The length of an Ethernet address.
const MAC_LENGTH: usize = 6;

/// What a device is to the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The host end of a pod's veth pair.
    Pod,
    /// A link by which packets leave with the addresses of pods: an uplink, or a VXLAN device.
    Uplink,
}

/// A device that gets programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub name: String,
    pub role: Role,
    /// For pods: `network/container/interface`.
    pub owner: String,
}

/// The desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// The devices with programs, by index.
    pub fast: BTreeMap<u32, Device>,
    /// The devices whose outgoing packets are marked: a packet that a bridge forwards has only the bridge's index.
    pub marked: BTreeSet<u32>,
    /// The owners of other pod interfaces, each with the reason.
    pub normal: BTreeMap<String, String>,
}

/// Decides for all links of the node. `pod_links`: the names of those by which packets leave with the addresses of pods.
pub(crate) fn choose(links: &[Link], qdiscs: &[Qdisc], pod_links: &[String]) -> Devices {
    let mut of_link: HashMap<u32, Vec<&Qdisc>> = HashMap::new();
    qdiscs.iter().for_each(|one| of_link.entry(one.link).or_default().push(one));
    let mut devices = Devices::default();
    for link in links {
        let own = of_link.get(&link.index).map_or(&[][..], Vec::as_slice);
        let is_uplink = pod_links.contains(&link.name);
        let device = |role, owner: &str| Device { name: link.name.clone(), role, owner: owner.to_owned() };
        if is_uplink && link.mac.len() == MAC_LENGTH && obstacle(Role::Uplink, own).is_none() {
            devices.fast.insert(link.index, device(Role::Uplink, ""));
        } else if !is_uplink && is_pod(link) {
            match obstacle(Role::Pod, own) {
                Some(reason) => drop(devices.normal.insert(link.alias.clone(), reason.to_owned())),
                None => drop(devices.fast.insert(link.index, device(Role::Pod, &link.alias))),
            }
        }
    }
    devices.marked = devices.fast.keys().copied().chain(bridges_of_pods(links)).collect();
    devices
}

/// The bridges with veth devices only. Another port could be a tunnel, which would copy the mark to the outer packets.
fn bridges_of_pods(links: &[Link]) -> impl Iterator<Item = u32> + '_ {
    links.iter().filter(|link| link.kind == "bridge").map(|bridge| bridge.index).filter(|bridge| {
        let mut ports = links.iter().filter(|link| link.master == Some(*bridge)).peekable();
        ports.peek().is_some() && ports.all(|port| port.kind == "veth")
    })
}

/// Whether the link is the host end of a pod's veth pair. The plugins write the owner into the alias.
pub(crate) fn is_pod(link: &Link) -> bool {
    link.kind == "veth" && link.link_netns.is_some() && link.alias.split('/').count() >= 3
}

/// Why the device cannot have programs. They run before the qdisc that limits what the pod sends, and skip the one
/// that limits what it receives.
fn obstacle(role: Role, qdiscs: &[&Qdisc]) -> Option<&'static str> {
    let refused = qdiscs.iter().find_map(|one| match (one.kind.as_str(), one.parent == ROOT) {
        (CLSACT, _) => None,
        ("ingress", _) => Some("another program filters or limits what the pod sends"),
        ("noqueue", true) => None,
        (_, true) if role == Role::Uplink => None,
        (_, true) => Some("its traffic is limited"),
        _ => None,
    });
    let is_prepared = role == Role::Uplink || qdiscs.iter().any(|one| one.kind == CLSACT);
    refused.or((!is_prepared).then_some(UNPREPARED))
}

#[cfg(test)]
mod tests {
    use podwire_netlink::rt::link::UP;

    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> Link {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Link { index, name, kind, flags: UP, mac: vec![2, 0, 0, 0, 0, index as u8], ..Link::default() }
    }

    fn pod(index: u32, master: Option<u32>) -> Link {
        let alias = format!("net/c{index}/eth0");
        Link { alias, master, link_netns: Some(0), ..link(index, &format!("veth{index}"), "veth") }
    }

    fn qdisc(link: u32, kind: &str, parent: u32) -> Qdisc {
        Qdisc { link, kind: kind.into(), parent, bucket: None }
    }

    #[test]
    fn pods_uplinks_and_bridges_of_pods_are_chosen() {
        let links = [
            link(1, "lo", ""),
            // A node in a container has a veth as uplink.
            Link { link_netns: Some(1), ..link(2, "eth0", "veth") },
            link(3, "cni0", "bridge"),
            pod(4, Some(3)),
            pod(5, None),
            // Another program's container.
            Link { link_netns: Some(2), ..link(6, "veth6", "veth") },
            link(7, "br1", "bridge"),
            Link { master: Some(7), ..link(8, "vxlan9", "vxlan") },
            Link { master: Some(7), ..pod(9, None) },
        ];
        let uplinks = ["eth0".to_owned(), "wg0".to_owned()];
        let prepared = [4, 5, 9].map(|index| qdisc(index, CLSACT, 0xffff_fff1));
        let devices = choose(&links, &prepared, &uplinks);
        let roles: Vec<_> = devices.fast.iter().map(|(index, device)| (*index, device.role)).collect();
        assert_eq!(roles, [(2, Role::Uplink), (4, Role::Pod), (5, Role::Pod), (9, Role::Pod)]);
        assert_eq!(devices.marked.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5, 9]);
        assert_eq!(devices.normal, BTreeMap::new());
    }

    #[test]
    fn a_device_with_a_limit_or_without_room_for_programs_stays_on_the_normal_path() {
        let links = [pod(4, None), pod(5, None), pod(6, None), pod(7, None)];
        let qdiscs = [
            qdisc(4, "tbf", ROOT),
            qdisc(5, "ingress", 0xffff_fff1),
            qdisc(6, CLSACT, 0xffff_fff1),
            qdisc(6, "noqueue", ROOT),
            qdisc(4, CLSACT, 0xffff_fff1),
        ];
        let devices = choose(&links, &qdiscs, &[]);
        assert_eq!(devices.fast.keys().copied().collect::<Vec<_>>(), [6]);
        let normal: Vec<_> = devices.normal.keys().map(String::as_str).collect();
        assert_eq!(normal, ["net/c4/eth0", "net/c5/eth0", "net/c7/eth0"]);
    }
}
