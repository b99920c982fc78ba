//! The cases. Each leaves no records.

mod pods;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use podwire_block_ipam::store::{Cached, Change, Memo, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{
    key, AffinityOwner, Allocator, BlockIndex, Handle, IpFamily, Node, Pool, Refill, Release, Request, Rules,
    Transfer, Tunnel,
};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore};
use podwire_test_servers::KubeApiServer;
use serde_json::{json, Value};

use pods::{
    a_nodes_pods_are_known_without_requests, an_endpoint_is_read_from_its_pod,
    an_endpoint_is_written_without_a_read, an_unknown_pod_is_read, endpoints_are_for_calico,
};

type Case = (&'static str, fn(&mut KubeApiServer));

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub const CASES: &[Case] = &[$((stringify!($name), $name)),*];
    };
}

cases![
    the_older_group_passes_the_suite,
    the_newer_group_passes_the_suite,
    records_are_written_as_calico_writes_them,
    objects_of_calico_are_continued,
    a_marked_object_is_deleted_and_can_be_created_again,
    affinities_without_labels_are_found_and_get_labels,
    labels_and_annotations_of_others_stay,
    a_long_list_is_read_in_pages,
    a_pod_costs_few_requests,
    a_claim_reads_no_block_of_other_nodes,
    a_malformed_object_does_not_block_others,
    a_node_has_its_kubernetes_labels,
    a_nodes_address_is_in_its_annotations_and_is_followed,
    a_heartbeat_of_a_node_changes_no_index,
    refusals_have_the_servers_message,
    a_dropped_setting_is_reported,
    an_endpoint_is_read_from_its_pod,
    an_endpoint_is_written_without_a_read,
    endpoints_are_for_calico,
    a_nodes_pods_are_known_without_requests,
    an_unknown_pod_is_read,
    an_outage_is_reported_and_recovered,
];

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30";
const AFFINITY: &str = "/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-30";
const HANDLE: &str = "/calico/ipam/v2/handle/k8s-pod-network.old";

fn open(server: &KubeApiServer, group: ApiGroup) -> KubernetesStore {
    KubernetesStore::connect(Some(&server.kubeconfig("podwire")), Some(group)).unwrap()
}

fn path(group: ApiGroup, object: &str) -> String {
    format!("/apis/{group}/{object}")
}

fn now() -> Timestamp {
    Timestamp::from_unix_nanos(1_787_405_600_000_000_000)
}

fn empty(store: &dyn Store) {
    for entry in store.list("").unwrap() {
        store.delete(&entry.key, entry.revision).unwrap();
    }
}

/// An object without what the server adds to each.
fn plain(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"] {
        metadata.remove(field);
    }
    object
}

pub fn the_newer_group_is_used_only_without_the_older(server: &mut KubeApiServer) {
    let found = |server: &KubeApiServer| {
        let user: &Path = &server.kubeconfig("podwire");
        KubernetesStore::connect(Some(user), None).map(|store| store.group())
    };
    let error = found(server).unwrap_err().to_string();
    assert!(error.contains("neither in crd.projectcalico.org/v1 nor in projectcalico.org/v3"), "{error}");
    server.define_calico_resources(ApiGroup::V3.name());
    server.until("the newer group is discovered", || found(server) == Ok(ApiGroup::V3));
    server.define_calico_resources(ApiGroup::V1.name());
    server.until("the older group is discovered", || found(server) == Ok(ApiGroup::V1));
}

fn the_older_group_passes_the_suite(server: &mut KubeApiServer) {
    podwire_block_ipam::conformance::run_on_records(&|| Box::new(open(server, ApiGroup::V1)));
}

fn the_newer_group_passes_the_suite(server: &mut KubeApiServer) {
    podwire_block_ipam::conformance::run_on_records(&|| Box::new(open(server, ApiGroup::V3)));
}

fn records_are_written_as_calico_writes_them(server: &mut KubeApiServer) {
    for group in [ApiGroup::V1, ApiGroup::V3] {
        let store = open(server, group);
        let allocator = Allocator::new(&store, now);
        let pool = Pool::new("pods", "10.244.1.0/30".parse().unwrap()).with_block_size(30);
        allocator.add_pool(&pool).unwrap();
        allocator.configure(|config| config.strict_affinity = true).unwrap();
        let mut request = Request::new(AffinityOwner::host("node1"), Handle::id("k8s-pod-network", "4711AB"));
        for (key, value) in [
            ("namespace", "d"),
            ("node", "node1"),
            ("pod", "p"),
            ("timestamp", "2026-08-22 13:33:20.1 +0000 UTC"),
        ] {
            request.attributes.insert(key.into(), value.into());
        }
        allocator.assign(&Rules::load(&store).unwrap(), &request).unwrap();
        let written = |object: &str| plain(server.request("GET", &path(group, object), None).unwrap());
        let block = json!({
            "apiVersion": group.name(), "kind": "IPAMBlock", "metadata": {"name": "10-244-1-0-30"},
            "spec": {
                "affinity": "host:node1", "affinityClaimTime": "2026-08-22T13:33:20Z",
                "allocations": [0, null, null, null], "unallocated": [1, 2, 3], "cidr": "10.244.1.0/30",
                "attributes": [{"handle_id": "k8s-pod-network.4711AB", "secondary": {
                    "namespace": "d", "node": "node1", "pod": "p", "timestamp": "2026-08-22 13:33:20.1 +0000 UTC",
                }}],
                "sequenceNumber": 1_787_405_600_000_000_001_u64,
                "sequenceNumberForAllocation": {"0": 1_787_405_600_000_000_000_u64},
                "deleted": false, "strictAffinity": false,
            },
        });
        assert_eq!(written("ipamblocks/10-244-1-0-30"), block);
        let mark = if group == ApiGroup::V1 { json!("false") } else { json!(false) };
        let affinity = json!({
            "apiVersion": group.name(), "kind": "BlockAffinity",
            "metadata": {"name": "node1-10-244-1-0-30", "labels": {
                "projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4",
                "projectcalico.org/hostname-hash": "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A",
            }},
            "spec": {"cidr": "10.244.1.0/30", "deleted": mark, "node": "node1", "state": "confirmed", "type": "host"},
        });
        assert_eq!(written("blockaffinities/node1-10-244-1-0-30"), affinity);
        let handle = json!({
            "apiVersion": group.name(), "kind": "IPAMHandle", "metadata": {"name": "k8s-pod-network.4711ab"},
            "spec": {"block": {"10.244.1.0/30": 1}, "deleted": false, "handleID": "k8s-pod-network.4711AB"},
        });
        assert_eq!(written("ipamhandles/k8s-pod-network.4711ab"), handle);
        let (plural, kind) = match group {
            ApiGroup::V1 => ("ipamconfigs", "IPAMConfig"),
            ApiGroup::V3 => ("ipamconfigurations", "IPAMConfiguration"),
        };
        let settings = json!({
            "apiVersion": group.name(), "kind": kind, "metadata": {"name": "default"},
            "spec": {"autoAllocateBlocks": true, "strictAffinity": true},
        });
        assert_eq!(written(&format!("{plural}/default")), settings);
        let pool = json!({
            "apiVersion": group.name(), "kind": "IPPool", "metadata": {"name": "pods"},
            "spec": {
                "blockSize": 30, "cidr": "10.244.1.0/30", "ipipMode": "Never", "nodeSelector": "all()",
                "vxlanMode": "Never",
            },
        });
        assert_eq!(written("ippools/pods"), pool);
        empty(&store);
    }
}

/// Objects as Calico's Go code leaves them in the API server, the annotation with the original metadata and all.
fn calicos_objects(server: &KubeApiServer, group: ApiGroup, deleted: &Value) {
    let make = |plural: &str, kind: &str, metadata: Value, spec: Value| {
        let object = json!({"apiVersion": group.name(), "kind": kind, "metadata": metadata, "spec": spec});
        server.request("POST", &path(group, plural), Some(&object)).unwrap();
    };
    let annotated = |name: &str| json!({"name": name, "annotations": {"projectcalico.org/metadata": r#"{"creationTimestamp":null}"#}});
    make(
        "ippools",
        "IPPool",
        json!({"name": "default-ipv4-ippool", "annotations": {
            "projectcalico.org/metadata": r#"{"uid":"6d5e","creationTimestamp":"2026-08-22T13:00:00Z"}"#,
        }}),
        json!({
            "cidr": "10.244.1.0/29", "ipipMode": "Always", "vxlanMode": "Never", "natOutgoing": true, "blockSize": 30,
            "nodeSelector": "zone == 'west'", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic",
        }),
    );
    make("ipreservations", "IPReservation", annotated("first"), json!({"reservedCIDRs": ["10.244.1.2/32"]}));
    make(
        "ipamblocks",
        "IPAMBlock",
        annotated("10-244-1-0-30"),
        json!({
            "cidr": "10.244.1.0/30", "affinity": "host:node1", "allocations": [null, 0, null, null], "unallocated": [2, 3, 0],
            "attributes": [{
                "handle_id": "k8s-pod-network.old",
                "secondary": {"namespace": "d", "node": "node1", "pod": "p", "timestamp": "2026-08-22 13:33:20.1 +0000 UTC"},
                "alternateOwnerAttrs": {"pod": "q"},
            }],
            "sequenceNumber": 1755, "sequenceNumberForAllocation": {"1": 1754}, "deleted": false,
            "strictAffinity": false, "later": true,
        }),
    );
    let labels = json!({
        "projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4",
        "projectcalico.org/hostname-hash": "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A",
    });
    let mut metadata = annotated("node1-10-244-1-0-30");
    metadata["labels"] = labels;
    let spec = json!({"cidr": "10.244.1.0/30", "deleted": deleted, "node": "node1", "state": "confirmed", "type": "host"});
    make("blockaffinities", "BlockAffinity", metadata, spec);
    let spec = json!({"block": {"10.244.1.0/30": 1}, "deleted": false, "handleID": "k8s-pod-network.old"});
    make("ipamhandles", "IPAMHandle", annotated("k8s-pod-network.old"), spec);
}

fn objects_of_calico_are_continued(server: &mut KubeApiServer) {
    for (group, deleted) in [(ApiGroup::V1, json!("false")), (ApiGroup::V3, json!(false))] {
        calicos_objects(server, group, &deleted);
        let store = open(server, group);
        let rules = Rules::load(&store).unwrap();
        let allocator = Allocator::new(&store, now);
        assert_eq!(allocator.check(&rules).unwrap().problems, []);
        let mut request = Request::new(AffinityOwner::host("node1"), Handle::id("k8s-pod-network", "new"));
        request.node_labels.insert("zone".into(), "west".into());
        let given = allocator.assign(&rules, &request).unwrap();
        assert_eq!(given.addresses[0].to_string(), "10.244.1.3/30", "2 is reserved, 3 was free before 0");
        let block = server.request("GET", &path(group, "ipamblocks/10-244-1-0-30"), None).unwrap();
        assert_eq!(
            block["metadata"]["annotations"]["projectcalico.org/metadata"],
            r#"{"creationTimestamp":null}"#
        );
        assert_eq!(
            block["spec"],
            json!({
                "cidr": "10.244.1.0/30", "affinity": "host:node1", "allocations": [null, 0, null, 1], "unallocated": [2, 0],
                "attributes": [
                    {
                        "handle_id": "k8s-pod-network.old",
                        "secondary": {
                            "namespace": "d", "node": "node1", "pod": "p", "timestamp": "2026-08-22 13:33:20.1 +0000 UTC",
                        },
                        "alternateOwnerAttrs": {"pod": "q"},
                    },
                    {"handle_id": "k8s-pod-network.new", "secondary": {"node": "node1"}},
                ],
                "sequenceNumber": 1756, "sequenceNumberForAllocation": {"1": 1754, "3": 1755}, "deleted": false,
                "strictAffinity": false, "later": true,
            })
        );
        assert_eq!(allocator.release_handle(&rules, "k8s-pod-network.old").unwrap().len(), 1);
        assert!(server.request("GET", &path(group, "ipamhandles/k8s-pod-network.old"), None).is_err());
        let elsewhere =
            allocator.assign(&rules, &Request::new(AffinityOwner::host("node2"), "k8s-pod-network.x"));
        assert!(elsewhere.unwrap_err().to_string().starts_with("no configured Calico pools for node node2"));
        empty(&store);
    }
}

/// A writer has died between the mark and the removal.
fn a_marked_object_is_deleted_and_can_be_created_again(server: &mut KubeApiServer) {
    let marks = [(ApiGroup::V1, json!("false"), json!("true")), (ApiGroup::V3, json!(false), json!(true))];
    for (group, unmarked, marked) in marks {
        for (key, object) in [
            (BLOCK, "ipamblocks/10-244-1-0-30"),
            (AFFINITY, "blockaffinities/node1-10-244-1-0-30"),
            (HANDLE, "ipamhandles/k8s-pod-network.old"),
        ] {
            let leave = || {
                calicos_objects(server, group, &unmarked);
                let mut there = server.request("GET", &path(group, object), None).unwrap();
                there["spec"]["deleted"] = if key == AFFINITY { marked.clone() } else { json!(true) };
                server.request("PUT", &path(group, object), Some(&there)).unwrap();
            };
            let is_there = || server.request("GET", &path(group, object), None).is_ok();
            let store = open(server, group);

            leave();
            let value = br#"{"state":"pending","deleted":false,"block":{},"cidr":"10.244.1.0/30","affinity":null,"allocations":[null,null,null,null],"unallocated":[0,1,2,3],"attributes":[],"sequenceNumber":1}"#;
            assert!(store.list("").unwrap().iter().all(|entry| entry.key != key), "{key} is listed");
            assert!(is_there(), "a list removes nothing");
            let made = store.create(key, value).unwrap();
            assert_eq!(store.get(key).unwrap().unwrap().revision, made);
            empty(&store);

            leave();
            let version = server.request("GET", &path(group, object), None).unwrap();
            let version = version["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            let missing = StoreError::Missing { key: key.into() };
            assert_eq!(store.update(key, value, podwire_block_ipam::store::Revision(version)), Err(missing));
            empty(&store);

            leave();
            assert_eq!(store.get(key).unwrap(), None);
            assert!(!is_there(), "a client that finds a mark removes the object");
            empty(&store);
        }
    }
}

fn affinities_without_labels_are_found_and_get_labels(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let old = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": {"name": "node1-10-244-1-0-30"},
        "spec": {"cidr": "10.244.1.0/30", "deleted": "false", "node": "node1", "state": "confirmed"},
    });
    server.request("POST", &path(ApiGroup::V1, "blockaffinities"), Some(&old)).unwrap();
    store.create(&AFFINITY.replace("node1", "node2"), br#"{"state":"pending","deleted":false}"#).unwrap();
    let listed = store.list("/calico/ipam/v2/host/node1/").unwrap();
    assert_eq!(listed.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), [AFFINITY]);
    assert_eq!(store.list("/calico/ipam/v2/host/").unwrap().len(), 2);
    store.update(AFFINITY, br#"{"state":"pendingDeletion","deleted":false}"#, listed[0].revision).unwrap();
    let object =
        server.request("GET", &path(ApiGroup::V1, "blockaffinities/node1-10-244-1-0-30"), None).unwrap();
    assert_eq!(object["metadata"]["labels"]["projectcalico.org/affinity-type"], "host");
    assert_eq!(store.list("/calico/ipam/v2/host/node1/").unwrap().len(), 1);
    empty(&store);
}

fn labels_and_annotations_of_others_stay(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let value = |count: usize| format!(r#"{{"block":{{"10.244.1.0/30":{count}}},"deleted":false}}"#);
    store.create(HANDLE, value(1).as_bytes()).unwrap();
    let object = path(ApiGroup::V1, "ipamhandles/k8s-pod-network.old");
    let mut there = server.request("GET", &object, None).unwrap();
    there["metadata"]["labels"] = json!({"team": "blue"});
    there["metadata"]["annotations"] = json!({"note": "kept"});
    there["status"] = json!({"new": 1});
    server.request("PUT", &object, Some(&there)).unwrap();
    // Once after a look at it, once after a list, once after a write of its own.
    let entry = store.get(HANDLE).unwrap().unwrap();
    store.update(HANDLE, value(2).as_bytes(), entry.revision).unwrap();
    let listed = open(server, ApiGroup::V1).list(HANDLE).unwrap();
    let revision =
        open(server, ApiGroup::V1).update(HANDLE, value(3).as_bytes(), listed[0].revision).unwrap();
    let entry = store.get(HANDLE).unwrap().unwrap();
    assert_eq!(entry.revision, revision);
    store.update(HANDLE, value(4).as_bytes(), revision).unwrap();
    let there = server.request("GET", &object, None).unwrap();
    assert_eq!(there["metadata"]["labels"], json!({"team": "blue"}));
    assert_eq!(there["metadata"]["annotations"], json!({"note": "kept"}));
    assert_eq!((&there["status"], &there["spec"]["block"]["10.244.1.0/30"]), (&json!({"new": 1}), &json!(4)));
    empty(&store);
}

fn a_long_list_is_read_in_pages(server: &mut KubeApiServer) {
    const COUNT: usize = 505;
    let store = open(server, ApiGroup::V1);
    let key = |number: usize| format!("/calico/ipam/v2/handle/net.{number:04}");
    for number in 0..COUNT {
        store.create(&key(number), br#"{"block":{},"deleted":false}"#).unwrap();
    }
    let listed = store.list("/calico/ipam/v2/handle/").unwrap();
    assert_eq!(listed.len(), COUNT);
    assert!(listed.iter().enumerate().all(|(number, entry)| entry.key == key(number)));
    server.request("DELETE", &path(ApiGroup::V1, "ipamhandles"), None).unwrap();
}

/// On a block that the node has: an object that was read for a write is not read again, and affinities of other nodes
/// are not listed.
fn a_pod_costs_few_requests(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let allocator = Allocator::new(&store, now);
    allocator.add_pool(&Pool::new("pods", "10.244.0.0/24".parse().unwrap())).unwrap();
    let rules = Rules::load(&store).unwrap();
    let add = |handle: &str| {
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), handle)).unwrap();
    };
    add("net.first");
    let counted = |act: &dyn Fn()| -> Vec<String> {
        let before = server.calico_requests();
        act();
        let new = server.calico_requests().into_iter().filter_map(|(name, count)| {
            let new = count - before.get(&name).copied().unwrap_or(0);
            (new > 0).then(|| format!("{new} {name}"))
        });
        new.collect()
    };
    let reads = ["1 GET blockaffinities", "1 GET ipamblocks", "1 GET ipamhandles", "2 LIST blockaffinities"];
    assert_eq!(
        counted(&|| add("net.second")),
        [&reads[..], &["1 POST ipamhandles", "1 PUT ipamblocks"]].concat()
    );
    let release = || drop(allocator.release_handle(&rules, "net.second").unwrap());
    let expected = ["1 DELETE ipamhandles", "1 GET ipamblocks", "1 GET ipamhandles", "1 PUT ipamblocks"];
    assert_eq!(counted(&release), expected);
    // An agent remembers what it has written, and its warm pool is filled in the write that takes an address from it.
    let warm_pool = Handle::for_warm_pool("node1");
    let cached = Cached::new(&store, Memo::default());
    let agent = Allocator::new(&cached, now);
    let requests = [Request::new(AffinityOwner::host("node1"), warm_pool.clone())];
    let address = agent.assign(&rules, &requests[0]).unwrap().addresses[0];
    let come_and_go = || {
        let (handle, attributes) = ("net.third".to_owned(), BTreeMap::new());
        let transfers = [Transfer { address, handle: handle.clone(), attributes }];
        let refill = Refill { rules: &rules, requests: &requests };
        let outcome = agent.transfer(&warm_pool, &transfers, Some(refill)).unwrap();
        assert_eq!((outcome.refilled.len(), outcome.lost.len()), (1, 0));
        let release = Release { ip: address.addr(), handle: Some(handle), sequence: None };
        agent.release(&rules, &[release]).unwrap();
    };
    assert_eq!(counted(&come_and_go), ["1 DELETE ipamhandles", "1 POST ipamhandles", "2 PUT ipamblocks"]);
    empty(&store);
}

/// Of all blocks only metadata are listed, and a marked one does no harm.
fn a_claim_reads_no_block_of_other_nodes(server: &mut KubeApiServer) {
    for group in [ApiGroup::V1, ApiGroup::V3] {
        let store = open(server, group);
        let allocator = Allocator::new(&store, now);
        allocator.add_pool(&Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28)).unwrap();
        let rules = Rules::load(&store).unwrap();
        let claim = |node: &str| {
            let given =
                allocator.assign(&rules, &Request::new(AffinityOwner::host(node), format!("net.{node}")));
            given.unwrap().addresses[0].trunc()
        };
        let blocks: std::collections::BTreeSet<_> =
            ["node1", "node2", "node3"].into_iter().map(claim).collect();
        assert_eq!(blocks.len(), 3);
        let listed = |store: &KubernetesStore| -> Vec<String> {
            let entries = store.list("/calico/ipam/v2/assignment/").unwrap();
            entries.into_iter().map(|entry| entry.key).collect()
        };
        assert_eq!(store.keys("/calico/ipam/v2/assignment/ipv4/").unwrap(), listed(&store));
        assert_eq!(listed(&store).len(), 3);
        empty(&store);
    }
}

fn a_node_has_its_kubernetes_labels(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    assert!(Rules::node_labels(&store, "node1").unwrap().is_empty());
    let node = json!({"metadata": {
        "name": "node1", "labels": {"zone": "west"}, "annotations": {"projectcalico.org/labels": r#"{"rack":"7"}"#},
    }});
    server.request("POST", "/api/v1/nodes", Some(&node)).unwrap();
    let labels = Rules::node_labels(&store, "node1").unwrap();
    assert_eq!((labels["zone"].as_str(), labels["rack"].as_str()), ("west", "7"));
    server.request("DELETE", "/api/v1/nodes/node1", None).unwrap();
}

fn a_nodes_address_is_in_its_annotations_and_is_followed(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let timeout = Duration::from_secs(30);
    let roots = [key::NODES, key::BGP[1]];
    let mut follow = store.follow(&roots).unwrap();
    // Of peers there is no definition on this server: there are none.
    assert_eq!(follow.wait(timeout).unwrap(), Some(Vec::new()));
    let node = json!({"metadata": {"name": "node1", "annotations": {"theirs": "stays"}}});
    server.request("POST", "/api/v1/nodes", Some(&node)).unwrap();
    let (address, end) = ("192.168.0.7/24".parse().unwrap(), "10.244.1.1".parse().ok());
    let vxlan = Tunnel::Vxlan(IpFamily::V4);
    let register = |node: &mut Node| {
        node.set_address(address);
        node.set_tunnel(vxlan, end);
    };
    assert!(Node::update(&store, "node1", register).unwrap());
    assert!(!Node::update(&store, "node1", register).unwrap(), "an unchanged object is not written");
    let annotations =
        server.request("GET", "/api/v1/nodes/node1", None).unwrap()["metadata"]["annotations"].clone();
    let wanted = json!({
        "theirs": "stays", "projectcalico.org/IPv4Address": "192.168.0.7/24",
        "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.1",
    });
    assert_eq!(annotations, wanted);
    let until = Instant::now() + timeout;
    let mut reported = None;
    while reported != Some(address) {
        assert!(Instant::now() < until, "the address is reported");
        for change in follow.wait(timeout).unwrap().unwrap_or_default() {
            let Change::Put(entry) = change else { continue };
            reported = Node::parse(&entry.key, &entry.value).unwrap().address(IpFamily::V4);
        }
    }
    assert_eq!(store.list(key::NODES).unwrap().len(), 1);
    assert!(Node::update(&store, "node1", |node| node.set_tunnel(vxlan, None)).unwrap());
    let annotations =
        server.request("GET", "/api/v1/nodes/node1", None).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations.get("projectcalico.org/IPv4VXLANTunnelAddr"), None);
    server.request("DELETE", "/api/v1/nodes/node1", None).unwrap();
    let until = Instant::now() + timeout;
    let gone = Change::Deleted(Node::key("node1"));
    while !follow.wait(timeout).unwrap().unwrap_or_default().contains(&gone) {
        assert!(Instant::now() < until, "it is gone");
    }
}

/// The routes are reconciled when the index changes.
fn a_heartbeat_of_a_node_changes_no_index(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let node = json!({"metadata": {"name": "node1", "labels": {"zone": "west"}}});
    server.request("POST", "/api/v1/nodes", Some(&node)).unwrap();
    let mut follow = store.follow(&[key::NODES]).unwrap();
    let mut index = BlockIndex::default();
    assert!(index.apply(follow.wait(Duration::from_secs(30)).unwrap().unwrap()));
    let (labels, address) =
        (json!({"zone": "east"}), json!({"projectcalico.org/IPv4Address": "192.168.0.7/24"}));
    for change in [json!({"labels": labels}), json!({"annotations": address})] {
        for beat in 1..=3 {
            let condition = json!({"type": "Ready", "status": "True", "reason": beat.to_string()});
            let images = json!([{"names": ["registry/a"], "sizeBytes": beat}]);
            let status = json!({"status": {"conditions": [condition], "images": images}});
            server.patch("/api/v1/nodes/node1/status", &status);
        }
        server.patch("/api/v1/nodes/node1", &json!({"metadata": change}));
        let until = Instant::now() + Duration::from_secs(30);
        let mut changed = Vec::new();
        while !changed.contains(&true) {
            assert!(Instant::now() < until, "the change of {change} is reported");
            let changes = follow.wait(Duration::from_secs(30)).unwrap().unwrap_or_default();
            changed.extend(changes.into_iter().map(|one| index.apply(vec![one])));
        }
        assert_eq!(changed, [false, false, false, true], "three heartbeats, then {change}");
    }
    server.request("DELETE", "/api/v1/nodes/node1", None).unwrap();
}

fn a_malformed_object_does_not_block_others(server: &mut KubeApiServer) {
    calicos_objects(server, ApiGroup::V1, &json!("false"));
    let make = |name: &str, spec: Option<Value>| {
        let mut object = json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": {"name": name},
        });
        object.as_object_mut().unwrap().extend(spec.map(|spec| ("spec".to_owned(), spec)));
        server.request("POST", &path(ApiGroup::V1, "ipamblocks"), Some(&object)).unwrap();
    };
    let spec = |cidr: &str| {
        json!({
            "cidr": cidr, "allocations": [7], "unallocated": [], "attributes": [], "sequenceNumber": 1,
            "strictAffinity": false,
        })
    };
    make("empty", None);
    make("nowhere", Some(spec("nowhere")));
    make("10-244-9-0-32", Some(spec("10.244.9.0/32")));
    let store = open(server, ApiGroup::V1);
    let (allocator, rules) = (Allocator::new(&store, now), Rules::load(&store).unwrap());
    let problems: Vec<String> =
        allocator.check(&rules).unwrap().problems.iter().map(ToString::to_string).collect();
    for named in ["assignment/empty", "assignment/nowhere", "block/10.244.9.0-32"] {
        assert!(
            problems.iter().any(|text| text.contains(named) && text.contains("is malformed")),
            "{problems:?}"
        );
    }
    let mut request = Request::new(AffinityOwner::host("node1"), "k8s-pod-network.new");
    request.node_labels.insert("zone".into(), "west".into());
    assert_eq!(allocator.assign(&rules, &request).unwrap().addresses.len(), 1);
    for name in ["empty", "nowhere"] {
        server.request("DELETE", &path(ApiGroup::V1, &format!("ipamblocks/{name}")), None).unwrap();
    }
    empty(&store);
}

fn refusals_have_the_servers_message(server: &mut KubeApiServer) {
    let stranger =
        KubernetesStore::connect(Some(&server.kubeconfig("stranger")), Some(ApiGroup::V1)).unwrap();
    let error = stranger.create(HANDLE, br#"{"block":{},"deleted":false}"#).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { verb: "create", .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("the store https://127.0.0.1:"), "{text}");
    assert!(
        text.contains("create ipamhandles/k8s-pod-network.old: ")
            && text.contains("User \"stranger\" cannot create"),
        "{text}"
    );
    assert!(stranger.list("/calico/ipam/v2/handle/").unwrap_err().to_string().contains("list ipamhandles: "));

    let store = open(server, ApiGroup::V1);
    let error = store.create(BLOCK, br#"{"cidr":7}"#).unwrap_err().to_string();
    assert!(error.contains("spec.cidr: Invalid value") && error.contains("(422)"), "{error}");
    let error = store.create("/calico/ipam/v2/handle/a_b", br#"{"block":{}}"#).unwrap_err().to_string();
    assert!(error.contains("\"a_b\" is not a valid name of a Kubernetes object"), "{error}");
    assert_eq!(store.get("/calico/ipam/v2/handle/a/b?c"), Ok(None), "there can be none");
    let error = store.get("/a").unwrap_err().to_string();
    assert!(error.contains("no custom resource has such a key"), "{error}");
}

fn a_dropped_setting_is_reported(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    let allocator = Allocator::new(&store, now);
    for verb in ["create", "update"] {
        let error = allocator.configure(|config| config.ip_cooldown_seconds = 30).unwrap_err().to_string();
        assert!(
            error.contains(&format!("cannot {verb} /calico/ipam/v2/config: it was written, but")),
            "{error}"
        );
        assert!(error.contains("ipamconfigs/default lost ipCooldownSeconds: "), "{error}");
    }
    assert!(allocator.configure(|config| config.strict_affinity = true).is_ok());
    empty(&store);
}

fn an_outage_is_reported_and_recovered(server: &mut KubeApiServer) {
    let store = open(server, ApiGroup::V1);
    store.create(HANDLE, br#"{"block":{},"deleted":false}"#).unwrap();
    server.stop();
    let error = store.get(HANDLE).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { verb: "get", .. }), "{error}");
    assert!(error.to_string().contains("get ipamhandles/k8s-pod-network.old: "), "{error}");
    server.serve();
    server.until("it is found again", || store.get(HANDLE).is_ok_and(|entry| entry.is_some()));
    empty(&store);
}
