//! Which addresses pods get.

use std::collections::HashSet;
use std::sync::Mutex;

use super::*;

#[test]
fn a_pod_gets_an_address_of_each_set_with_gateway_routes_and_name_servers() {
    let node = Node::new(json!({
        "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64", "gateway": "fd00:1::ff"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}],
    }));
    let mut node = node;
    fs::write(node.home.join("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
    node.config["ipam"]["resolvConf"] = json!(node.home.join("resolv.conf"));
    let result = node.try_add("c1").unwrap().to_json(Version::V1_0_0).unwrap();
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.0.0",
            "ips": [
                {"address": "10.1.0.2/16", "gateway": "10.1.0.1"},
                {"address": "fd00:1::1/64", "gateway": "fd00:1::ff"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}],
            "dns": {"nameservers": ["192.0.2.53"]},
        })
    );
}

#[test]
fn files_are_those_of_the_reference_plugin() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    node.add("c1");
    for ip in ["10.1.0.2", "fd00::2"] {
        assert_eq!(node.read(ip), "c1\r\neth0");
        assert_eq!(mode(&node.folder().join(ip)), 0o600);
    }
    assert_eq!(
        (node.read("last_reserved_ip.0"), node.read("last_reserved_ip.1")),
        ("10.1.0.2".into(), "fd00::2".into())
    );
    assert_eq!((node.read("lock"), mode(&node.folder().join("lock"))), (String::new(), 0o600));
    assert_eq!(mode(&node.folder()), 0o755);
    assert_eq!(fs::read_dir(node.folder()).unwrap().count(), 5, "and no other files");
    assert_eq!(mode(&node.index_root()), 0o700);
}

#[test]
fn addresses_go_round_robin_and_the_last_one_is_remembered() {
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.11"}));
    assert_eq!([node.add("a"), node.add("b")].concat(), ["10.1.0.9/24", "10.1.0.10/24"]);
    node.del("a");
    assert_eq!(node.add("c"), ["10.1.0.11/24"], "not the one that was just given back");
    assert_eq!(node.add("d"), ["10.1.0.9/24"]);
    assert_eq!(node.read("last_reserved_ip.0"), "10.1.0.9", "shorter than the one before it");
    node.del("b");
    node.write("last_reserved_ip.0", "10.1.0.10");
    assert_eq!(node.add("e"), ["10.1.0.10/24"]);
    fs::write(node.folder().join("last_reserved_ip.0"), "nonsense").unwrap();
    node.del("e");
    assert_eq!(node.add("f"), ["10.1.0.10/24"]);
    assert_eq!(node.read("last_reserved_ip.0"), "10.1.0.10");
}

#[test]
fn a_full_range_is_followed_by_the_next_of_its_set() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"}]]}));
    assert_eq!([node.add("a"), node.add("b")].concat(), ["10.1.0.2/30", "10.2.0.2/30"]);
    let text = "failed to allocate for range 0: no IP addresses available in range set: \
                10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.2";
    assert_eq!(node.refused("c"), (11, text.into()));
}

#[test]
fn a_full_range_is_searched_to_its_end() {
    let node = Node::subnet("10.1.0.0/24");
    for i in 0..253 {
        node.add(&format!("c{i}"));
    }
    let text = "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.254";
    assert_eq!(node.refused("more"), (11, text.into()));
    assert_eq!(scans(|| node.del("c100")), 0);
    assert_eq!(node.add("more"), ["10.1.0.102/24"]);
    assert_eq!(node.taken().len(), 253);
}

#[test]
fn a_second_add_is_refused_and_leaves_the_first_alone() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    node.add("c1");
    let text = "failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed";
    assert_eq!(node.refused("c1"), (999, text.into()));
    assert_eq!(node.taken(), ["10.1.0.2", "fd00::2"]);
    fs::remove_file(node.folder().join("10.1.0.2")).unwrap();
    let text = "failed to allocate for range 1: fd00::2 has been allocated to c1, duplicate allocation is not allowed";
    assert_eq!(node.refused("c1"), (999, text.into()));
    assert_eq!(node.taken(), ["fd00::2"], "what this ADD took for the first set is given back");
    assert_eq!(scans(|| node.del("c1")), 0, "and the index knows");
    assert!(node.taken().is_empty());
}

#[test]
fn an_interface_has_its_own_addresses() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("c1");
    let request = node.request(Command::Add, "c1", "net1");
    super::super::add(&request, &node.env()).unwrap();
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.3"]);
    node.del("c1");
    assert_eq!((node.taken(), node.read("10.1.0.3")), (vec!["10.1.0.3".into()], "c1\r\nnet1".into()));
}

#[test]
fn a_requested_address_is_given_or_the_add_fails() {
    let mut node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    node.args = "IP=10.1.0.77".into();
    assert_eq!(node.add("a"), ["10.1.0.77/24", "fd00::2/64"]);
    assert_eq!(node.read("last_reserved_ip.0"), "10.1.0.77");
    let text =
        "failed to allocate for range 0: requested IP address 10.1.0.77 is not available in range set \
                10.1.0.1-10.1.0.254";
    assert_eq!(node.refused("b"), (999, text.into()));
    let error = node.try_add("b").unwrap_err().to_cni();
    assert!(error.hint.starts_with("it belongs to a (eth0) ("), "{}", error.hint);
    assert!(node.refused("a").1.contains("10.1.0.77 has been allocated to a, duplicate"));

    node.args = "IgnoreUnknown=1;IP=10.1.0.78/24;K8S_POD_NAME=x".into();
    node.config["runtimeConfig"] = json!({"ips": ["fd00::99/64"]});
    assert_eq!(node.add("c"), ["10.1.0.78/24", "fd00::99/64"]);

    node.args = String::new();
    node.config["runtimeConfig"] = json!({"ips": ["fd00::100", "fd00::100"]});
    node.config["args"] = json!({"cni": {"ips": ["10.1.0.80"]}});
    assert_eq!(node.add("d"), ["10.1.0.80/24", "fd00::100/64"]);
    assert_eq!(node.taken().len(), 6);
}

#[test]
fn requests_that_no_set_can_fulfil_are_refused_before_anything_is_taken() {
    let mut node = Node::subnet("10.1.0.0/24");
    let mut refused = |args: &str, ips: Value| {
        node.args = args.into();
        node.config["runtimeConfig"] = json!({ "ips": ips });
        let refused = node.refused("c");
        assert!(!node.folder().exists());
        refused
    };
    let gateway = "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway";
    assert_eq!(refused("IP=10.1.0.1", json!(null)), (7, gateway.into()));
    let all = "failed to allocate all requested IPs: 10.1.0.6 10.9.0.1";
    assert_eq!(refused("IP=10.1.0.5", json!(["10.1.0.6", "10.9.0.1"])), (7, all.into()));
    let pair =
        "ARGS: error parsing value of pair \"IP=10.1.0.7,10.1.0.8\": invalid IP address 10.1.0.7,10.1.0.8";
    assert_eq!(refused("IP=10.1.0.7,10.1.0.8", json!(null)), (4, pair.into()));
    assert_eq!(refused("MAC=x", json!(null)), (4, "ARGS: unknown args [\"MAC=x\"]".into()));
    assert_eq!(refused("", json!(["x"])), (7, "runtimeConfig.ips[0]: invalid IP address: \"x\"".into()));
}

#[test]
fn concurrent_adds_never_share_or_lose_an_address() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/120"}]]}));
    let live: Mutex<HashSet<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (node, live) = (&node, &live);
            scope.spawn(move || {
                for round in 0..6 {
                    let pod = format!("pod-{thread}-{round}");
                    let ips = node.add(&pod);
                    for ip in &ips {
                        assert!(live.lock().unwrap().insert(ip.clone()), "{ip} was given twice");
                    }
                    if round % 2 == 0 {
                        let mut live = live.lock().unwrap();
                        live.retain(|ip| !ips.contains(ip));
                        node.del(&pod);
                    }
                }
            });
        }
    });
    assert_eq!(node.taken().len(), 64 * 3 * 2);
    for thread in 0..64 {
        for round in 0..6 {
            node.del(&format!("pod-{thread}-{round}"));
        }
    }
    assert!(node.taken().is_empty());
    assert_eq!(node.owners(), 0);
}
