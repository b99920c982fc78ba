//! The tables of `tests/policies`, by real packets: who reaches whom in the kernel is what the tables say, in every mode
//! that pods are attached in, over IPv4 and IPv6, by TCP, UDP and SCTP.

mod stage;
#[path = "../../../tests/policies/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::thread;

use podwire_policy::{compile, Snapshot};
use podwire_policy_agent::dataplane::{Nftables, NodeInput};
use serde_json::Value;
use stage::probe::{Probe, Question};
use stage::{on_a_node, run, Place};
use tables::{Connection, Tables, CLUSTER_NETWORK_POLICY, NETWORK_POLICY};

/// How pods are attached, and what is between those of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All on one bridge.
    Bridge,
    /// Each on a cable of its own.
    Cables,
    /// On cables, every other one on a second node that is met on the wire.
    DirectRoutes,
    /// The same through a tunnel.
    Overlay,
}

const MODES: [Mode; 4] = [Mode::Bridge, Mode::Cables, Mode::DirectRoutes, Mode::Overlay];

#[test]
fn network_policies_do_what_the_tables_say() {
    play_in_all_modes(NETWORK_POLICY, 45);
}

#[test]
fn cluster_network_policies_do_what_the_tables_say() {
    play_in_all_modes(CLUSTER_NETWORK_POLICY, 80);
}

/// At the same time: most of it is waiting for what does not come.
fn play_in_all_modes(file: &'static str, at_least: usize) {
    let plays =
        MODES.map(|mode| thread::spawn(move || on_a_node(move |nft| play(nft, mode, file, at_least))));
    // All of them end before one of them fails: what they made goes with them.
    let ends = plays.map(thread::JoinHandle::join);
    let failed: Vec<_> =
        MODES.iter().zip(ends).filter(|(_, end)| end.is_err()).map(|(mode, _)| mode).collect();
    assert!(failed.is_empty(), "{failed:?}: see above");
}

fn play(nft: &mut Nftables, mode: Mode, file: &str, at_least: usize) {
    let file = Tables::read(file);
    let mut base = tables::snapshot(&file.objects);
    let networks: Vec<_> = file.networks.iter().map(|net| net.parse().unwrap()).collect();
    base.assign_addresses(&networks);
    let other = [Mode::DirectRoutes, Mode::Overlay].contains(&mode).then(Place::node);
    let places = build(&mut base, mode, other.as_ref());
    let mut others = other.map(|node| (node.within(|| Nftables::open().expect("a netfilter socket")), node));
    let probe = Probe::new(&places);
    let mut played = 0;
    for table in &file.tables {
        let snapshot = with(&base, &table.objects);
        let expected = table.expected(&snapshot);
        if expected.is_empty() {
            continue;
        }
        // Each node enforces what is about its own pods.
        apply(nft, &snapshot, "one");
        if let Some((nft, _)) = &mut others {
            apply(nft, &snapshot, "two");
        }
        let title = format!("{mode:?}: {}", table.name);
        probe.ask(&title, &questions(&expected, &places));
        played += 1;
    }
    assert!(played >= at_least, "{played} tables");
}

fn apply(nft: &mut Nftables, snapshot: &Snapshot, node: &str) {
    nft.apply(&compile(snapshot, Some(node)).program, &NodeInput::default()).expect("applied");
}

/// Makes the pods, and says in the snapshot where they are.
fn build(base: &mut Snapshot, mode: Mode, other: Option<&Place>) -> BTreeMap<String, Place> {
    let place = |(number, pod): (usize, &mut podwire_policy::api::Pod)| {
        let ips: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
        let (host, ip4, ip6) = (format!("pod{number}"), ips[0].as_str(), ips[1].as_str());
        let there = other.filter(|_| number % 2 == 1);
        pod.spec.node_name = if there.is_some() { "two" } else { "one" }.into();
        let place = match (mode, there) {
            (Mode::Bridge, _) => Place::on_bridge(&host, (ip4, "10.244.0.1"), (ip6, "fd00:10:244::1")),
            (_, None) => Place::on_cable(&host, ip4, ip6),
            (_, Some(node)) => {
                let place = node.within(|| Place::on_cable(&host, ip4, ip6));
                let via =
                    if mode == Mode::Overlay { ["198.51.100", "fd00:8:"] } else { ["192.0.2", "fd00:9:"] };
                run(&format!("ip route add {ip4} via {}.2; ip -6 route add {ip6} via {}:2", via[0], via[1]));
                place
            }
        };
        if let (Some(node), None, Mode::Overlay) = (other, there, mode) {
            node.sh(&format!("ip route add {ip4} via 198.51.100.1; ip -6 route add {ip6} via fd00:8::1"));
        }
        place.is_reached();
        (pod.full_name(), place)
    };
    base.pods.iter_mut().enumerate().map(place).collect()
}

/// Each connection over IPv4 and over IPv6.
fn questions(expected: &BTreeMap<Connection, bool>, places: &BTreeMap<String, Place>) -> Vec<Question> {
    let both = |((from, to, protocol, port), allowed): (&Connection, &bool)| {
        let place = &places[to];
        [&place.ip4, &place.ip6].map(|ip| Question {
            from: from.clone(),
            ip: ip.clone(),
            protocol: *protocol,
            port: *port,
            allowed: *allowed,
        })
    };
    expected.iter().flat_map(both).collect()
}

/// A table's own objects in the place of those with their names; pods keep their places and addresses.
fn with(base: &Snapshot, own: &[Value]) -> Snapshot {
    let mut own = tables::snapshot(own);
    let mut all = base.clone();
    for pod in &mut own.pods {
        let name = pod.full_name();
        let there = base.pod(&name).expect("a pod that is there");
        pod.status = there.status.clone();
        pod.spec.node_name.clone_from(&there.spec.node_name);
        all.pods.retain(|other| other.full_name() != name);
    }
    for namespace in &own.namespaces {
        all.namespaces.retain(|other| other.metadata.name != namespace.metadata.name);
    }
    all.pods.append(&mut own.pods);
    all.namespaces.append(&mut own.namespaces);
    all.network_policies.append(&mut own.network_policies);
    all.cluster_network_policies.append(&mut own.cluster_network_policies);
    all
}
