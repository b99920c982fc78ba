//! Sample keys and values. Each value has a number in it.
//!
//! In a record the number is an unknown field, which stores must keep.

use serde_json::{json, Value};

use crate::store::Store;
use crate::Key;

/// Opens the store as a new client.
pub type Open<'a> = &'a (dyn Fn() -> Box<dyn Store + Send> + Sync);

/// Numbered keys of one kind, and values with a number.
pub(super) struct Sample {
    pub(super) key: fn(usize) -> String,
    /// The value for a key, with a number.
    pub(super) write: fn(usize, usize) -> Vec<u8>,
    read: fn(&[u8]) -> usize,
}

impl Sample {
    /// A value for the first key.
    pub(super) fn value(&self, number: usize) -> Vec<u8> {
        (self.write)(0, number)
    }

    /// The number in a value.
    pub(super) fn number(&self, value: &[u8]) -> usize {
        (self.read)(value)
    }
}

/// Arbitrary keys and values.
pub(super) const PLAIN: Sample = Sample {
    key: |key| format!("/{key}"),
    write: |_, number| number.to_string().into_bytes(),
    read: |value| String::from_utf8_lossy(value).parse().expect("a number"),
};

/// All kinds of Calico's records, and Podwire's own.
pub(super) const RECORDS: [Sample; 7] = [BLOCK, AFFINITY, HANDLE, CONFIG, POOL, RESERVATION, NODE_OWNER];

pub(super) const BLOCK: Sample = Sample {
    key: |key| format!("/calico/ipam/v2/assignment/ipv4/block/10.0.0.{key}-32"),
    write: |key, number| block(&format!("10.0.0.{key}/32"), 1, number),
    read: |value| number_at("/number", value),
};

pub(super) const AFFINITY: Sample = Sample {
    key: |key| format!("/calico/ipam/v2/host/node1/ipv4/block/10.0.0.{key}-32"),
    write: |_, number| bytes(&json!({"state": "pending", "deleted": false, "number": number})),
    read: |value| number_at("/number", value),
};

pub(super) const HANDLE: Sample = Sample {
    key: |key| format!("/calico/ipam/v2/handle/net.{key}"),
    write: |_, number| bytes(&json!({"block": {"10.0.0.0/26": 1}, "deleted": false, "number": number})),
    read: |value| number_at("/number", value),
};

const CONFIG: Sample = Sample {
    key: |_| Key::Config.to_string(),
    write: |_, number| bytes(&json!({"auto_allocate_blocks": true, "number": number})),
    read: |value| number_at("/number", value),
};

pub(super) const POOL: Sample = Sample {
    key: |key| Key::Pool(format!("pool-{key}")).to_string(),
    write: |key, number| {
        resource("IPPool", &format!("pool-{key}"), json!({"cidr": "10.0.0.0/16", "number": number}))
    },
    read: |value| number_at("/spec/number", value),
};

const RESERVATION: Sample = Sample {
    key: |key| Key::Reservation(format!("kept-{key}")).to_string(),
    write: |key, number| {
        resource(
            "IPReservation",
            &format!("kept-{key}"),
            json!({"reservedCIDRs": ["10.0.0.0/30"], "number": number}),
        )
    },
    read: |value| number_at("/spec/number", value),
};

const NODE_OWNER: Sample = Sample {
    key: |key| Key::NodeOwner(format!("node-{key}")).to_string(),
    write: |_, number| bytes(&json!({"id": "x", "number": number})),
    read: |value| number_at("/number", value),
};

/// A block with all addresses free.
pub(super) fn block(cidr: &str, size: usize, number: usize) -> Vec<u8> {
    bytes(&json!({
        "cidr": cidr, "affinity": "host:node1", "allocations": vec![Value::Null; size],
        "unallocated": (0..size).collect::<Vec<_>>(), "attributes": [], "sequenceNumber": 1,
        "sequenceNumberForAllocation": {}, "deleted": false, "number": number,
    }))
}

fn resource(kind: &str, name: &str, spec: Value) -> Vec<u8> {
    bytes(
        &json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec}),
    )
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn number_at(pointer: &str, value: &[u8]) -> usize {
    let record: Value = serde_json::from_slice(value).expect("JSON");
    let number = record.pointer(pointer).and_then(Value::as_u64).expect("a number");
    usize::try_from(number).expect("a small number")
}
