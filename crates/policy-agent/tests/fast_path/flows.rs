//! Which connections take the fast path, and that a transfer over it arrives whole.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use super::{allow_all, pairs};
use crate::testbed::connections::{connection, fast, fast_packets, until_fast, WAIT};
use crate::testbed::{apply, on_node, run, Endpoint};

#[test]
fn established_connections_take_the_fast_path() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let pairs = pairs();
        apply(nft, &allow_all(&pairs.iter().flatten().collect::<Vec<_>>()));
        let mut mixed: Vec<[&Endpoint; 2]> = pairs.iter().map(|[a, b]| [a, b]).collect();
        mixed.extend([
            [&pairs[0][0], &pairs[1][0]],
            [&pairs[1][0], &pairs[2][0]],
            [&pairs[2][0], &pairs[0][1]],
        ]);
        for [a, b] in mixed {
            for address in [&b.ip4, &b.ip6] {
                let mut ends = connection(a, b, address);
                until_fast(&fast_path, &mut ends);
                // Data and acknowledgements of a second; one packet each way takes the normal path.
                assert!(fast_packets(&fast_path, &mut ends, 100) >= 190, "{} to {address}", a.ip4);
            }
        }
    });
}

/// Megabytes go through the fast path with segmentation offload; the ends of the connection do not.
#[test]
fn a_long_transfer_arrives_whole_and_its_end_is_tracked() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let pairs = pairs();
        apply(nft, &allow_all(&pairs.iter().flatten().collect::<Vec<_>>()));
        for [a, b] in &pairs {
            for (address, reset) in [(&b.ip4, false), (&b.ip6, false), (&b.ip4, true)] {
                let mut ends = connection(a, b, address);
                until_fast(&fast_path, &mut ends);
                let [mut client, mut server] = ends;
                let before = fast_path.status().to_pods.bytes;
                let sent: Vec<u8> = (0..40_000_000u32).map(|at| (at / 7) as u8).collect();
                let mut received = Vec::new();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        client.write_all(&sent).unwrap();
                        client.shutdown(Shutdown::Write).unwrap();
                    });
                    server.read_to_end(&mut received).unwrap();
                });
                assert!(received == sent, "{address}");
                assert!(fast_path.status().to_pods.bytes - before > 30_000_000, "{address}");
                if reset {
                    // Closing with unread data sends RST.
                    client.write_all(b"").unwrap();
                    server.write_all(b"unread").unwrap();
                    thread::sleep(Duration::from_millis(50));
                }
                let port = client.local_addr().unwrap().port();
                drop(client);
                drop(server);
                let begin = Instant::now();
                let ended = || {
                    let entries = run(&format!("conntrack -L -p tcp --sport {port} -f $(echo {address} | grep -q : && echo ipv6 || echo ipv4) 2>/dev/null || true"));
                    !entries.contains("ESTABLISHED")
                };
                while !ended() {
                    assert!(
                        begin.elapsed() < WAIT,
                        "conntrack did not see the end, {address}, reset {reset}"
                    );
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    });
}
