//! The conformance suite on a real etcd.

use std::time::{Duration, Instant};

use podwire_block_ipam::store::{Change, Entry, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, BlockIndex, Handle, Pool, Request, Rules};
use podwire_store_etcd::{EtcdStore, TlsFiles};
use podwire_test_servers::{Certificates, EtcdServer};

const WAIT: Duration = Duration::from_secs(30);

fn connect(server: &EtcdServer) -> EtcdStore {
    EtcdStore::connect(&[server.url()], None).unwrap()
}

fn client_files(certificates: &Certificates) -> TlsFiles {
    TlsFiles {
        authority: Some(certificates.path("ca.pem")),
        identity: Some((certificates.path("client.pem"), certificates.path("client.key"))),
    }
}

#[test]
fn etcd_passes_the_suite() {
    let server = EtcdServer::start();
    podwire_block_ipam::conformance::run(&|| Box::new(connect(&server)));
}

/// Podwire continues with Calico's records, and keeps unknown fields.
#[test]
fn a_cluster_of_calico_is_continued() {
    let server = EtcdServer::start();
    let store = connect(&server);
    let put = |key: &str, value: &str| store.create(key, value.as_bytes()).unwrap();
    put(
        "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool",
        r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"default-ipv4-ippool","uid":"6d5e","creationTimestamp":"2026-08-22T13:00:00Z"},"spec":{"cidr":"10.244.1.0/29","ipipMode":"Always","vxlanMode":"Never","natOutgoing":true,"blockSize":30,"nodeSelector":"zone == 'west'","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic"}}"#,
    );
    put(
        "/calico/resources/v3/projectcalico.org/nodes/node1",
        r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node1","labels":{"zone":"west"}},"spec":{}}"#,
    );
    put(
        "/calico/resources/v3/projectcalico.org/ipreservations/first",
        r#"{"kind":"IPReservation","apiVersion":"projectcalico.org/v3","metadata":{"name":"first"},"spec":{"reservedCIDRs":["10.244.1.2/32"]}}"#,
    );
    put(
        "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30",
        r#"{"cidr":"10.244.1.0/30","affinity":"host:node1","allocations":[null,0,null,null],"unallocated":[2,3,0],"attributes":[{"handle_id":"k8s-pod-network.old","secondary":{"namespace":"d","node":"node1","pod":"p","timestamp":"2026-08-22 13:33:20.1 +0000 UTC"},"alternateOwnerAttrs":{"pod":"q"}}],"sequenceNumber":1755,"sequenceNumberForAllocation":{"1":1754},"deleted":false,"later":true}"#,
    );
    put("/calico/ipam/v2/host/node1/ipv4/block/10.244.1.0-30", r#"{"state":"confirmed","deleted":false}"#);
    put("/calico/ipam/v2/handle/k8s-pod-network.old", r#"{"block":{"10.244.1.0/30":1},"deleted":false}"#);

    let rules = Rules::load(&store).unwrap();
    let allocator = Allocator::new(&store, || Timestamp::from_unix_nanos(1_787_405_600_000_000_000));
    assert_eq!(allocator.check(&rules).unwrap().problems, []);
    let mut request = Request::new(AffinityOwner::host("node1"), Handle::id("k8s-pod-network", "new"));
    request.node_labels = Rules::node_labels(&store, "node1").unwrap();
    request.attributes.insert("pod".into(), "n".into());
    let given = allocator.assign(&rules, &request).unwrap();
    assert_eq!(given.addresses[0].to_string(), "10.244.1.3/30", "2 is reserved, 3 was free before 0");
    let block = store.get("/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30").unwrap().unwrap().value;
    assert_eq!(
        String::from_utf8(block).unwrap(),
        r#"{"cidr":"10.244.1.0/30","affinity":"host:node1","allocations":[null,0,null,1],"unallocated":[2,0],"attributes":[{"handle_id":"k8s-pod-network.old","secondary":{"namespace":"d","node":"node1","pod":"p","timestamp":"2026-08-22 13:33:20.1 +0000 UTC"},"alternateOwnerAttrs":{"pod":"q"}},{"handle_id":"k8s-pod-network.new","secondary":{"node":"node1","pod":"n"}}],"sequenceNumber":1756,"sequenceNumberForAllocation":{"1":1754,"3":1755},"deleted":false,"later":true}"#
    );
    assert_eq!(allocator.release_handle(&rules, "k8s-pod-network.old").unwrap().len(), 1);
    assert_eq!(store.get("/calico/ipam/v2/handle/k8s-pod-network.old").unwrap(), None);
    let elsewhere =
        allocator.assign(&rules, &Request::new(AffinityOwner::host("node2"), "k8s-pod-network.x"));
    assert!(elsewhere.unwrap_err().to_string().starts_with("no configured Calico pools for node node2"));
}

#[test]
fn an_outage_of_etcd_is_reported_and_recovered() {
    let mut server = EtcdServer::start();
    let store = connect(&server);
    let pool = Pool::new("pods", "10.0.0.0/26".parse().unwrap());
    Allocator::new(&store, || Timestamp::from_unix_nanos(1)).add_pool(&pool).unwrap();
    server.stop();
    let error = store.get("/a").unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { verb: "get", .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    server.restart();
    assert_eq!(store.list("/calico/resources/").unwrap().len(), 1);
}

#[test]
fn a_missing_certificate_is_reported_with_its_path() {
    let files = TlsFiles { authority: Some("/nowhere/ca.pem".into()), identity: None };
    let error = EtcdStore::connect(&["https://127.0.0.1:1".into()], Some(&files)).err().unwrap();
    assert!(error.to_string().contains("/nowhere/ca.pem: No such file"), "{error}");
}

#[test]
fn etcd_with_tls_accepts_only_clients_with_a_certificate() {
    let certificates = Certificates::create();
    let server = EtcdServer::start_with_tls(&certificates);
    let files = client_files(&certificates);
    let open = || EtcdStore::connect(&[server.url()], Some(&files)).unwrap();
    let revision = open().create("/a", b"1").unwrap();
    assert_eq!(open().get("/a").unwrap().unwrap().revision, revision);

    let refused = |files: TlsFiles| {
        // The handshake may be part of the connection or of the first request.
        let store = EtcdStore::connect(&[server.url()], Some(&files));
        store.and_then(|store| store.get("/a")).unwrap_err().to_string()
    };
    let stranger = TlsFiles { authority: Some(certificates.path("stranger.pem")), ..files.clone() };
    let error = refused(stranger);
    assert!(error.contains(&server.url()) && error.contains("invalid peer certificate"), "{error}");
    let anonymous = TlsFiles { identity: None, ..files.clone() };
    let error = refused(anonymous);
    assert!(error.starts_with(&format!("the store {} cannot ", server.url())), "{error}");
}

/// Large values of another program: a list has many pages of one revision, a watch has fragments, and the values are not
/// kept.
#[test]
fn large_values_are_listed_and_followed_without_their_content() {
    let server = EtcdServer::start();
    let (store, large) = (connect(&server), vec![b'x'; 1_400_000]);
    let mut follow = store.follow(&["/calico/", "/other/"]).unwrap();
    let first = follow.wait(WAIT).unwrap().unwrap();
    assert_eq!(first, []);
    for number in 0..24 {
        store.create(&format!("/calico/large/{number:02}"), &large).unwrap();
        store.create(&format!("/calico/small/{number:02}"), b"1").unwrap();
    }
    let is_kept = |entry: &Entry| match entry.key.contains("/large/") {
        true => entry.value == br#""its value has 1400000 bytes, more than 262144""#,
        false => entry.value == b"1",
    };
    let listed = store.list("/calico/").unwrap();
    assert_eq!((listed.len(), listed.iter().filter(|entry| is_kept(entry)).count()), (48, 48));
    assert!(listed.is_sorted_by_key(|entry| &entry.key));
    assert!(is_kept(&store.get("/calico/large/00").unwrap().unwrap()));
    assert_eq!(store.keys("/calico/large/").unwrap().len(), 24);
    assert_eq!(store.list("").unwrap().len(), 48);
    let (mut seen, end) = (0, Instant::now() + Duration::from_secs(60));
    while seen < 48 {
        assert!(Instant::now() < end, "{seen} changes");
        let changes = follow.wait(WAIT).unwrap().unwrap_or_default();
        let is_kept = |change: &Change| matches!(change, Change::Put(entry) if is_kept(entry));
        assert!(changes.iter().all(is_kept));
        seen += changes.len();
    }
    let mut late = store.follow(&["/calico/large/", "/calico/small/"]).unwrap();
    assert_eq!(late.wait(WAIT).unwrap().unwrap().len(), 48);
}

/// A large value is reported, does not stop the others, and can be deleted.
#[test]
fn a_large_value_is_a_malformed_record() {
    let server = EtcdServer::start();
    let store = connect(&server);
    let allocator = Allocator::new(&store, Timestamp::now);
    allocator.add_pool(&Pool::new("pods", "10.244.0.0/16".parse().unwrap())).unwrap();
    let large = Pool::new("large", "10.245.0.0/16".parse().unwrap()).key();
    store.create(&large, &vec![b'x'; 1_400_000]).unwrap();
    let (rules, unreadable) = Rules::load_readable(&store).unwrap();
    let reports: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("its value has 1400000 bytes, more than 262144"), "{reports:?}");
    allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), "net.1")).unwrap();
    let mut index = BlockIndex::default();
    index.apply(store.follow(&BlockIndex::prefixes(true)).unwrap().wait(WAIT).unwrap().unwrap());
    assert!(index.malformed[&large].contains("its value has 1400000 bytes"), "{:?}", index.malformed);
    // A block may have more for each of its addresses.
    let block = "/calico/ipam/v2/assignment/ipv4/block/10.244.16.0-20";
    store.create(block, &vec![b'x'; 1_400_000]).unwrap();
    assert_eq!(store.get(block).unwrap().unwrap().value.len(), 1_400_000);
    store.delete(&large, store.get(&large).unwrap().unwrap().revision).unwrap();
}

/// No block is that large: such a key must not take the pools that it contains.
#[test]
fn a_key_that_contains_all_pools_takes_none_of_their_addresses() {
    let server = EtcdServer::start();
    let store = connect(&server);
    let allocator = Allocator::new(&store, Timestamp::now);
    allocator.add_pool(&Pool::new("pods", "10.244.0.0/16".parse().unwrap())).unwrap();
    for key in ["0.0.0.0-0", "10.0.0.0-8", "10.244.0.0-15"] {
        store.create(&format!("/calico/ipam/v2/assignment/ipv4/block/{key}"), b"junk").unwrap();
    }
    let rules = Rules::load(&store).unwrap();
    let assigned = allocator.assign(&rules, &Request::new(AffinityOwner::host("node1"), "net.1")).unwrap();
    assert_eq!(assigned.addresses.len(), 1);
    assert_eq!(allocator.check(&rules).unwrap().problems.len(), 3, "they are reported");
}
