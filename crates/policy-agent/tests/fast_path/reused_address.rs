//! A deleted pod whose address another pod has next, here or on another node.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use podwire_fast_path::FastPath;
use podwire_policy_agent::dataplane::Nftables;

use super::allow_all;
use crate::testbed::connections::{datagrams, fast, packets, PORT, WAIT};
use crate::testbed::{apply, on_node, run, Endpoint};

/// A flow from one pod to another on the fast path; then the receiver is deleted.
fn flow_to_deleted_pod(nft: &mut Nftables, fast_path: &FastPath) -> (Endpoint, UdpSocket) {
    let [sender, deleted] = [10, 11].map(Endpoint::routed);
    apply(nft, &allow_all(&[&sender, &deleted]));
    let [flow, _end] = datagrams(&sender, &deleted);
    let before = packets(fast_path);
    for _ in 0..10 {
        flow.send(b"?").unwrap();
    }
    assert!(packets(fast_path) - before >= 9);
    run("ip link del ptp11");
    (sender, flow)
}

/// Without the program's help: the learned flow leads to a device that is gone.
fn assert_arrives_at_once(flow: &UdpSocket, receiver: &Endpoint) {
    let arrived = receiver.run_inside(|| UdpSocket::bind(("10.2.0.11", PORT)).unwrap());
    let begin = Instant::now();
    arrived.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut sent = 0;
    loop {
        let _ = flow.send(b"new");
        sent += 1;
        if arrived.recv(&mut [0; 9]).is_ok() {
            break;
        }
        assert!(begin.elapsed() < WAIT, "{sent} datagrams were lost");
    }
    assert!(sent <= 2, "{sent} datagrams");
}

#[test]
fn the_next_pod_with_an_address_gets_its_packets_at_once() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let (_sender, flow) = flow_to_deleted_pod(nft, &fast_path);
        assert_arrives_at_once(&flow, &Endpoint::routed(11));
    });
}

#[test]
fn a_pod_that_moved_to_another_node_gets_its_packets_there_at_once() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let other_node = Endpoint::external();
        let (_sender, flow) = flow_to_deleted_pod(nft, &fast_path);
        other_node.sh("ip addr add 10.2.0.11/32 dev eth0");
        run("ip route add 10.2.0.11 via 192.0.2.2");
        assert_arrives_at_once(&flow, &other_node);
    });
}
