//! Parsing of configs.

use super::*;

fn refusal(ipam: Value) -> (u32, String) {
    Node::new(ipam).refused("c")
}

#[test]
fn ranges_come_from_the_runtime_then_the_section_then_the_list() {
    let mut node = Node::new(json!({
        "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "gateway": "10.1.0.254",
        "ranges": [[{"subnet": "10.2.0.0/24"}]],
    }));
    node.config["runtimeConfig"] = json!({"ipRanges": [[{"Subnet": "10.3.0.0/24"}]]});
    let ips = node.try_add("c").unwrap().ips;
    let text: Vec<String> = ips.iter().map(|ip| format!("{} {}", ip.address, ip.gateway.unwrap())).collect();
    assert_eq!(text, ["10.3.0.2/24 10.3.0.1", "10.1.0.5/24 10.1.0.254", "10.2.0.2/24 10.2.0.1"]);
    assert_eq!(node.read("last_reserved_ip.0"), "10.3.0.2");
}

#[test]
fn keys_are_read_as_go_reads_them() {
    let mut node =
        Node::new(json!({"RangeStart": "10.1.0.7", "SUBNET": "10.1.0.0/24", "gateway": "", "routes": null}));
    let section = node.config.as_object_mut().unwrap().remove("ipam").unwrap();
    node.config["IPAM"] = section;
    assert_eq!(node.add("c"), ["10.1.0.7/24"]);
    node.del("c");
    assert!(node.taken().is_empty());
}

#[test]
fn a_range_can_be_in_a_file() {
    let mut node = Node::new(json!({}));
    let file = node.home.join("range.json");
    node.config["ipam"]["rangeFromFile"] = json!(file);
    assert!(node.refused("c").1.starts_with("failed to read rangeFromFile \""));
    fs::write(&file, "{\"subnet\": 5}").unwrap();
    assert!(node.refused("c").1.contains(" as a Range: subnet: invalid type: integer `5`"));
    fs::write(&file, "{\"subnet\": \"10.7.0.0/24\", \"rangeStart\": \"10.7.0.20\"}").unwrap();
    assert_eq!(node.add("c"), ["10.7.0.20/24"]);
}

#[test]
fn invalid_values_are_refused_with_their_key() {
    assert_eq!(refusal(json!({})), (7, "no IP ranges specified".into()));
    assert_eq!(
        refusal(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/32"}]]})),
        (7, "invalid range set 1: Network 10.2.0.0/32 too small to allocate from".into())
    );
    assert_eq!(
        refusal(json!({"subnet": "10.1.0.0/24", "ranges": [[{"subnet": "10.1.0.128/25"}]]})),
        (7, "range set 0 overlaps with 1".into())
    );
    assert_eq!(refusal(json!({"ranges": [[]]})), (7, "invalid range set 0: empty range set".into()));
    assert!(refusal(json!({"subnet": "10.1.0.0"}))
        .1
        .starts_with("ipam.subnet: invalid CIDR address: \"10.1.0.0\""));
    assert!(refusal(json!({"subnet": "10.1.0.0/24", "routes": [{"dst": 1}]}))
        .1
        .starts_with("ipam.routes[0].dst: "));
    let mut node = Node::subnet("10.1.0.0/24");
    node.config.as_object_mut().unwrap().remove("ipam");
    assert_eq!(node.refused("c"), (7, "IPAM config missing 'ipam' key".into()));
}

#[test]
fn a_missing_resolver_file_is_named_before_an_address_is_taken() {
    let node = Node::new(json!({"subnet": "10.1.0.0/24", "resolvConf": "/nonexistent/resolv.conf"}));
    let (code, text) = node.refused("c");
    assert!(text.starts_with("ipam.resolvConf: open /nonexistent/resolv.conf: "), "{text}");
    assert_eq!((code, node.folder().exists()), (5, false));
    assert_eq!(node.status().unwrap_err().0, 50);
}

#[test]
fn old_versions_have_one_address_of_each_family() {
    let mut node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]}));
    node.config["cniVersion"] = json!("0.2.0");
    let text = "CNI version 0.2.0 does not support more than 1 address per family";
    assert_eq!(node.refused("c"), (7, text.into()));
    node.config["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]);
    assert_eq!(node.add("c"), ["10.1.0.2/24", "fd00::2/64"]);
}
