//! The block allocator on a real etcd, when nothing happens: its threads sleep. (The only test of this program: it
//! counts the wake-ups of the whole process.)

use std::time::{Duration, Instant};

use podwire_agent::calico::allocator::{self, BlockAllocator, Settings};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Ownership, Pool};
use podwire_store_etcd::EtcdStore;
use podwire_test_servers::EtcdServer;

/// How often the threads of this process went to sleep.
fn wake_ups() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_task = |task: std::fs::DirEntry| -> u64 {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse().unwrap())
    };
    tasks.map(of_task).sum()
}

#[test]
fn an_idle_allocator_sleeps() {
    let server = EtcdServer::start();
    let url = server.url();
    let open = move || EtcdStore::connect(std::slice::from_ref(&url), None);
    let pool = Pool::new("pods", "10.244.0.0/24".parse().unwrap());
    Allocator::new(&open().unwrap(), Timestamp::now).add_pool(&pool).unwrap();
    let dir = std::env::temp_dir().join(format!("podwire-idle-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let settings = Settings { node: "node1".into(), warm_addresses: 16, claim: Ownership::DURATION };
    let opener = move || open().map(|store| Box::new(store) as Box<dyn Store>);
    let agent = BlockAllocator::start(settings, &dir, Box::new(opener)).unwrap();
    allocator::serve(&dir.join("addresses.sock"), agent.clone()).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while agent.status().warm_pool < 16 {
        assert!(Instant::now() < end, "the warm pool is not filled");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The store sync looks for pending releases once more, two seconds after the start.
    std::thread::sleep(Duration::from_secs(4));
    let before = wake_ups();
    std::thread::sleep(Duration::from_secs(10));
    let count = wake_ups() - before;
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(count <= 50, "{count} wake-ups in 10 s");
}
