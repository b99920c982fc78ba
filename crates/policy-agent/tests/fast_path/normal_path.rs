//! Packets that others must see, and a full table of connections.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use podwire_kernel::firewall::forward;
use podwire_kernel::{Host, Owner};

use super::allow_all;
use crate::testbed;
use crate::testbed::connections::{connection, fast, fast_packets, ping_pong, until_fast, wait_until, PORT};
use crate::testbed::{apply, on_node, run, Endpoint};

/// Rewritten addresses, limits and administrators' rules need every packet.
#[test]
fn packets_that_others_must_see_take_the_normal_path() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let [a, b, c] = [10, 11, 12].map(Endpoint::routed);
        apply(nft, &allow_all(&[&a, &b, &c]));
        // Destination NAT.
        run("nft add table inet ports; nft add chain inet ports p { type nat hook prerouting priority -100 \\; }");
        run(&format!("nft add rule inet ports p ip daddr 192.0.2.77 tcp dport {PORT} dnat ip to {}", b.ip4));
        let listener = b.run_inside(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
        let client = a.run_inside(|| TcpStream::connect(("192.0.2.77", PORT)).unwrap());
        let mut ends = [client, listener.accept().unwrap().0];
        (0..50).for_each(|_| ping_pong(&mut ends));
        assert_eq!(fast_packets(&fast_path, &mut ends, 50), 0, "destination NAT");
        drop((listener, ends));
        // A limit that comes later.
        let mut ends = connection(&a, &c, &c.ip4);
        until_fast(&fast_path, &mut ends);
        run("tc qdisc add dev ptp12 root tbf rate 100mbit burst 32kb latency 25ms");
        wait_until("a limited pod has no programs", || {
            fast_path.status().normal.contains_key("net/ptp12/eth0")
        });
        // What a sends to c was learned before.
        wait_until("the flows to a limited pod end", || fast_packets(&fast_path, &mut ends, 20) == 0);
        run("tc qdisc del dev ptp12 root");
        wait_until("programs are back", || fast_path.status().fast.contains(&"net/ptp12/eth0".to_owned()));
        until_fast(&fast_path, &mut ends);
        // A table that is flushed: no packet is marked until the agent has repaired it.
        run("nft delete table inet podwire_fast_path");
        wait_until("the table is back", || run("nft list tables").contains("podwire_fast_path"));
        until_fast(&fast_path, &mut ends);
        // Programs that another program removes come back.
        run("tc filter del dev ptp10 ingress; tc filter del dev ptp10 egress");
        until_fast(&fast_path, &mut ends);
        // Filters of another program see every packet of their device.
        run("tc filter add dev ptp10 ingress pref 9 protocol ip u32 match u32 0 0 flowid :1");
        wait_until("a filter ends the fast path", || fast_packets(&fast_path, &mut ends, 20) == 0);
        assert!(fast_path.status().normal["net/ptp10/eth0"].starts_with("another program has filters"));
        run("tc filter del dev ptp10 ingress pref 9");
        until_fast(&fast_path, &mut ends);
        // The administrator's rules see every packet.
        let mut host = Host::here().unwrap();
        let admin_chain = "CNI-ADMIN".to_owned();
        let rules = forward::Rules { admin_chain, policy: forward::Policy::Open, bridge: None };
        let addresses = [a.ip4.parse().unwrap(), c.ip4.parse().unwrap()];
        forward::add(host.nft().unwrap(), &Owner::new("net", "a", "eth0"), &addresses, &rules).unwrap();
        run("nft add rule inet podwire_firewall CNI-ADMIN counter");
        wait_until("the administrator's rule ends the fast path", || {
            fast_packets(&fast_path, &mut ends, 20) == 0
        });
        assert!(fast_path.status().reason.is_some_and(|reason| reason.contains("administrator")));
        run("nft flush chain inet podwire_firewall CNI-ADMIN");
        until_fast(&fast_path, &mut ends);
        // Connections that conntrack forgets go on.
        run("conntrack -F 2>/dev/null");
        (0..50).for_each(|_| ping_pong(&mut ends));
        until_fast(&fast_path, &mut ends);
    });
}

/// The size of the table is one setting of the whole machine, so this runs in the emulated machine only.
#[test]
fn while_the_table_of_connections_is_full_old_ones_go_on() {
    const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
    if std::env::var_os("PODWIRE_CONNTRACK_IS_OURS").is_none() {
        println!("left out: the size of the conntrack table, which is the machine's");
        return;
    }
    let before = std::fs::read_to_string(MAX).unwrap();
    // Only the first namespace may change it, and this is no longer possible inside of another one.
    let mut max = OpenOptions::new().write(true).open(MAX).unwrap();
    on_node(move |nft| {
        let Some(fast_path) = fast() else { return };
        let [a, b] = [10, 11].map(Endpoint::routed);
        apply(nft, &allow_all(&[&a, &b]));
        let mut ends = connection(&a, &b, &b.ip4);
        until_fast(&fast_path, &mut ends);
        b.serve(&[PORT + 1]);
        assert_eq!(a.run_inside(|| testbed::connect_tcp(&b.ip4, PORT + 1)), testbed::Outcome::Reached);
        max.write_all(b"1").unwrap();
        assert_eq!(a.run_inside(|| testbed::connect_tcp_denied(&b.ip4, PORT + 1)), testbed::Outcome::Timeout);
        assert!(fast_packets(&fast_path, &mut ends, 50) >= 90);
        thread::sleep(Duration::from_secs(2));
        until_fast(&fast_path, &mut ends);
    });
    std::fs::write(MAX, before).unwrap();
}
