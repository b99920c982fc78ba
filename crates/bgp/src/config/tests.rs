use podwire_block_ipam::store::{Change, Memory, Store};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Encapsulation};
use podwire_block_ipam::{Allocator, Request, Rules};

use super::*;

/// Three nodes; the first has a block of each pool.
fn desired(pools: &[Pool], objects: &[(&str, &str, &str)]) -> Desired {
    let store = Memory::new();
    let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1));
    pools.iter().for_each(|pool| allocator.add_pool(pool).unwrap());
    let rules = Rules::load(&store).unwrap();
    for pool in pools {
        let mut request = Request::new(AffinityOwner::host("a"), pool.name());
        request.pools = vec![pool.name().into()];
        allocator.assign(&rules, &request).unwrap();
    }
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let address = format!("10.0.0.{}/24", number + 1).parse().unwrap();
        Node::update(&store, name, |node| node.set_address(address)).unwrap();
    }
    for (root, name, spec) in objects {
        let text = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
        let key = format!("{root}{name}");
        match store.get(&key).unwrap() {
            Some(there) => drop(store.update(&key, text.as_bytes(), there.revision).unwrap()),
            None => drop(store.create(&key, text.as_bytes()).unwrap()),
        }
    }
    let mut index = BlockIndex::default();
    let entries = BlockIndex::prefixes(true).into_iter().flat_map(|prefix| store.list(prefix).unwrap());
    index.apply(entries.map(Change::Put).collect());
    Desired { index, addresses: vec!["10.0.0.1".parse().unwrap()] }
}

/// The configuration of a node without passwords.
fn config(node: &str, desired: &Desired) -> Config {
    super::config(node, desired, &Passwords::new(None))
}

fn pool(name: &str, cidr: &str) -> Pool {
    Pool::new(name, cidr.parse().unwrap())
}

fn sessions(config: &Config) -> Vec<&str> {
    config.text.lines().filter_map(|line| line.strip_prefix("protocol bgp ")?.split(' ').next()).collect()
}

#[test]
fn by_default_all_nodes_have_sessions_and_announce_their_blocks() {
    let config = config("a", &desired(&[pool("p", "10.1.0.0/26")], &[]));
    assert_eq!(config.problems, [] as [&str; 0]);
    assert_eq!(sessions(&config), ["mesh_10_0_0_2", "mesh_10_0_0_3"]);
    assert!(config.text.contains("route 10.1.0.0/26 blackhole;"), "{}", config.text);
    assert!(config.text.contains("neighbor 10.0.0.2 as 64512;"));
    assert!(config.text.contains("router id 10.0.0.1;"));
}

#[test]
fn routes_to_pools_with_tunnels_do_not_go_to_the_kernel() {
    let config = config(
        "a",
        &desired(&[pool("t", "10.1.0.0/26").with_encapsulation(Encapsulation::Vxlan, false)], &[]),
    );
    assert!(
        config.text.contains("filter to_kernel4 { if (net ~ [ 10.1.0.0/26+ ]) then reject;"),
        "{}",
        config.text
    );
}

#[test]
fn settings_peers_and_filters_are_applied() {
    let [configurations, peers, filters] = key::BGP;
    let config = config(
        "a",
        &desired(
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
fn a_session_without_its_password_is_ignored() {
    let [configurations, peers, _] = key::BGP;
    let secret = |key: &str| format!(r#"{{"secretKeyRef":{{"name":"bgp","key":"{key}"}}}}"#);
    let peer =
        |ip: &str, key: &str| format!(r#"{{"peerIP":"{ip}","asNumber":1,"password":{}}}"#, secret(key));
    let (tor, bad, other) =
        (peer("10.0.0.254", "tor"), peer("10.0.0.253", "bad"), peer("10.0.0.252", "none"));
    let elsewhere = other.replace("{\"peerIP", "{\"node\":\"b\",\"peerIP");
    let mesh = format!(r#"{{"nodeMeshPassword":{}}}"#, secret("mesh"));
    let desired = desired(
        &[pool("p", "10.1.0.0/26")],
        &[
            (configurations, "default", &mesh),
            (peers, "bad", &bad),
            (peers, "elsewhere", &elsewhere),
            (peers, "other", &other),
            (peers, "tor", &tor),
        ],
    );
    let dir = std::env::temp_dir().join(format!("podwire-bird-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("bgp")).unwrap();
    std::fs::write(dir.join("bgp/tor"), "open sesame\n").unwrap();
    std::fs::write(dir.join("bgp/bad"), "x\"; } protocol static { ipv4; route 0.0.0.0/0 blackhole; } #")
        .unwrap();
    let passwords = Passwords::new(Some(dir.clone()));
    let without_mesh = super::config("a", &desired, &passwords);
    assert_eq!(sessions(&without_mesh), ["peer_tor_10_0_0_254"]);
    let wanted = "neighbor 10.0.0.254 as 1;\n  password \"open sesame\";";
    assert!(without_mesh.text.contains(wanted), "{}", without_mesh.text);
    assert!(!without_mesh.text.contains("0.0.0.0/0"), "a password must not add configuration");
    let problems = without_mesh.problems.join("\n");
    for part in ["BGPPeer bad", "key bad of secret bgp", "BGPPeer other", "key none", "the mesh", "key mesh"]
    {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    assert_eq!(without_mesh.problems.len(), 3, "the peer of another node needs no password here: {problems}");
    assert!(!problems.contains("protocol static") && !problems.contains("sesame"), "{problems}");

    std::fs::write(dir.join("bgp/mesh"), "together").unwrap();
    let with_mesh = super::config("a", &desired, &passwords);
    assert_eq!(sessions(&with_mesh), ["mesh_10_0_0_2", "mesh_10_0_0_3", "peer_tor_10_0_0_254"]);
    assert_eq!(with_mesh.text.matches("password \"together\";").count(), 2);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_reflector_has_clients_and_is_not_in_the_mesh() {
    let nodes = key::NODES;
    let reflector = r#"{"bgp":{"ipv4Address":"10.0.0.3/24","routeReflectorClusterID":"1.0.0.1"}}"#;
    let peer = r#"{"nodeSelector":"all()","peerSelector":"rr == 'yes'"}"#;
    let mut desired = desired(&[pool("p", "10.1.0.0/26")], &[(key::BGP[1], "rr", peer)]);
    let text = format!(
        r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"c","labels":{{"rr":"yes"}}}},"spec":{reflector}}}"#
    );
    desired.index.nodes.insert("c".into(), Node::parse(&format!("{nodes}c"), text.as_bytes()).unwrap());
    let plain = config("a", &desired);
    assert_eq!(sessions(&plain), ["mesh_10_0_0_2", "node_rr_10_0_0_3"]);
    assert!(!plain.text.contains("rr client"));
    desired.addresses = vec!["10.0.0.3".parse().unwrap()];
    let reflecting = config("c", &desired);
    assert_eq!(sessions(&reflecting), ["node_rr_10_0_0_1", "node_rr_10_0_0_2"]);
    assert!(reflecting.text.contains("rr client;\n  rr cluster id 1.0.0.1;"), "{}", reflecting.text);
}
