//! Connections while endpoints change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwire_services::dataplane::Nftables;
use podwire_services::Changes;
use serde_json::json;

use crate::cluster::{state, web, Cluster};
use crate::testbed::Outcome;

#[test]
fn no_connection_fails_while_endpoints_come_and_go() {
    let cluster = Cluster::new(4);
    let states = [&["1", "2", "3"][..], &["2"], &["3", "2"], &["1", "2", "3", "r"], &["r", "2"]]
        .map(|endpoints| state(web(json!({ "type": "NodePort" })), endpoints));
    let stop = AtomicBool::new(false);
    let changes = thread::scope(|scope| {
        let change = || {
            cluster.testbed.node.inside(|| {
                let mut nft = Nftables::open().unwrap();
                let mut changes = 0;
                while !stop.load(Ordering::Relaxed) {
                    states
                        .iter()
                        .for_each(|state| changes += nft.apply(state, &Changes::All).unwrap().elements);
                }
                changes
            })
        };
        cluster.testbed.node.inside(|| Nftables::open().unwrap().apply(&states[0], &Changes::All).unwrap());
        let changing = scope.spawn(change);
        let (begin, mut failures) = (Instant::now(), Vec::new());
        while begin.elapsed() < Duration::from_secs(5) {
            for (client, target) in
                [("4", "tcp 10.96.0.1:80"), ("o", "tcp [fd00:9::1]:30080"), ("n", "udp 10.96.0.1:80")]
            {
                let outcome = cluster.client(client).ask(target);
                if !matches!(outcome, Outcome::Reached { .. }) {
                    failures.push(format!("{client} {target}: {outcome:?}"));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(failures.is_empty(), "{failures:?}");
        changing.join().unwrap()
    });
    assert!(changes > 1000, "{changes} changed elements");
}
