//! The fast path together with policies: which packets take it, and that nothing passes it that the normal path would not
//! pass. Needs root and the same tools as `packets`. The other tests of this folder run with the fast path too.

mod testbed;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwire_fast_path::FastPath;
use podwire_kernel::fast_path::FILTER;
use podwire_kernel::firewall::forward;
use podwire_kernel::{shaping, Host, Owner};
use podwire_policy_agent::dataplane::Nftables;
use podwire_policy_agent::{Kind, OnClosed, PolicyAgent, PolicyAgentOptions, Update};
use serde_json::{json, Value};
use testbed::connections::{
    arriving, connection, datagrams, exchange, fast, fast_packets, packets, ping_pong, until_fast,
    wait_until, PORT, WAIT,
};
use testbed::{apply, network_policy, on_node, pod, run, snapshot, stop_fast_path, Endpoint};

/// Pairs of pods, one of each attachment.
fn pairs() -> [[Endpoint; 2]; 3] {
    [[10, 11].map(Endpoint::bridged), [12, 13].map(Endpoint::routed), [14, 15].map(Endpoint::calico)]
}

/// Pods need a policy: it makes the kernel track connections.
fn allow_all(endpoints: &[&Endpoint]) -> Vec<Value> {
    let names = endpoints.iter().enumerate();
    let mut objects: Vec<Value> =
        names.map(|(index, endpoint)| pod(&format!("p{index}"), json!({}), endpoint)).collect();
    objects.push(network_policy(
        "all",
        json!({ "podSelector": {}, "ingress": [{}], "egress": [{}],
        "policyTypes": ["Ingress", "Egress"] }),
    ));
    objects
}

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

#[test]
fn another_pod_cannot_send_packets_of_a_learned_flow() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let spoofers = [Endpoint::bridged(20), Endpoint::routed(21), Endpoint::calico(22)];
        let pairs = pairs();
        let all: Vec<&Endpoint> = pairs.iter().flatten().chain(&spoofers).collect();
        apply(nft, &allow_all(&all));
        for [a, b] in &pairs {
            let [one, two] = datagrams(a, b);
            let before = packets(&fast_path);
            (0..20).for_each(|_| exchange(&one, &two));
            assert!(packets(&fast_path) - before >= 36, "{}", a.ip4);
            for spoofer in &spoofers {
                spoofer.sh(&format!("ip addr add {}/32 dev eth0", a.ip4));
                let spoofed = spoofer.run_inside(|| {
                    let socket = UdpSocket::bind((a.ip4.as_str(), PORT)).unwrap();
                    socket.connect((b.ip4.as_str(), PORT)).unwrap();
                    socket
                });
                let before = packets(&fast_path);
                for _ in 0..10 {
                    let _ = spoofed.send(b"spoofed");
                }
                thread::sleep(Duration::from_millis(20));
                assert_eq!(packets(&fast_path), before, "from {} as {}", spoofer.ip4, a.ip4);
                spoofer.sh(&format!("ip addr del {}/32 dev eth0", a.ip4));
            }
        }
    });
}

/// A pod on a bridge may not send with another hardware address, whichever path its packets take.
#[test]
fn a_forged_hardware_address_does_not_pass() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let [a, b] = [10, 11].map(Endpoint::bridged);
        apply(nft, &allow_all(&[&a, &b]));
        let [one, two] = datagrams(&a, &b);
        let forged = "02:00:00:00:00:99";
        b.sh(&format!(
            "nft add table netdev t; \
             nft add chain netdev t i {{ type filter hook ingress device eth0 priority 0 \\; }}; \
             nft add rule netdev t i udp dport {PORT} ether saddr {forged} counter"
        ));
        // As the check of what pods send.
        run(&format!(
            "nft add table bridge g; nft add chain bridge g p {{ type filter hook prerouting priority -300 \\; }}; \
             nft add rule bridge g p ether saddr {forged} drop"
        ));
        let address = |pod: &Endpoint| {
            let link = pod.sh("ip -o link show dev eth0");
            link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
        };
        let (own, of_b) = (address(&a), address(&b));
        let use_address = |mac: &str| {
            a.sh(&format!(
                "ip link set eth0 address {mac}; ip neigh replace {} lladdr {of_b} dev eth0 nud permanent",
                b.ip4
            ));
        };
        // On a busy machine a second can pass before the forged datagrams are sent.
        wait_until("a forged datagram finds the flow still learned", || {
            use_address(&own);
            exchange(&one, &two);
            use_address(forged);
            let before = packets(&fast_path);
            (0..20).for_each(|_| drop(one.send(b"forged")));
            let found = packets(&fast_path) > before;
            arriving(&two, Duration::from_millis(20));
            found
        });
        assert!(b.sh("nft list table netdev t").contains("packets 0 bytes 0"));
    });
}

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

#[test]
fn closing_a_policy_ends_the_flow_at_once() {
    on_node(|_| {
        let Some(fast_path) = fast() else { return };
        for [a, b] in pairs() {
            let forget = fast_path.clone();
            let agent = PolicyAgent::start(PolicyAgentOptions {
                node_name: "node".into(),
                close_denied: true,
                closed: OnClosed::new(move || forget.forget_flows()),
                ..PolicyAgentOptions::default()
            })
            .unwrap();
            let open = allow_all(&[&a, &b]);
            let list = |objects: &[Value]| {
                Kind::ALL
                    .into_iter()
                    .for_each(|kind| agent.update(Update::Listed(kind, snapshot(objects))).unwrap());
            };
            list(&open);
            wait_until("the policies are enforced", || agent.status().enforced);
            let [one, two] = datagrams(&a, &b);
            let before = packets(&fast_path);
            (0..20).for_each(|_| exchange(&one, &two));
            assert!(packets(&fast_path) - before >= 36, "{}", a.ip4);
            let mut closed = open.clone();
            closed.pop();
            closed.push(network_policy("all", json!({ "podSelector": {}, "policyTypes": ["Ingress"] })));
            // The sender does not stop.
            thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_secs(2) {
                        let _ = one.send(b"late");
                        thread::sleep(Duration::from_micros(200));
                    }
                });
                list(&closed);
                wait_until("the connection is closed", || agent.status().closed_connections > 0);
                // What was on its way.
                arriving(&two, Duration::from_millis(5));
                assert_eq!(arriving(&two, Duration::from_millis(800)).len(), 0, "{}", a.ip4);
                sender.join().unwrap();
            });
        }
    });
}

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

/// The programs outlive the agent, another agent takes over, it is turned off and on: nothing of this loses a packet.
#[test]
fn agents_come_and_go_during_a_transfer() {
    on_node(|nft| {
        if fast().is_none() {
            return;
        }
        let [a, b] = [10, 11].map(Endpoint::bridged);
        apply(nft, &allow_all(&[&a, &b]));
        stop_fast_path();
        let mut ends = connection(&a, &b, &b.ip4);
        // Datagrams are not sent again: each must arrive, and in order.
        let [one, two] = datagrams(&a, &b);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                two.set_read_timeout(Some(WAIT)).unwrap();
                let (mut number, begin) = (0u32, Instant::now());
                while !over.load(Ordering::Relaxed) && begin.elapsed() < 4 * WAIT {
                    number += 1;
                    one.send(&number.to_ne_bytes()).unwrap();
                    let mut arrived = [0; 4];
                    two.recv(&mut arrived).expect("a datagram was lost");
                    assert_eq!(u32::from_ne_bytes(arrived), number);
                    two.send(b"!").unwrap();
                    one.recv(&mut [0; 9]).unwrap();
                }
            });
            for round in 0..6 {
                let next = FastPath::start(Duration::ZERO).unwrap();
                next.set_links(Vec::new());
                until_fast(&next, &mut ends);
                drop(next);
                if round % 2 == 1 {
                    let removed = podwire_fast_path::remove(&mut Host::here().unwrap()).unwrap();
                    assert_eq!(removed.len(), 3, "{removed:?}");
                    (0..100).for_each(|_| ping_pong(&mut ends));
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(!run("tc filter show dev veth10 ingress; tc filter show dev veth11 egress").contains("bpf"));
    });
}

/// After many pods, nothing of them is left.
#[test]
fn pods_that_come_and_go_leave_nothing() {
    on_node(|nft| {
        let Some(fast_path) = fast() else { return };
        let [stays, other] = [10, 12].map(Endpoint::routed);
        apply(nft, &allow_all(&[&stays, &other]));
        let mut stays_fast = connection(&stays, &other, &other.ip4);
        for round in 0..40 {
            let pod = Endpoint::routed(11);
            if round % 10 == 0 {
                let mut ends = connection(&stays, &pod, &pod.ip4);
                until_fast(&fast_path, &mut ends);
            }
            run("ip link del ptp11");
            drop(pod);
        }
        let elements = || run("nft list set inet podwire_fast_path fast_devices").matches('"').count() / 2;
        // The pods ptp10 and ptp12. The testbed's bridge has no port.
        wait_until("stale devices leave the set", || elements() == 2);
        // Ten thousand pods; `make test` attaches a part of them. So many at once that the agent loses events.
        for _ in 0..if podwire_tests::is_whole() { 34 } else { 1 } {
            let all = |command: &str| run(&format!("for n in $(seq 300); do {command} || exit 1; done"));
            all(&format!(
                "ip link add many$n type veth peer name many$n netns {} && tc qdisc add dev many$n clsact \
                 && ip link set many$n alias net/many$n/eth0 up",
                stays.process_id()
            ));
            wait_until("all have programs", || fast_path.status().fast.len() == 302);
            until_fast(&fast_path, &mut stays_fast);
            all("ip link del many$n");
            wait_until("stale devices leave the set", || elements() == 2);
        }
        assert_eq!(fast_path.status().fast, ["net/ptp10/eth0", "net/ptp12/eth0"]);
        assert_eq!(run("tc filter show dev ptp10 ingress").matches(FILTER).count(), 1);
    });
}

/// The plugin bandwidth may come at any moment while the agent attaches programs.
#[test]
fn limits_that_come_while_programs_are_attached_hold() {
    on_node(|_| {
        let Some(fast_path) = fast() else { return };
        let pod = Endpoint::routed(10);
        let mut host = Host::here().unwrap();
        let through = host.get_link("ptp10").unwrap();
        for round in 0..40 {
            run(&format!(
                "ip link add limited type veth peer name eth9 netns {} && tc qdisc add dev limited clsact \
                 && ip link set limited alias net/limited/eth0 up",
                pod.process_id()
            ));
            thread::sleep(Duration::from_micros(round * 100));
            let limited = host.get_link("limited").unwrap();
            shaping::redirect(&mut host, &limited, &through).unwrap();
            wait_until("the pod has no programs", || {
                let filters = run("tc filter show dev limited ingress");
                fast_path.status().normal.contains_key("net/limited/eth0") && !filters.contains(FILTER)
            });
            run("ip link del limited");
            wait_until("it is gone", || fast_path.status().normal.is_empty());
        }
    });
}

/// An agent that cannot reach its store does not know the uplinks for a long time.
#[test]
fn before_the_uplinks_are_known_the_thread_sleeps() {
    on_node(|_| {
        if fast().is_none() {
            return;
        }
        stop_fast_path();
        let fast_path = FastPath::start(Duration::ZERO).unwrap();
        run("ip link add one type veth peer name two");
        thread::sleep(Duration::from_millis(500));
        assert!(fast_path.status().reason.is_some_and(|reason| reason.contains("not known yet")));
        // The fields utime and stime, in hundredths of a second, of the thread of this node.
        let ticks = run(&format!(
            "for task in /proc/{}/task/*; do [ $(readlink $task/ns/net) != $(readlink /proc/self/ns/net) ] || cat $task/stat; done \
             | grep '(fast-path)' | awk '{{ sum += $14 + $15 }} END {{ print sum }}'",
            std::process::id()
        ));
        assert!(ticks.trim().parse::<u32>().unwrap() < 15, "{ticks}");
    });
}
