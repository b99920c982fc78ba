//! An agent starts where kube-proxy was. Connections stay, and new ones work all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwire_services::{Kind, ServicesAgent, ServicesOptions, Update};

use crate::connection::{objects, serve, Connection, RULES};
use crate::proxy::{create_nftables_mode, create_others, restore, ruleset, texts};
use crate::testbed::Testbed;

pub fn start(testbed: &Testbed, cleanup_kube_proxy: bool) -> ServicesAgent {
    let options = ServicesOptions { node_name: "n".into(), cleanup_kube_proxy, ..ServicesOptions::default() };
    testbed.node.inside(|| ServicesAgent::start(options).unwrap())
}

pub fn list(agent: &ServicesAgent) {
    for kind in Kind::ALL {
        let of_kind = objects().into_iter().filter(|object| Kind::of(object) == Some(kind));
        agent.update(Update::Listed(kind, of_kind.collect())).unwrap();
    }
}

/// Waits for something that must happen.
#[track_caller]
pub fn wait(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what} does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_stay_while_the_agent_takes_over() {
    let testbed = Testbed::new(2);
    serve(&testbed);
    let before = testbed.node.inside(|| {
        create_others();
        let before = ruleset();
        restore("iptables-nft", RULES);
        create_nftables_mode();
        before
    });
    let mut connection = Connection::open(&testbed.pods[1]).unwrap();
    let stop = AtomicBool::new(false);
    let opened = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut opened = 0;
            while !stop.load(Ordering::Relaxed) {
                Connection::open(&testbed.pods[1]).unwrap();
                opened += 1;
            }
            opened
        });
        let agent = start(&testbed, true);
        // Nothing goes before the Services are in the kernel.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(testbed.node.inside(texts).len(), 4);
        list(&agent);
        wait("the removal", || agent.status().synced && testbed.node.inside(texts).is_empty());
        thread::sleep(Duration::from_millis(300));
        assert_eq!(agent.kube_proxy_problem(), None);
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    assert!(opened > 10, "{opened} connections");
    connection.echo().unwrap();
    testbed.node.run("nft delete table inet podwire_services");
    assert_eq!(testbed.node.inside(ruleset), before);
}

/// The way back: kube-proxy's rules are there again, then the agent's go.
#[test]
fn connections_stay_when_kube_proxy_takes_over() {
    let testbed = Testbed::new(2);
    serve(&testbed);
    let agent = start(&testbed, false);
    list(&agent);
    wait("the Services", || agent.status().synced);
    let mut connection = Connection::open(&testbed.pods[1]).unwrap();
    drop(agent);
    testbed.node.inside(|| restore("iptables-nft", RULES));
    Connection::open(&testbed.pods[1]).unwrap();
    assert!(testbed.node.inside(|| podwire_services::dataplane::remove().unwrap()));
    connection.echo().unwrap();
    Connection::open(&testbed.pods[1]).unwrap();
}

#[test]
fn leftovers_are_a_problem_until_they_are_gone() {
    let testbed = Testbed::new(2);
    testbed.node.inside(|| restore("iptables-nft", RULES));
    let agent = start(&testbed, false);
    list(&agent);
    let problem = || agent.kube_proxy_problem().unwrap_or_default();
    wait("the report", || {
        problem().contains("3 chains, KUBE-SEP-ECHO among them, of iptables-nft in table ip nat")
    });
    assert!(problem().contains("--cleanup-kube-proxy"), "{}", problem());
    // The kernel reports what changes.
    testbed.node.run("nft delete table ip nat");
    wait("the second report", || !problem().contains("table ip nat"));
    assert!(problem().contains("chain KUBE-FORWARD"), "{}", problem());
    testbed.node.run("nft delete table ip filter");
    wait("the end of the problem", || agent.kube_proxy_problem().is_none());
    testbed.node.run("nft add table ip6 kube-proxy");
    wait("a new problem", || problem().contains("table ip6 kube-proxy"));
}

#[test]
fn nothing_is_removed_beside_a_running_kube_proxy() {
    let testbed = Testbed::new(2);
    testbed.node.inside(|| {
        restore("iptables-nft", RULES);
        crate::running::serve("127.0.0.1:10249", "HTTP/1.1 200 OK\r\n\r\niptables");
    });
    let before = testbed.node.inside(texts);
    let agent = start(&testbed, true);
    list(&agent);
    wait("the report", || agent.kube_proxy_problem().is_some());
    let problem = agent.kube_proxy_problem().unwrap();
    assert!(problem.contains("kube-proxy runs") && problem.contains("127.0.0.1:10249"), "{problem}");
    assert_eq!(testbed.node.inside(texts), before);
}
