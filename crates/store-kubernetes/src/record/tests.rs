use super::*;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// Converts a value to an object.
fn object(text: &str, group: ApiGroup, value: &str) -> Value {
    let mut object = json!({ "metadata": {} });
    fill(&key(text), group, value.as_bytes(), &mut object).unwrap();
    object
}

fn back(kind: Kind, object: Value) -> String {
    String::from_utf8(value(kind, object)).unwrap()
}

const BLOCK_KEY: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30";
const BLOCK_VALUE: &str = r#"{"cidr":"10.244.1.0/30","affinity":"host:node1","affinity_claim_time":"2026-08-22T13:33:20Z","allocations":[null,0,null,null],"unallocated":[2,3,0],"attributes":[{"handle_id":"k8s-pod-network.4711","secondary":{"namespace":"d","node":"node1","pod":"p","timestamp":"2026-08-22 13:33:20.1 +0000 UTC"},"alternateOwnerAttrs":{"pod":"q"}}],"sequenceNumber":1755000000000000000,"sequenceNumberForAllocation":{"1":1755000000000000000},"deleted":false,"later":true}"#;

#[test]
fn a_block_is_calicos_object() {
    for group in [ApiGroup::V1, ApiGroup::V3] {
        let made = object(BLOCK_KEY, group, BLOCK_VALUE);
        assert_eq!(
            made,
            json!({
                "apiVersion": group.name(), "kind": "IPAMBlock", "metadata": {"name": "10-244-1-0-30"},
                "spec": {
                    "cidr": "10.244.1.0/30", "affinity": "host:node1", "affinityClaimTime": "2026-08-22T13:33:20Z",
                    "allocations": [null, 0, null, null], "unallocated": [2, 3, 0],
                    "attributes": [{
                        "handle_id": "k8s-pod-network.4711",
                        "secondary": {
                            "namespace": "d", "node": "node1", "pod": "p", "timestamp": "2026-08-22 13:33:20.1 +0000 UTC",
                        },
                        "alternateOwnerAttrs": {"pod": "q"},
                    }],
                    "sequenceNumber": 1_755_000_000_000_000_000_u64,
                    "sequenceNumberForAllocation": {"1": 1_755_000_000_000_000_000_u64},
                    "deleted": false, "later": true, "strictAffinity": false,
                },
            })
        );
        assert_eq!(key_of(Kind::Block, &made).unwrap(), BLOCK_KEY);
        assert_eq!(back(Kind::Block, made), BLOCK_VALUE, "byte for byte as in etcd");
    }
}

#[test]
fn a_block_without_an_owner_has_no_affinity() {
    let text = r#"{"cidr":"10.244.1.0/32","affinity":null,"allocations":[null],"unallocated":[0],"attributes":[],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}"#;
    let made = object("/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-32", ApiGroup::V1, text);
    assert!(made["spec"].get("affinity").is_none(), "the API server rejects null for a string");
    assert_eq!(back(Kind::Block, made), text);
}

#[test]
fn an_affinitys_mark_is_a_string_in_the_older_group() {
    let (key, value) =
        ("/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-26", r#"{"state":"pending","deleted":false}"#);
    let labels = json!({
        "projectcalico.org/affinity-type": "host",
        "projectcalico.org/hostname-hash": "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A",
        "projectcalico.org/ip-version": "4",
    });
    for (group, mark) in [(ApiGroup::V1, json!("false")), (ApiGroup::V3, json!(false))] {
        let made = object(key, group, value);
        assert_eq!(
            made,
            json!({
                "apiVersion": group.name(), "kind": "BlockAffinity",
                "metadata": {"name": "node1-10-244-1-0-26", "labels": labels},
                "spec": {
                    "state": "pending", "node": "node1", "type": "host", "cidr": "10.244.1.0/26", "deleted": mark,
                },
            })
        );
        assert_eq!(key_of(Kind::Affinity, &made).unwrap(), key);
        assert!(!is_marked(&made));
        assert_eq!(back(Kind::Affinity, made.clone()), value);
        let mut marked = made;
        marked["spec"]["deleted"] = super::deleted(Kind::Affinity, group, true);
        assert!(is_marked(&marked));
        assert_eq!(back(Kind::Affinity, marked), r#"{"state":"pending","deleted":true}"#);
    }
}

#[test]
fn affinities_of_virtual_owners_and_of_an_old_calico_are_converted() {
    let balancer = "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00::40-122";
    let made = object(balancer, ApiGroup::V1, "");
    assert_eq!((&made["spec"]["type"], &made["spec"]["state"]), (&json!("virtual"), &json!("confirmed")));
    assert_eq!(key_of(Kind::Affinity, &made).unwrap(), balancer);
    let old = json!({
        "metadata": {"name": "x"},
        "spec": {"cidr": "10.0.0.0/26", "deleted": "", "node": "node1", "state": "", "new": 1},
    });
    assert_eq!(key_of(Kind::Affinity, &old).unwrap(), "/calico/ipam/v2/host/node1/ipv4/block/10.0.0.0-26");
    assert_eq!(back(Kind::Affinity, old), r#"{"state":"confirmed","deleted":false,"new":1}"#);
}

#[test]
fn only_the_id_of_a_handle_keeps_its_case() {
    let (key, value) = (
        "/calico/ipam/v2/handle/k8s-pod-network.AbC",
        r#"{"block":{"10.244.1.0/26":1},"deleted":false,"later":[]}"#,
    );
    let made = object(key, ApiGroup::V1, value);
    assert_eq!(
        made,
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
            "metadata": {"name": "k8s-pod-network.abc"},
            "spec": {"handleID": "k8s-pod-network.AbC", "block": {"10.244.1.0/26": 1}, "deleted": false, "later": []},
        })
    );
    assert_eq!(key_of(Kind::Handle, &made).unwrap(), key);
    assert_eq!(back(Kind::Handle, made), value);
}

#[test]
fn the_configuration_has_other_names_in_objects() {
    let value = r#"{"strict_affinity":true,"maxBlocksPerHost":4,"kubeVirtVMAddressPersistence":"Enabled","ipCooldownSeconds":30,"later":1}"#;
    for (group, kind) in [(ApiGroup::V1, "IPAMConfig"), (ApiGroup::V3, "IPAMConfiguration")] {
        let made = object("/calico/ipam/v2/config", group, value);
        assert_eq!(
            made,
            json!({
                "apiVersion": group.name(), "kind": kind, "metadata": {"name": "default"},
                "spec": {
                    "strictAffinity": true, "autoAllocateBlocks": false, "maxBlocksPerHost": 4,
                    "kubeVirtVMAddressPersistence": "Enabled", "ipCooldownSeconds": 30, "later": 1,
                },
            })
        );
        assert_eq!(back(Kind::Config, made), value);
    }
    let other = json!({"metadata": {"name": "other"}, "spec": {}});
    assert_eq!(key_of(Kind::Config, &other), None, "only one object is the configuration");
}

#[test]
fn a_pool_is_the_same_object() {
    let key = "/calico/resources/v3/projectcalico.org/ippools/pods";
    let value = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"pods","labels":{"a":"b"}},"spec":{"cidr":"10.244.0.0/16","new":1}}"#;
    let mut made = object(key, ApiGroup::V1, value);
    assert_eq!((&made["apiVersion"], &made["kind"]), (&json!("crd.projectcalico.org/v1"), &json!("IPPool")));
    assert_eq!(back(Kind::Pool, made.clone()), value);
    made["metadata"]["resourceVersion"] = json!("7");
    made["metadata"]["managedFields"] = json!([]);
    assert_eq!(back(Kind::Pool, made.clone()), value, "metadata of the API server are removed");
    fill(&super::Key::parse(key).unwrap(), ApiGroup::V1, value.as_bytes(), &mut made).unwrap();
    assert_eq!(made["metadata"]["resourceVersion"], "7", "a write has the version that was read");
}

#[test]
fn a_node_has_labels_of_kubernetes_and_calico() {
    let object = json!({
        "metadata": {
            "name": "node1", "uid": "1", "labels": {"zone": "west"},
            "annotations": {"projectcalico.org/labels": r#"{"zone":"east","rack":"7"}"#},
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
    });
    let value: Value = serde_json::from_slice(&node(&object)).unwrap();
    assert_eq!(value["metadata"]["labels"], json!({"zone": "west", "rack": "7"}));
    // An invalid annotation does not hide the node.
    let annotations =
        json!({"projectcalico.org/labels": "rack7", "projectcalico.org/IPv4Address": "192.0.2.1/24"});
    let odd = json!({"metadata": {"name": "node1", "labels": {"zone": "west"}, "annotations": annotations}});
    let value: Value = serde_json::from_slice(&node(&odd)).unwrap();
    assert_eq!(value["metadata"]["labels"], json!({"zone": "west"}));
    assert_eq!(value["spec"]["bgp"]["ipv4Address"], "192.0.2.1/24");
}

#[test]
fn a_malformed_object_has_a_key_that_does_not_parse() {
    let odd = json!({"metadata": {"name": "odd"}, "spec": {"cidr": "none"}});
    let key = key_of(Kind::Block, &odd).unwrap();
    assert_eq!((key.as_str(), Key::parse(&key)), ("/calico/ipam/v2/assignment/odd", None));
    assert_eq!(back(Kind::Block, json!({"metadata": {}})), r#"{"affinity":null,"deleted":false}"#);
}

/// Other lists of handles do not show it: it has no addresses, and is no leak.
#[test]
fn the_owner_of_a_node_is_an_annotation_of_a_handle() {
    let (key, value) = ("/calico/podwire/owners/node1", r#"{"id":"x","pid":7}"#);
    for group in [ApiGroup::V1, ApiGroup::V3] {
        let made = object(key, group, value);
        assert_eq!(
            made,
            json!({
                "apiVersion": group.name(), "kind": "IPAMHandle",
                "metadata": {"name": "podwire-owner-node1", "annotations": {"podwire/node-owner": value}},
                "spec": {"handleID": "podwire-owner-node1", "block": {}, "deleted": false},
            })
        );
        assert_eq!(key_of(Kind::NodeOwner, &made).unwrap(), key);
        assert_eq!(key_of(Kind::Handle, &made), None);
        assert_eq!(back(Kind::NodeOwner, made), value);
    }
    let handle = object("/calico/ipam/v2/handle/net.1", ApiGroup::V1, r#"{"block":{},"deleted":false}"#);
    assert_eq!(key_of(Kind::NodeOwner, &handle), None);
}
