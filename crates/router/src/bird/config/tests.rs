use ipam::blocks::{Allocator, Request, Rules};
use ipam::blocks::{Encapsulation, Owner};
use ipam::moment::Moment;
use ipam::store::{Change, Memory, Store};

use super::*;

fn place(ip: &str) -> crate::plan::Place {
    (fabric::Uplink { index: 2, name: "eth0".into(), mtu: 1500, address: ip.parse().unwrap() }, 24)
}

/// Three nodes, of which the first has a block of each pool.
fn sketch(pools: &[Pool], objects: &[(&str, &str, &str)]) -> Sketch {
    let store = Memory::new();
    let allocator = Allocator::new(&store, || Moment::from_unix_nanos(1));
    pools.iter().for_each(|pool| allocator.add_pool(pool).unwrap());
    let rules = Rules::load(&store).unwrap();
    for pool in pools {
        let mut request = Request::new(Owner::host("a"), pool.name());
        request.pools = vec![pool.name().into()];
        allocator.assign(&rules, &request).unwrap();
    }
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let address = format!("10.0.0.{}/24", number + 1).parse().unwrap();
        Node::change(&store, name, |node| node.set_address(address)).unwrap();
    }
    for (root, name, spec) in objects {
        let text = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
        let key = format!("{root}{name}");
        match store.get(&key).unwrap() {
            Some(there) => drop(store.update(&key, text.as_bytes(), there.revision).unwrap()),
            None => drop(store.create(&key, text.as_bytes()).unwrap()),
        }
    }
    let mut atlas = Atlas::default();
    let entries = Atlas::prefixes(true).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
    atlas.learn(entries.map(Change::Put).collect());
    Sketch { atlas, places: vec![place("10.0.0.1")] }
}

fn pool(name: &str, cidr: &str) -> Pool {
    Pool::new(name, cidr.parse().unwrap())
}

fn sessions(config: &Config) -> Vec<&str> {
    config.text.lines().filter_map(|line| line.strip_prefix("protocol bgp ")?.split(' ').next()).collect()
}

#[test]
fn without_a_word_all_nodes_speak_to_each_other_about_their_blocks() {
    let config = config("a", &sketch(&[pool("p", "10.1.0.0/26")], &[]));
    assert_eq!(config.problems, [] as [&str; 0]);
    assert_eq!(sessions(&config), ["mesh_10_0_0_2", "mesh_10_0_0_3"]);
    assert!(config.text.contains("route 10.1.0.0/26 blackhole;"), "{}", config.text);
    assert!(config.text.contains("neighbor 10.0.0.2 as 64512;"));
    assert!(config.text.contains("router id 10.0.0.1;"));
}

#[test]
fn pools_with_tunnels_are_not_bgps_and_secret_ones_are_told_to_nobody() {
    let config = config(
        "a",
        &sketch(&[pool("t", "10.1.0.0/26").with_encapsulation(Encapsulation::Vxlan, false)], &[]),
    );
    assert!(
        config.text.contains("filter to_kernel4 { if (net ~ [ 10.1.0.0/26+ ]) then reject;"),
        "{}",
        config.text
    );
}

#[test]
fn settings_and_peers_are_followed() {
    let [configurations, peers, filters] = key::BGP;
    let config = config(
        "a",
        &sketch(
            &[pool("p", "10.1.0.0/26")],
            &[
                (
                    configurations,
                    "default",
                    r#"{"nodeToNodeMeshEnabled":false,"asNumber":64600,"listenPort":1790}"#,
                ),
                (filters, "no", r#"{"exportV4":[{"action":"Reject"}]}"#),
                (filters, "odd", r#"{"exportV4":[{"action":"Reject","asPathPrefix":[1]}]}"#),
                (
                    peers,
                    "tor",
                    r#"{"peerIP":"10.0.0.254:1179","asNumber":"1.1","filters":["no"],"keepaliveTime":"5s","maxRestartTime":"10s"}"#,
                ),
                (peers, "elsewhere", r#"{"node":"b","peerIP":"10.0.0.253","asNumber":1}"#),
                (peers, "odd", r#"{"peerIP":"10.0.0.252","asNumber":1,"filters":["odd"]}"#),
                (peers, "secret", r#"{"peerIP":"10.0.0.251","asNumber":1,"password":{"secretKeyRef":{}}}"#),
            ],
        ),
    );
    assert_eq!(sessions(&config), ["peer_tor_10_0_0_254"]);
    let text = &config.text;
    for wanted in [
        "neighbor 10.0.0.254 port 1179 as 65537;",
        "local 10.0.0.1 port 1790 as 64600;",
        "filter_no_export_v4(); if",
        "if (proto = \"blocks4\") then accept; reject;",
        "keepalive time 5;",
        "graceful restart time 10;",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    assert_eq!(config.problems.len(), 3, "{:?}", config.problems);
}

#[test]
fn a_reflector_has_clients_and_is_not_in_the_mesh() {
    let nodes = key::NODES;
    let reflector = r#"{"bgp":{"ipv4Address":"10.0.0.3/24","routeReflectorClusterID":"1.0.0.1"}}"#;
    let peer = r#"{"nodeSelector":"all()","peerSelector":"rr == 'yes'"}"#;
    let mut sketch = sketch(&[pool("p", "10.1.0.0/26")], &[(key::BGP[1], "rr", peer)]);
    let text = format!(
        r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"c","labels":{{"rr":"yes"}}}},"spec":{reflector}}}"#
    );
    sketch.atlas.nodes.insert("c".into(), Node::parse(&format!("{nodes}c"), text.as_bytes()).unwrap());
    let plain = config("a", &sketch);
    assert_eq!(sessions(&plain), ["mesh_10_0_0_2", "node_rr_10_0_0_3"]);
    assert!(!plain.text.contains("rr client"));
    sketch.places = vec![place("10.0.0.3")];
    let reflecting = config("c", &sketch);
    assert_eq!(sessions(&reflecting), ["node_rr_10_0_0_1", "node_rr_10_0_0_2"]);
    assert!(reflecting.text.contains("rr client;\n  rr cluster id 1.0.0.1;"), "{}", reflecting.text);
}
