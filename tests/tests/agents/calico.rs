//! Podwire next to the real Calico: both plugins and IPAM plugins share an etcd or an API server, and nodes. Each
//! reads, extends and releases what the other wrote.

mod cluster;
mod records;

use std::collections::BTreeSet;

use crate::blocks::have_routes;
use cluster::{Connected, Whose};

pub use cluster::Cluster;
use records::{about, lines, Records};

/// The number of pods of each plugin that are attached at once.
const AT_ONCE: usize = 20;

#[track_caller]
fn assert_no_address_twice(all: &[Connected]) {
    let mut seen = BTreeSet::new();
    for one in all {
        for address in &one.addresses {
            assert!(seen.insert(address), "{address} twice: {all:#?}");
        }
    }
}

#[track_caller]
fn assert_fits_together(cluster: &Cluster) {
    let said = cluster.ipam("check");
    assert!(said.contains("no problems"), "{said}");
}

/// Checks that each pod reaches the other pods of its node.
fn assert_neighbours_reach_each_other(cluster: &Cluster, all: &[Connected]) {
    for one in all {
        for other in all.iter().filter(|other| other.number == one.number && other.pod != one.pod) {
            for address in &other.addresses {
                let ping = format!("ip netns exec {} ping -c 1 -W 5 {address}", one.pod.name);
                cluster.stage.node(one.number).sh(&ping);
            }
        }
    }
}

/// On the first node Calico's pods come first, on the second Podwire's. The third has a block allocator with a warm
/// pool.
fn live_side_by_side(mut cluster: Cluster) {
    use Whose::{Calicos, Ours};
    cluster.start(3, &["ipam", "serve"], &[]);
    let orders =
        [[Calicos, Ours, Calicos, Ours], [Ours, Calicos, Ours, Calicos], [Calicos, Ours, Ours, Calicos]];
    let mut all = Vec::new();
    for (number, order) in (1..).zip(orders) {
        for (turn, by) in order.into_iter().enumerate() {
            all.push(cluster.add(by, number, &format!("pod{number}{turn}")));
        }
    }
    assert_no_address_twice(&all);
    assert_neighbours_reach_each_other(&cluster, &all);

    // Both write the same records, and a node has one block of each family, whichever plugin claimed it.
    let records = cluster.records_when("the store has all pods", |records| {
        records.endpoints.len() == all.len() && records.pods().len() == all.len()
    });
    assert_eq!(records.owners(), ["n1", "n1", "n2", "n2", "n3", "n3"]);
    assert_eq!(records.affinities.len(), 6);
    assert!(records.affinities.values().all(|one| one["state"] == "confirmed"), "{:#?}", records.affinities);
    let holders = records.holders();
    for one in &all {
        let handle = format!("k8s-pod-network.{}", one.pod.name);
        assert_eq!(holders.get(&handle), Some(&2), "{one:?}");
        for address in &one.addresses {
            let said = cluster.ipam(&format!("show --ip {address}"));
            assert!(said.contains(&one.pod.name), "{one:?}: {said}");
        }
    }
    assert_fits_together(&cluster);

    // Two of Calico's addresses are released by `podwire ipam release`, as an administrator would. Their DELs follow
    // later.
    cluster.ipam(&format!("release --handle k8s-pod-network.{}", all[0].pod.name));
    for address in &all[2].addresses {
        cluster.ipam(&format!("release --ip {address}"));
    }
    assert_eq!(cluster.records().holders().len(), all.len() - 2);
    assert_fits_together(&cluster);
    // Each plugin detaches pods of the other.
    for one in &all {
        cluster.del(one.by.other(), one);
        cluster.forget(one.number, &one.pod);
    }
    let left = cluster.records_when("nothing is left", Records::are_empty);
    assert!((1..=3).all(|number| cluster.is_bare(number)));
    assert_eq!(
        (left.owners(), left.affinities),
        (records.owners(), records.affinities),
        "nodes keep their blocks"
    );
    assert_fits_together(&cluster);

    // The block allocator stops, as the migration guide says, and starts again without restoring old records.
    cluster.stage.kill_agent(3);
    cluster.ipam("release --handle podwire-warm-n3");
    cluster.start(3, &["ipam", "serve"], &[]);
    cluster.add(Ours, 3, "again");
    let records = cluster.records_when("the store has the pod", |records| {
        !records.endpoints.is_empty() && !records.holders().is_empty()
    });
    assert_eq!((records.endpoints.len(), records.holders().len()), (1, 1), "{:#?}", records.endpoints);
}

#[test]
fn calicos_plugins_and_ours_share_blocks_in_etcd() {
    let Some(cluster) = Cluster::in_etcd() else { return };
    live_side_by_side(cluster);
}

#[test]
fn calicos_plugins_and_ours_share_blocks_in_kubernetes() {
    let Some(cluster) = Cluster::in_kubernetes() else { return };
    live_side_by_side(cluster);
}

/// Pods of both plugins on nodes with Podwire's agent: its routes include Calico's pods.
fn reach_each_other(mut cluster: Cluster) {
    for number in 1..=3 {
        cluster.start(number, &["agent", "calico"], &["--healthz-port", "8081"]);
    }
    for number in 1..=3 {
        for by in [Whose::Calicos, Whose::Ours] {
            let name = format!("{by:?}{number}").to_lowercase();
            cluster.add(by, number, &name);
            cluster.stage.nodes[usize::from(number) - 1].pods.push(name);
        }
    }
    cluster.stage.wait_until("routes to both other nodes", |stage| have_routes(stage, 2));
    cluster.stage.assert_model_holds();
    assert_fits_together(&cluster);
}

#[test]
fn calicos_pods_and_ours_reach_each_other_over_our_routes_in_etcd() {
    let Some(cluster) = Cluster::in_etcd() else { return };
    reach_each_other(cluster);
}

#[test]
fn calicos_pods_and_ours_reach_each_other_over_our_routes_in_kubernetes() {
    let Some(cluster) = Cluster::in_kubernetes() else { return };
    reach_each_other(cluster);
}

/// Many pods are attached at once on one node, and each is detached by the other plugin, at once again.
fn attach_and_detach_at_once(cluster: &Cluster) {
    let pods: Vec<_> = (0..2 * AT_ONCE)
        .map(|turn| {
            let by = if turn % 2 == 0 { Whose::Calicos } else { Whose::Ours };
            (by, cluster.pod(1, &format!("pod{turn}")))
        })
        .collect();
    let all: Vec<Connected> = at_once(pods, |(by, pod)| cluster.connect(by, 1, pod));
    assert_no_address_twice(&all);
    let reported = |records: &Records| {
        let holders = records.holders();
        let has_both = |handle: &usize| *handle == 2;
        records.endpoints.len() == all.len() && holders.len() == all.len() && holders.values().all(has_both)
    };
    cluster.records_when("the store has all pods", reported);
    assert_fits_together(cluster);
    at_once(all.iter().collect(), |one| cluster.del(one.by.other(), one));
    cluster.records_when("nothing is left", Records::are_empty);
    assert!(cluster.is_bare(1));
    assert_fits_together(cluster);
    all.iter().for_each(|one| cluster.forget(1, &one.pod));
}

/// Calls a function for each item, in a thread each.
fn at_once<One: Send, Came: Send>(ones: Vec<One>, act: impl Fn(One) -> Came + Sync) -> Vec<Came> {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = ones.into_iter().map(|one| scope.spawn(move || act(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pod")).collect()
    })
}

#[test]
fn pods_of_both_plugins_are_attached_and_detached_at_once_in_etcd() {
    let Some(mut cluster) = Cluster::in_etcd() else { return };
    attach_and_detach_at_once(&cluster);
    cluster.start(1, &["ipam", "serve"], &[]);
    attach_and_detach_at_once(&cluster);
}

#[test]
fn pods_of_both_plugins_are_attached_and_detached_at_once_in_kubernetes() {
    let Some(cluster) = Cluster::in_kubernetes() else { return };
    attach_and_detach_at_once(&cluster);
}

/// The differences between the records of both plugins about the same container.
fn differences(cluster: &Cluster) -> Vec<String> {
    let reported = |by: Whose| {
        let one = cluster.add(by, 1, "twin");
        let records = cluster.records();
        cluster.del(by, &one);
        cluster.forget(1, &one.pod);
        assert!(cluster.records().are_empty(), "{by:?}");
        // The other plugin claims the block again.
        cluster.ipam("release --node n1");
        assert!(cluster.records().blocks.is_empty(), "{by:?}");
        let all = [
            ("endpoint", about(&records.endpoints, "twin")),
            ("handle", about(&records.handles, "twin")),
            ("block", about(&records.blocks, "twin")),
            ("affinity", about(&records.affinities, "")),
        ];
        all.into_iter()
            .flat_map(|(kind, value)| lines(&value).into_iter().map(move |line| format!("{kind}{line}")))
            .collect::<BTreeSet<String>>()
    };
    let (theirs, ours) = (reported(Whose::Calicos), reported(Whose::Ours));
    assert!(theirs.len() > 30, "{theirs:#?}");
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>, whose: &str| -> Vec<String> {
        one.difference(other).map(|line| format!("{whose} {line}")).collect()
    };
    [only(&theirs, &ours, "theirs"), only(&ours, &theirs, "ours")].concat()
}

#[test]
fn both_write_the_same_endpoint_in_etcd() {
    let Some(mut cluster) = Cluster::in_etcd() else { return };
    for has_pods in [true, false] {
        cluster.has_pods = has_pods;
        // Written by Calico 3.32 and later.
        assert_eq!(differences(&cluster), ["ours block.affinity_claim_time"]);
    }
}

#[test]
fn both_write_the_same_endpoint_in_kubernetes() {
    let Some(cluster) = Cluster::in_kubernetes() else { return };
    assert_eq!(differences(&cluster), [""; 0]);
}

/// Only one of the two programs was replaced.
#[test]
fn the_plugin_of_one_works_with_the_ipam_of_the_other() {
    let Some(cluster) = Cluster::in_etcd() else { return };
    for by in [Whose::Calicos, Whose::Ours] {
        let pod = cluster.pod(1, &format!("{by:?}").to_lowercase());
        let one = cluster.connect_with(by, 1, pod, by.other());
        assert_eq!(cluster.records().holders().len(), 1, "{one:?}");
        assert_eq!(cluster.records().endpoints.len(), 1, "{one:?}");
        cluster.del_with(by, &one, by.other());
        assert!(cluster.records().are_empty() && cluster.is_bare(1), "{one:?}");
        assert_fits_together(&cluster);
    }
}
