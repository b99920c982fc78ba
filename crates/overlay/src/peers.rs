//! Conflicts between nodes. Two nodes that claim the same pod CIDR or the same address cannot both be right, and a
//! guess would send packets to the wrong one. The first node by name keeps its route, so that all nodes decide alike;
//! the other one is reported as unreachable until the conflict is resolved.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use podwire_ip::IpFamily;

use crate::cluster::{Cluster, LocalSubnet, Peer, PeerSubnet};
use crate::report::UnreachablePeer;

/// The peers of one family, sorted by name, without those that conflict with another node.
pub(crate) fn without_conflicts<'a>(
    cluster: &'a Cluster,
    local: &LocalSubnet,
    unreachable: &mut Vec<UnreachablePeer>,
) -> Vec<(&'a Peer, &'a PeerSubnet)> {
    let family = IpFamily::of_net(local.pod_cidr);
    let mut claims = Claims::default();
    claims.insert(local, &cluster.local.name);
    let mut peers: Vec<(&Peer, &PeerSubnet)> =
        cluster.peers.iter().filter_map(|peer| Some((peer, peer.subnet(family)?))).collect();
    peers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    peers.retain(|(peer, subnet)| match claims.try_insert(&peer.name, subnet) {
        Ok(()) => true,
        Err(reason) => {
            unreachable.push(UnreachablePeer::new(&peer.name, reason));
            false
        }
    });
    peers
}

/// The pod CIDRs and addresses that nodes have claimed so far. No two pod CIDRs overlap.
#[derive(Default)]
struct Claims<'a> {
    /// By the first address of a pod CIDR: its last address and its node.
    pod_cidrs: BTreeMap<IpAddr, (IpAddr, &'a str)>,
    addresses: HashMap<IpAddr, &'a str>,
}

impl<'a> Claims<'a> {
    fn insert(&mut self, local: &LocalSubnet, name: &'a str) {
        self.pod_cidrs.insert(local.pod_cidr.network(), (local.pod_cidr.broadcast(), name));
        self.addresses.insert(local.uplink.address, name);
    }

    fn try_insert(&mut self, name: &'a str, subnet: &PeerSubnet) -> Result<(), String> {
        let PeerSubnet { pod_cidr, address, .. } = subnet;
        let (first, last) = (pod_cidr.network(), pod_cidr.broadcast());
        // Of all pod CIDRs that begin before this one ends, only the last can overlap it.
        if let Some((_, (end, holder))) = self.pod_cidrs.range(..=last).next_back() {
            if *end >= first {
                return Err(format!("its pod CIDR {pod_cidr} overlaps that of {holder}"));
            }
        }
        if let Some(holder) = self.addresses.get(address) {
            return Err(format!("its address {address} is also the address of {holder}"));
        }
        self.pod_cidrs.insert(first, (last, name));
        self.addresses.insert(*address, name);
        Ok(())
    }
}
