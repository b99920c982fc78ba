//! Who may have a road. Two nodes that claim the same range, the same address or the same hardware address cannot both be
//! right, and a guess would send pods' packets to the wrong one: the first by name keeps its road, so that all nodes decide
//! alike, and the other is reported until somebody repairs it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use podwire_ip::IpFamily;

use crate::{Cluster, LocalSubnet, Peer, PeerSubnet, UnreachablePeer};

/// The peers of one family, sorted by name, without those that contradict another.
pub(crate) fn accepted<'a>(
    cluster: &'a Cluster,
    own: &LocalSubnet,
    unreachable: &mut Vec<UnreachablePeer>,
) -> Vec<(&'a Peer, &'a PeerSubnet)> {
    let family = IpFamily::of_net(own.pod_cidr);
    let mut claims = Claims::default();
    claims.range(own, &cluster.local.name);
    let mut peers: Vec<(&Peer, &PeerSubnet)> =
        cluster.peers.iter().filter_map(|peer| Some((peer, peer.subnet(family)?))).collect();
    peers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    peers.retain(|(peer, side)| match claims.admit(&peer.name, side) {
        Ok(()) => true,
        Err(why) => {
            unreachable.push(UnreachablePeer::new(&peer.name, why));
            false
        }
    });
    peers
}

#[derive(Default)]
struct Claims<'a> {
    /// By the first address of a range: the last one, and whose it is.
    ranges: BTreeMap<IpAddr, (IpAddr, &'a str)>,
    addresses: HashMap<IpAddr, &'a str>,
}

impl<'a> Claims<'a> {
    fn range(&mut self, own: &LocalSubnet, name: &'a str) {
        self.ranges.insert(own.pod_cidr.network(), (own.pod_cidr.broadcast(), name));
        self.addresses.insert(own.uplink.address, name);
    }

    fn admit(&mut self, name: &'a str, side: &PeerSubnet) -> Result<(), String> {
        let PeerSubnet { pod_cidr, address, .. } = side;
        let (first, last) = (pod_cidr.network(), pod_cidr.broadcast());
        // Of all ranges that begin before this one ends, only the last can reach into it: none of them overlap.
        if let Some((_, (end, holder))) = self.ranges.range(..=last).next_back() {
            if *end >= first {
                return Err(format!("its range {pod_cidr} overlaps with that of {holder}"));
            }
        }
        if let Some(holder) = self.addresses.get(address) {
            return Err(format!("its address {address} is that of {holder}"));
        }
        self.ranges.insert(first, (last, name));
        self.addresses.insert(*address, name);
        Ok(())
    }
}
