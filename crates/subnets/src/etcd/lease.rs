//! A node's key as it was read.

use std::net::Ipv4Addr;

use etcd_client::KeyValue;

use super::keys::Keys;
use super::value;
use crate::generation::Refusal;
use crate::{Node, Ranges, Tenure};

/// A key under `subnets/`, and what it says.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) key: String,
    /// The revision of its last change.
    pub(super) changed: i64,
    /// The lease that keeps it alive; zero for a reservation.
    pub(super) lease: i64,
    /// The range, if the key names one: taken, whatever the value says.
    pub(super) ranges: Option<Ranges>,
    pub(super) node: Result<Node, Refusal>,
}

impl Record {
    pub(super) fn read(keys: &Keys, kv: &KeyValue) -> Record {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        let refused = |why: String| Refusal { name: key.clone(), why };
        let (ranges, node) = match keys.parse(kv.key()) {
            None => (None, Err(refused("the key is no range".into()))),
            Some((ranges, name)) => {
                let tenure = if kv.lease() == 0 { Tenure::Lasting } else { Tenure::Leased };
                let node = value::read(kv.value()).map_err(refused).map(|(underlay, backend)| Node {
                    name: name.into(),
                    ranges,
                    underlay,
                    backend,
                    tenure,
                });
                (Some(ranges), node)
            }
        };
        Record { changed: kv.mod_revision(), lease: kv.lease(), ranges, node, key }
    }

    /// Whether the range is that of the node at this address.
    pub(super) fn is_of(&self, address: Ipv4Addr) -> bool {
        self.node.as_ref().is_ok_and(|node| node.underlay.v4 == Some(address))
    }
}
