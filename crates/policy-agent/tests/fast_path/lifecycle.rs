//! Agents, pods and limits that come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwire_fast_path::FastPath;
use podwire_kernel::fast_path::FILTER;
use podwire_kernel::{shaping, Host};

use super::allow_all;
use crate::testbed::connections::{connection, datagrams, fast, ping_pong, until_fast, wait_until, WAIT};
use crate::testbed::{apply, on_node, run, stop_fast_path, Endpoint};

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
