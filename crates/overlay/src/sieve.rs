//! Who may have a road. Two nodes that claim the same range, the same address or the same hardware address cannot both be
//! right, and a guess would send pods' packets to the wrong one: the first by name keeps its road, so that all nodes decide
//! alike, and the other is reported until somebody repairs it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::{Cluster, OwnSide, Peer, PeerSide, Refusal};

/// The peers of one family, sorted by name, without those that contradict another.
pub(crate) fn accepted<'a>(
    cluster: &'a Cluster,
    own: &OwnSide,
    refused: &mut Vec<Refusal>,
) -> Vec<(&'a Peer, &'a PeerSide)> {
    let v4 = own.pods.addr().is_ipv4();
    let mut claims = Claims::default();
    claims.range(own, &cluster.own.name);
    let mut peers: Vec<(&Peer, &PeerSide)> =
        cluster.peers.iter().filter_map(|peer| Some((peer, peer.side(v4)?))).collect();
    peers.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    peers.retain(|(peer, side)| match claims.admit(&peer.name, side) {
        Ok(()) => true,
        Err(why) => {
            refused.push(Refusal::new(&peer.name, why));
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
    fn range(&mut self, own: &OwnSide, name: &'a str) {
        self.ranges.insert(own.pods.network(), (own.pods.broadcast(), name));
        self.addresses.insert(own.uplink.address, name);
    }

    fn admit(&mut self, name: &'a str, side: &PeerSide) -> Result<(), String> {
        let PeerSide { pods, address, .. } = side;
        let (first, last) = (pods.network(), pods.broadcast());
        // Of all ranges that begin before this one ends, only the last can reach into it: none of them overlap.
        if let Some((_, (end, holder))) = self.ranges.range(..=last).next_back() {
            if *end >= first {
                return Err(format!("its range {pods} overlaps with that of {holder}"));
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
