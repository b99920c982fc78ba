//! A node's key and value as they were read.

use std::net::Ipv4Addr;

use etcd_client::KeyValue;

use super::keys::Keys;
use super::value;
use crate::node::{LeaseTerm, Node, PodCidrs};
use crate::snapshot::SkippedNode;

/// The largest value that is read. flannel's have 200 bytes; the data of the backend `extension` is a command's output.
const MAX_VALUE: usize = 64 << 10;

/// The longest name of a key in a report.
const MAX_NAME: usize = 200;

/// A key under `subnets/` and its parsed value.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) key: String,
    /// The revision of its last change.
    pub(super) revision: i64,
    /// Its lease; 0 for a reservation.
    pub(super) lease: i64,
    /// The subnet, if the key is valid.
    pub(super) pod_cidrs: Option<PodCidrs>,
    pub(super) node: Result<Node, SkippedNode>,
}

impl Record {
    pub(super) fn parse(keys: &Keys, kv: &KeyValue) -> Record {
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        let skipped = |why: String| SkippedNode { name: shorten(&key), reason: why };
        let (pod_cidrs, node) = match keys.parse(kv.key()) {
            None => (None, Err(skipped("the key is not a subnet".into()))),
            Some((pod_cidrs, name)) => {
                let lease_term = if kv.lease() == 0 { LeaseTerm::Permanent } else { LeaseTerm::Leased };
                let value = check_size(kv.value()).and_then(|()| value::read(kv.value()));
                let node = value.map_err(skipped).map(|(underlay, backend)| Node {
                    name: name.into(),
                    pod_cidrs,
                    underlay,
                    backend,
                    lease_term,
                });
                (Some(pod_cidrs), node)
            }
        };
        Record { revision: kv.mod_revision(), lease: kv.lease(), pod_cidrs, node, key }
    }

    /// Whether it is the record of the node with this address.
    pub(super) fn is_of(&self, address: Ipv4Addr) -> bool {
        self.node.as_ref().is_ok_and(|node| node.underlay.v4 == Some(address))
    }
}

/// Whether a value is small enough to be read.
pub(super) fn check_size(value: &[u8]) -> Result<(), String> {
    match value.len() {
        0..=MAX_VALUE => Ok(()),
        size => Err(format!("its value has {size} bytes, more than {MAX_VALUE}")),
    }
}

/// A text of another program for a report.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
