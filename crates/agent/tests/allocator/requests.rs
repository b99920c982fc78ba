//! What a pod costs: requests to the store, and the agent's time when nothing happens.

use std::time::Duration;

use podwire_block_ipam::Pool;

use crate::cluster::{eventually, owner, settled, v4, Cluster, TIMEOUT};

/// A pod that comes and goes needs two writes for its ADD (its handle, and the block, where the warm pool gets another
/// address in the same write) and two for its DEL (the block, its handle). Nothing is read. Runtimes repeat DEL.
#[test]
fn a_pod_costs_few_requests_to_the_store() {
    const PODS: usize = 32;
    let pool = Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(26);
    let cluster = Cluster::new("requests", pool);
    let (agent, state) = (cluster.agent("node1"), cluster.state("node1"));
    eventually("the warm pool is filled", || agent.status().warm_pool == 4);
    let is_idle = || {
        let before = cluster.store.asked();
        std::thread::sleep(Duration::from_millis(30));
        settled(&agent, &state) && cluster.store.asked() == before
    };
    eventually("the sync is idle", is_idle);
    let before = cluster.store.asked();
    for number in 0..PODS {
        let owner = owner(&format!("c{number}"));
        agent.assign(&owner, &v4(), TIMEOUT).unwrap();
        eventually("the store has it", is_idle);
        for _ in 0..3 {
            agent.release(&owner, Some("shop.web")).unwrap();
            eventually("the store has released it", is_idle);
        }
    }
    let requests = cluster.store.asked() - before;
    assert!(requests <= 4 * PODS, "{requests} requests for {PODS} pods");
    assert!(cluster.held().is_empty());
    cluster.assert_sound();
}
