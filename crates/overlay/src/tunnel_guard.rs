//! What the guard of the tunnels lets through, from the desired devices and the peers.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::firewall::cluster::{MasqueradeScope, Rules};
use podwire_kernel::firewall::tunnel::TunnelGuard;
use podwire_kernel::tunnel::Driver;
use podwire_kernel::Link;

use crate::desired::{DesiredRoute, DesiredState, Egress};
use crate::route_lookup::RouteLookup;

/// The guard for these devices. A peer may send from all its networks, whatever tunnel this node would use for them: the
/// peer chooses its tunnel by the destination.
pub(crate) fn guard(
    desired: &DesiredState,
    peers: Vec<(IpAddr, IpNet)>,
    routes: &RouteLookup,
    rules: &Rules,
) -> TunnelGuard {
    let mut guard = TunnelGuard::default();
    for device in &desired.devices {
        match &device.tunnel.driver {
            Driver::Vxlan(vxlan) => {
                guard.vxlan_ports.insert(vxlan.port);
                guard.local.insert(vxlan.local);
            }
            Driver::Ipip(ipip) => {
                guard.has_ipip = true;
                guard.local.insert(IpAddr::V4(ipip.local));
            }
            Driver::Wireguard => {}
        }
    }
    for (address, network) in peers {
        // The node itself answers pods with its address.
        let networks = guard.peers.entry(address).or_insert_with(|| vec![IpNet::from(address)]);
        networks.push(network.trunc());
    }
    for peer in guard.peers.keys() {
        let is_same_family = |local: &&IpAddr| local.is_ipv4() == peer.is_ipv4();
        let locals = guard.local.iter().filter(is_same_family);
        guard.usual.extend(
            routes
                .link_to(*peer)
                .into_iter()
                .flat_map(|link| locals.clone().map(move |local| (link, *local, *peer))),
        );
    }
    guard.pod_networks = rules.cluster.clone();
    guard.allow_outside_sources = !masquerades_all_pods(rules);
    guard
}

/// The nodes behind the routes, each with the destination.
pub(crate) fn routed_networks(desired: &DesiredState) -> Vec<(IpAddr, IpNet)> {
    // By next hop: the node behind a VXLAN device.
    let mut nodes = HashMap::new();
    for device in &desired.devices {
        let behind: HashMap<_, _> = device.forwarding.iter().copied().collect();
        nodes.extend(device.neighbours.iter().filter_map(|(ip, mac)| Some((*ip, *behind.get(mac)?))));
    }
    let node = |route: &DesiredRoute| match route.egress {
        Egress::Tunnel(_) => route.via.map(|via| nodes.get(&via).copied().unwrap_or(via)),
        Egress::Link(_) => route.via,
    };
    desired.routes.iter().filter_map(|route| Some((node(route)?, route.to))).collect()
}

/// The names of the links by which packets leave with the addresses of pods: tunnels, links of direct routes, and the
/// uplinks unless all pods are masqueraded.
pub(crate) fn pod_links(
    desired: &DesiredState,
    links: &[Link],
    uplinks: impl Iterator<Item = String>,
    rules: &Rules,
) -> BTreeSet<String> {
    let direct = desired.routes.iter().filter_map(|route| match route.egress {
        Egress::Link(index) => links.iter().find(|link| link.index == index).map(|link| link.name.clone()),
        Egress::Tunnel(_) => None,
    });
    let tunnels = desired.devices.iter().map(|device| device.tunnel.name.clone());
    direct.chain(tunnels).chain(uplinks.filter(|_| !masquerades_all_pods(rules))).collect()
}

/// Whether all pods reach external addresses only with the address of their node. Then no reply from outside has to find
/// its way to a pod through another node.
fn masquerades_all_pods(rules: &Rules) -> bool {
    let is_masqueraded = |net: &IpNet| rules.local.iter().any(|pool| pool.contains(net));
    rules.masquerade
        && match rules.scope {
            MasqueradeScope::PodCidrs => true,
            MasqueradeScope::Pools { .. } => rules.cluster.iter().all(is_masqueraded),
        }
}
