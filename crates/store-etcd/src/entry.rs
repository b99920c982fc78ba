//! Keys and values as they were read, with a bound on their size.
//!
//! Another client of etcd can write 1.5 MB under any key that is listed or followed. Such a value is not kept.

use etcd_client::KeyValue;
use podwire_block_ipam::store::Entry;
use podwire_block_ipam::Key;

use crate::connection::revision;

/// The largest value, blocks apart. Kubernetes allows an object 256 KiB of annotations.
const MAX_VALUE: usize = 256 << 10;

/// What a block may have in addition for each of its addresses. One in use needs about 300 bytes.
const MAX_ADDRESS: usize = 1 << 10;

pub(crate) fn key(found: &KeyValue) -> String {
    String::from_utf8_lossy(found.key()).into_owned()
}

/// The entry. In place of a value that is too large it has a JSON string that says so. No record is a string, so each
/// reader reports the record as malformed, with this text. The key stays taken, and can be replaced or deleted.
pub(crate) fn entry(found: &KeyValue) -> Entry {
    let (key, size) = (key(found), found.value().len());
    let max = max_size(&key);
    let value = if size <= max {
        found.value().to_vec()
    } else {
        format!("\"its value has {size} bytes, more than {max}\"").into_bytes()
    };
    Entry { key, value, revision: revision(found.mod_revision()) }
}

fn max_size(key: &str) -> usize {
    match Key::parse(key) {
        Some(Key::Block(cidr)) => {
            let bits = cidr.max_prefix_len() - cidr.prefix_len();
            MAX_VALUE + (MAX_ADDRESS << bits)
        }
        _ => MAX_VALUE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_block_fits() {
        for (key, addresses) in [
            ("/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-26", 64),
            ("/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-20", 4096),
            ("/calico/ipam/v2/assignment/ipv6/block/fd00::-112", 65536),
        ] {
            assert!(max_size(key) >= addresses * 1024, "{key}");
        }
        assert_eq!(max_size("/calico/ipam/v2/handle/a"), MAX_VALUE);
    }
}
