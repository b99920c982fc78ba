//! Counters of dropped packets, by pod and by reason. The kernel counts; [`DropCounters`] reads.

use std::collections::BTreeMap;

use podwire_netlink::{nft, Socket};
use podwire_policy::Direction;

use super::nftables::drop_chains::{counter_sets, CountedBy};
use super::nftables::reasons::SPOOFED_SOURCE;
use crate::Result;

/// Packets dropped since the table was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// By direction and reason, for every reason, zero counts included.
    pub reasons: BTreeMap<(Direction, String), u64>,
    /// By direction and pod (`namespace/name`), for pods with at least one dropped packet.
    pub pods: BTreeMap<(Direction, String), u64>,
}

/// Reads the kernel's counters.
#[derive(Debug)]
pub struct DropCounters {
    socket: Socket,
}

impl DropCounters {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<DropCounters> {
        Ok(DropCounters { socket: Socket::netfilter()? })
    }

    /// Reads all counters.
    pub fn read(&mut self) -> Result<DropCounts> {
        let mut counts = DropCounts::default();
        for (table, set, by) in counter_sets() {
            for (element, count) in nft::list_counts(&mut self.socket, &table, &set)? {
                counts.add(&by, element.comment.unwrap_or_default(), count.packets);
            }
        }
        Ok(counts)
    }
}

impl DropCounts {
    fn add(&mut self, by: &CountedBy, name: String, packets: u64) {
        match by {
            CountedBy::Reason(direction) => *self.reasons.entry((*direction, name)).or_default() += packets,
            CountedBy::Pod(direction) => self.add_to_pod(*direction, name, packets),
            CountedBy::SpoofingPod => {
                *self.reasons.entry((Direction::Egress, SPOOFED_SOURCE.into())).or_default() += packets;
                self.add_to_pod(Direction::Egress, name, packets);
            }
        }
    }

    fn add_to_pod(&mut self, direction: Direction, pod: String, packets: u64) {
        if packets > 0 {
            *self.pods.entry((direction, pod)).or_default() += packets;
        }
    }
}
