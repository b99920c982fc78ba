//! Large values of another program need no memory after their page was read. The only test of this process, because it
//! measures the process.

use std::time::Duration;

use podwire_block_ipam::store::Store;
use podwire_store_etcd::EtcdStore;
use podwire_test_servers::EtcdServer;

/// 168 MB together.
const VALUES: usize = 120;
const SIZE: usize = 1_400_000;
/// A page of 16 MiB, as bytes and decoded, and the allocator's reserves.
const MAX_GROWTH: usize = 80 << 20;

#[test]
fn large_values_are_not_kept_in_memory() {
    let server = EtcdServer::start();
    let store = EtcdStore::connect(&[server.url()], None).unwrap();
    let large = vec![b'x'; SIZE];
    for number in 0..VALUES {
        store.create(&format!("/calico/ipam/v2/handle/{number}"), &large).unwrap();
    }
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let listed = store.list("/calico/").unwrap();
    let mut follow = store.follow(&["/calico/"]).unwrap();
    let followed = follow.wait(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!((listed.len(), followed.len()), (VALUES, VALUES));
    let growth = peak() - before;
    assert!(growth < MAX_GROWTH, "{growth} bytes");
}

/// The largest resident size of this process since clear_refs was written (proc(5)).
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
