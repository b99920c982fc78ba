//! The tables of `tests/policies`, checked with real packets: in every attachment mode of pods, over IPv4 and IPv6,
//! with TCP, UDP and SCTP.

#[path = "../../../tests/policies/tables.rs"]
mod tables;
mod testbed;

use std::collections::BTreeMap;
use std::thread;

use podwire_policy::{compile, Snapshot};
use podwire_policy_agent::dataplane::{Nftables, NodeInput};
use serde_json::Value;
use tables::{Connection, Tables, CLUSTER_NETWORK_POLICY, NETWORK_POLICY};
use testbed::probe::{Check, Probe};
use testbed::{on_node, run, Endpoint};

/// How pods are attached, and how two nodes are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All pods on one bridge.
    Bridge,
    /// All pods routed.
    Routed,
    /// Routed pods on two nodes, with direct routes on one L2 segment.
    DirectRoutes,
    /// The same with a tunnel.
    Overlay,
}

const MODES: [Mode; 4] = [Mode::Bridge, Mode::Routed, Mode::DirectRoutes, Mode::Overlay];

#[test]
fn network_policies_match_the_tables() {
    check_in_all_modes(NETWORK_POLICY, 45);
}

#[test]
fn cluster_network_policies_match_the_tables() {
    check_in_all_modes(CLUSTER_NETWORK_POLICY, 80);
}

/// In parallel: most of the time is spent in timeouts.
fn check_in_all_modes(file: &'static str, at_least: usize) {
    let threads =
        MODES.map(|mode| thread::spawn(move || on_node(move |nft| check(nft, mode, file, at_least))));
    // Join all threads before a failure, so that all of them clean up.
    let ends = threads.map(thread::JoinHandle::join);
    let failed: Vec<_> =
        MODES.iter().zip(ends).filter(|(_, end)| end.is_err()).map(|(mode, _)| mode).collect();
    assert!(failed.is_empty(), "{failed:?}: see above");
}

fn check(nft: &mut Nftables, mode: Mode, file: &str, at_least: usize) {
    let file = Tables::read(file);
    let mut base = tables::snapshot(&file.objects);
    let networks: Vec<_> = file.networks.iter().map(|net| net.parse().unwrap()).collect();
    base.assign_addresses(&networks);
    let other = [Mode::DirectRoutes, Mode::Overlay].contains(&mode).then(Endpoint::node);
    let endpoints = build(&mut base, mode, other.as_ref());
    let mut others =
        other.map(|node| (node.run_inside(|| Nftables::open().expect("a netfilter socket")), node));
    let probe = Probe::new(&endpoints);
    let mut checked = 0;
    for table in &file.tables {
        let snapshot = with(&base, &table.objects);
        let expected = table.expected(&snapshot);
        if expected.is_empty() {
            continue;
        }
        // Each node enforces the policies of its own pods.
        apply(nft, &snapshot, "one");
        if let Some((nft, _)) = &mut others {
            apply(nft, &snapshot, "two");
        }
        let title = format!("{mode:?}: {}", table.name);
        probe.run(&title, &checks(&expected, &endpoints));
        checked += 1;
    }
    assert!(checked >= at_least, "{checked} tables");
}

fn apply(nft: &mut Nftables, snapshot: &Snapshot, node: &str) {
    nft.apply(&compile(snapshot, Some(node)).program, &NodeInput::default()).expect("applied");
}

/// Creates the pods, and sets their nodes in the snapshot.
fn build(base: &mut Snapshot, mode: Mode, other: Option<&Endpoint>) -> BTreeMap<String, Endpoint> {
    let endpoint = |(number, pod): (usize, &mut podwire_policy::api::Pod)| {
        let ips: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
        let (host, ip4, ip6) = (format!("pod{number}"), ips[0].as_str(), ips[1].as_str());
        let there = other.filter(|_| number % 2 == 1);
        pod.spec.node_name = if there.is_some() { "two" } else { "one" }.into();
        let endpoint = match (mode, there) {
            (Mode::Bridge, _) => Endpoint::on_bridge(&host, [ip4, ip6], ["10.244.0.1", "fd00:10:244::1"]),
            (_, None) => Endpoint::on_veth(&host, ip4, ip6),
            (_, Some(node)) => {
                let endpoint = node.run_inside(|| Endpoint::on_veth(&host, ip4, ip6));
                let via =
                    if mode == Mode::Overlay { ["198.51.100", "fd00:8:"] } else { ["192.0.2", "fd00:9:"] };
                run(&format!("ip route add {ip4} via {}.2; ip -6 route add {ip6} via {}:2", via[0], via[1]));
                endpoint
            }
        };
        if let (Some(node), None, Mode::Overlay) = (other, there, mode) {
            node.sh(&format!("ip route add {ip4} via 198.51.100.1; ip -6 route add {ip6} via fd00:8::1"));
        }
        endpoint.wait_until_reachable();
        (pod.full_name(), endpoint)
    };
    base.pods.iter_mut().enumerate().map(endpoint).collect()
}

/// Each connection over IPv4 and IPv6.
fn checks(expected: &BTreeMap<Connection, bool>, endpoints: &BTreeMap<String, Endpoint>) -> Vec<Check> {
    let both = |((from, to, protocol, port), allowed): (&Connection, &bool)| {
        let endpoint = &endpoints[to];
        [&endpoint.ip4, &endpoint.ip6].map(|ip| Check {
            from: from.clone(),
            ip: ip.clone(),
            protocol: *protocol,
            port: *port,
            allowed: *allowed,
        })
    };
    expected.iter().flat_map(both).collect()
}

/// The base objects, with the table's objects replacing those of the same name. Pods keep their nodes and addresses.
fn with(base: &Snapshot, own: &[Value]) -> Snapshot {
    let mut own = tables::snapshot(own);
    let mut all = base.clone();
    for pod in &mut own.pods {
        let name = pod.full_name();
        let there = base.pod(&name).expect("a pod of the base");
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
