//! An address that another pod had shortly before: neighbours that cached the old pod reach the new one at once.

use podwire_tests::{ours, Chain, Node, Pod, GO};
use serde_json::{json, Value};

/// The pod at `10.1.0.<host>`.
fn network(path: &str, host: u8, keys: Value) -> Chain {
    let ipam = json!({"type": "static", "addresses": [{"address": format!("10.1.0.{host}/24"), "gateway": "10.1.0.1"}]});
    let mut config = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam});
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    Chain::new(path, "pods", &[config])
}

/// Whether the first packet arrives: a sender with a stale neighbour entry sends it to the deleted pod.
fn pings_at_once(node: &Node, from: &Pod, host: &str) -> bool {
    node.pings(Some(from), host)
}

fn is_announced(node: &Node, pod: &Pod) -> bool {
    let knob = "cat /proc/sys/net/ipv4/conf/eth0/arp_notify";
    node.sh(&format!("ip netns exec {} {knob}", pod.name)).trim() == "1"
}

#[test]
fn a_pod_with_the_address_of_one_before_it_is_reached_at_once() {
    let foreign = json!({"args": {"cni": {"mac": "02:00:00:00:01:07"}}});
    let befores = [(ours(), json!({}), false), (ours(), foreign, true), (GO.into(), json!({}), true)];
    for (path, keys, announced) in befores {
        let node = Node::new();
        let (peer, former, pod) = (node.pod("peer"), node.pod("former"), node.pod("pod"));
        network(&ours(), 8, json!({})).add(&node, &peer);
        let chain = network(&path, 9, keys.clone());
        let result = chain.add(&node, &former);
        assert!(node.pings(Some(&peer), "10.1.0.9") && node.pings(None, "10.1.0.9"), "{path} {keys}");
        chain.del(&node, &former, Some(&result));
        // An idle kernel disables a bridge port without a carrier at once, and enables it again with a delay.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let result = network(&ours(), 9, json!({})).add(&node, &pod);
        assert!(pings_at_once(&node, &peer, "10.1.0.9"), "{path} {keys}");
        assert_eq!(result["interfaces"][2]["mac"], "0a:58:0a:01:00:09");
        assert_eq!(is_announced(&node, &pod), announced, "{path} {keys}");
    }
}

#[test]
fn a_pod_whose_hardware_address_is_changed_is_reached_at_once() {
    let node = Node::new();
    let (peer, former, pod) = (node.pod("peer"), node.pod("former"), node.pod("pod"));
    network(&ours(), 8, json!({})).add(&node, &peer);
    let chain = network(&ours(), 9, json!({}));
    let result = chain.add(&node, &former);
    assert!(node.pings(Some(&peer), "10.1.0.9"));
    chain.del(&node, &former, Some(&result));
    let tuning = json!({"type": "tuning", "mac": "02:00:00:00:01:07"});
    Chain::new(&ours(), "pods", &[chain.plugins[0].clone(), tuning]).add(&node, &pod);
    assert!(pings_at_once(&node, &peer, "10.1.0.9"));
    assert!(!is_announced(&node, &pod), "the sysctl is as it was");
}

#[test]
fn neighbours_get_an_announcement_of_new_addresses() {
    let node = Node::new();
    let pod = node.pod("pod");
    network(&ours(), 9, json!({"isGateway": false})).add(&node, &pod);
    assert!(is_announced(&node, &pod));
}

/// A bridge that Podwire did not create has the hardware address of one of its ports, or zeros without ports, which no
/// gateway can use. (Go's plugin fails.)
#[test]
fn a_bridge_that_has_lost_all_its_ports_is_a_gateway_again_and_stays_the_same() {
    let node = Node::new();
    node.sh("ip link add br0 type bridge && ip link set br0 up && ip link add x0 type veth peer name x1
        ip link set x0 master br0 && ip link delete x0");
    let address = || node.json("ip -j link show br0")[0]["address"].clone();
    assert_eq!(address(), "00:00:00:00:00:00");
    let chain = |host: u8| network(&ours(), host, json!({}));
    let (one, other) = (node.pod("one"), node.pod("other"));
    let result = chain(8).add(&node, &one);
    let mac = address();
    assert_ne!(mac, "00:00:00:00:00:00");
    assert!(node.pings(Some(&one), "10.1.0.1"));
    chain(8).check(&node, &one, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
    chain(9).add(&node, &other);
    chain(8).del(&node, &one, Some(&result));
    assert_eq!(address(), mac);
    assert!(node.pings(Some(&other), "10.1.0.1"));
}

/// The network's subnet has changed: the first new pod changes the gateway address, and the next ones find it.
#[test]
fn pods_that_are_attached_at_once_to_a_bridge_with_an_old_address_all_succeed() {
    let node = Node::new();
    node.sh("ip link add br0 type bridge; ip address add 10.9.0.1/16 dev br0; ip link set br0 up");
    let pods: Vec<(u8, Pod)> = (2..18).map(|host| (host, node.pod(&format!("pod{host}")))).collect();
    std::thread::scope(|scope| {
        for (host, pod) in &pods {
            let node = &node;
            scope.spawn(move || network(&ours(), *host, json!({"forceAddress": true})).add(node, pod));
        }
    });
    let addresses = node.sh("ip -4 -o address show br0");
    assert!(addresses.contains("10.1.0.1/24") && !addresses.contains("10.9.0.1"), "{addresses}");
}
