//! How many packets were dropped, of whom and because of what: the kernel counts, and is asked.

use std::collections::BTreeMap;

use podwire_netlink::{nft, Socket};
use podwire_policy::Direction;

use super::nftables::{counters, CountedBy, NOT_ITS_OWN};
use crate::dataplane::Result;

/// Dropped packets since the table was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// By direction and reason, for every reason that there is.
    pub reasons: BTreeMap<(Direction, String), u64>,
    /// By direction and pod (`namespace/name`), for the pods of which any was dropped.
    pub pods: BTreeMap<(Direction, String), u64>,
}

/// Asks the kernel for its counts.
#[derive(Debug)]
pub struct Counters {
    socket: Socket,
}

impl Counters {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<Counters> {
        Ok(Counters { socket: Socket::netfilter()? })
    }

    /// How many there are by now.
    pub fn read(&mut self) -> Result<DropCounts> {
        let mut drops = DropCounts::default();
        for (table, set, by) in counters() {
            for (element, count) in nft::list_counts(&mut self.socket, &table, &set)? {
                drops.add(&by, element.comment.unwrap_or_default(), count.packets);
            }
        }
        Ok(drops)
    }
}

impl DropCounts {
    fn add(&mut self, by: &CountedBy, name: String, packets: u64) {
        match by {
            CountedBy::Reason(direction) => *self.reasons.entry((*direction, name)).or_default() += packets,
            CountedBy::Pod(direction) => self.add_of_pod(*direction, name, packets),
            CountedBy::Spoofer => {
                *self.reasons.entry((Direction::Egress, NOT_ITS_OWN.into())).or_default() += packets;
                self.add_of_pod(Direction::Egress, name, packets);
            }
        }
    }

    fn add_of_pod(&mut self, direction: Direction, pod: String, packets: u64) {
        if packets > 0 {
            *self.pods.entry((direction, pod)).or_default() += packets;
        }
    }
}
