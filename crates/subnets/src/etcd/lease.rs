//! A node's key as it was read.

use std::net::Ipv4Addr;

use etcd_client::KeyValue;

use super::keys::Keys;
use super::value;
use crate::snapshot::SkippedNode;
use crate::{LeaseTerm, Node, PodCidrs};

/// A key under `subnets/`, and what it says.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) key: String,
    /// The revision of its last change.
    pub(super) changed: i64,
    /// The lease that keeps it alive; zero for a reservation.
    pub(super) lease: i64,
    /// The range, if the key names one: taken, whatever the value says.
    pub(super) pod_cidrs: Option<PodCidrs>,
    pub(super) node: Result<Node, SkippedNode>,
}

impl Record {
    pub(super) fn read(keys: &Keys, kv: &KeyValue) -> Record {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        let refused = |why: String| SkippedNode { name: key.clone(), reason: why };
        let (pod_cidrs, node) = match keys.parse(kv.key()) {
            None => (None, Err(refused("the key is no range".into()))),
            Some((pod_cidrs, name)) => {
                let lease_term = if kv.lease() == 0 { LeaseTerm::Permanent } else { LeaseTerm::Leased };
                let node = value::read(kv.value()).map_err(refused).map(|(underlay, backend)| Node {
                    name: name.into(),
                    pod_cidrs,
                    underlay,
                    backend,
                    lease_term,
                });
                (Some(pod_cidrs), node)
            }
        };
        Record { changed: kv.mod_revision(), lease: kv.lease(), pod_cidrs, node, key }
    }

    /// Whether the range is that of the node at this address.
    pub(super) fn is_of(&self, address: Ipv4Addr) -> bool {
        self.node.as_ref().is_ok_and(|node| node.underlay.v4 == Some(address))
    }
}
