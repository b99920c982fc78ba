//! A cluster whose pods are routed, by `helm install` of the chart with `routed.enabled`: nodes get a network, pods of all nodes reach each other, the
//! daemons and the controller have the rights that they need and no others, and what a node had that is gone becomes free.

use std::collections::BTreeSet;

use podwire_kubernetes_tests::web::{
    all_reach_all, kept_apart, kernel, nodes_of, reboot, served, web, Served,
};
use podwire_kubernetes_tests::{chart::CHART, Cluster, Machine, Ranges};
use podwire_tests::project;
use serde_json::{json, Value};

const GROUP: &str = "crd.projectcalico.org/v1";

#[test]
fn routed_pods_reach_each_other_with_the_charts_rights_and_what_a_lost_node_had_becomes_free() {
    let before = kernel();
    let cluster = Cluster::new(Ranges::Podwire);
    let mut machines = vec![cluster.boot("n1", 11), cluster.boot("n2", 12), cluster.boot("n3", 13)];
    let chart = project(CHART).display().to_string();
    let settings = "--set routed.enabled=true,controller.leakGracePeriod=10s";
    cluster.helm(&["install", "podwire", &chart, settings]);
    for machine in &machines {
        cluster.wait(&format!("{} is ready", machine.name), || {
            let ready = cluster.api.is_ready(&machine.name) && machine.agent_is_ready();
            (ready && cluster.api.takes_pods(&machine.name)).then_some(())
        });
    }

    cluster.api.apply(&[web(6)]);
    let pods = cluster.wait("6 pods", || served(&cluster, 6));
    assert_eq!(nodes_of(&pods), BTreeSet::from(["n1", "n2", "n3"]));
    all_reach_all(&cluster, &machines, &pods);
    kept_apart(&cluster, &machines, &pods);
    others_know_of_pods_and_nodes(&cluster, &machines, &pods);
    nobody_may_more_than_it_must(&cluster);
    nobody_complains(&cluster, &machines);

    reboot(&cluster, &mut machines, 1);
    lose(&cluster, machines.remove(2));
    let pods = cluster.wait("6 pods elsewhere", || {
        served(&cluster, 6).filter(|pods| nodes_of(pods) == BTreeSet::from(["n1", "n2"]))
    });
    all_reach_all(&cluster, &machines, &pods);
    nobody_complains(&cluster, &machines);
    daemons_go(&cluster, &machines);

    drop(machines);
    drop(cluster);
    assert_eq!(kernel(), before, "the kernel of the machine that runs the test");
}

/// Calico's annotations, which are written with rights to a status alone.
fn others_know_of_pods_and_nodes(cluster: &Cluster, machines: &[Machine], pods: &[Served]) {
    for pod in pods {
        cluster.wait(&format!("the address of {} is told", pod.name), || {
            let found = cluster.api.pods("default", "app=web");
            let found = found.into_iter().find(|one| one.metadata.name.as_ref() == Some(&pod.name))?;
            let told = found.metadata.annotations?.remove("cni.projectcalico.org/podIP")?;
            (told == format!("{}/32", pod.address)).then_some(())
        });
    }
    for machine in machines {
        let annotations = cluster.api.node(&machine.name).and_then(|node| node.metadata.annotations);
        let told = annotations.and_then(|mut all| all.remove("projectcalico.org/IPv4Address"));
        assert_eq!(told, Some(format!("{}/24", machine.address)), "{}", machine.name);
    }
}

fn nobody_may_more_than_it_must(cluster: &Cluster) {
    let may = |verbs: &[&str], kinds: &[&str]| -> Vec<String> {
        kinds.iter().flat_map(|kind| verbs.iter().map(move |verb| format!("{verb} {kind}"))).collect()
    };
    let settings = ["ippools", "ipreservations", "ipamconfigs"];
    let blocks = ["ipamblocks", "blockaffinities", "ipamhandles"];
    let (read, follow) = (["get", "list"], ["get", "list", "watch"]);
    let wanted = [
        may(&follow, &["nodes"]),
        may(&["patch"], &["nodes/status"]),
        may(&follow, &["pods"]),
        may(&["patch"], &["pods/status"]),
        may(&follow, &["namespaces"]),
        may(&["list", "watch"], &["networkpolicies"]),
        may(&follow, &settings),
        may(&["get", "list", "watch", "create", "update", "delete"], &blocks),
    ];
    assert_eq!(cluster.api.rights("podwire-node"), wanted.concat());
    // Of leases it may also get and change its own, which is not asked here.
    let wanted = [
        may(&read, &["nodes", "pods"]),
        may(&["create"], &["leases"]),
        may(&read, &settings),
        may(&["get", "list", "create", "update", "delete"], &blocks),
    ];
    assert_eq!(cluster.api.rights("podwire-controller"), wanted.concat());
}

/// A right that is missing would stand here.
fn nobody_complains(cluster: &Cluster, machines: &[Machine]) {
    for machine in machines {
        cluster.wait(&format!("nothing is wrong on {}", machine.name), || {
            let status = machine.agent_status();
            let (roads, addresses) = (&status["problems"], &status["addresses"]["problem"]);
            let is_clean =
                *roads == json!([]) && addresses.is_null() && status["policies"]["problem"].is_null();
            is_clean.then_some(())
        });
        let said = machine.stage().sh("cat /var/log/pods/kube-system_podwire-*/*/*.log");
        assert!(!said.contains("forbidden"), "{}: {said}", machine.name);
    }
}

/// A node goes for ever, and nobody said goodbye: its pods' addresses, its own and its blocks become free.
fn lose(cluster: &Cluster, machine: Machine) {
    let name = machine.name.clone();
    let claims = |cluster: &Cluster| -> Vec<Value> {
        let all = cluster.api.list(GROUP, "BlockAffinity").into_iter();
        all.filter(|claim| claim["spec"]["node"] == name.as_str()).collect()
    };
    let claimed: Vec<Value> = claims(cluster).iter().map(|claim| claim["spec"]["cidr"].clone()).collect();
    assert!(!claimed.is_empty(), "{name} has a block");
    drop(machine);
    cluster.api.delete(&[json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})]);
    for pod in cluster.api.pods("default", "app=web") {
        let node = pod.spec.and_then(|spec| spec.node_name);
        if let Some(pod) = pod.metadata.name.filter(|_| node.as_deref() == Some(&name)) {
            cluster.api.evict("default", &pod);
        }
    }
    cluster.wait("its claims are withdrawn", || claims(cluster).is_empty().then_some(()));
    cluster.wait("its blocks are gone, or another node's", || {
        let blocks = cluster.api.list(GROUP, "IPAMBlock");
        let own = blocks.iter().filter(|block| block["spec"]["affinity"] == format!("host:{name}"));
        (own.count() == 0).then_some(())
    });
}

/// What the chart made is taken away: running pods go on talking.
fn daemons_go(cluster: &Cluster, machines: &[Machine]) {
    cluster.helm(&["uninstall", "podwire"]);
    assert_eq!(cluster.api.list(GROUP, "IPPool").len(), 1, "the pool stays");
    cluster.wait("the daemons are gone", || {
        let daemons = cluster.api.pods("kube-system", "app.kubernetes.io/component=node");
        // That of the lost node stays until Kubernetes notices.
        let is_here = |node: &str| machines.iter().any(|machine| machine.name == node);
        let mut nodes = daemons.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
        (!nodes.any(is_here)).then(|| assert!(!machines[0].agent_is_ready()))
    });
    all_reach_all(cluster, machines, &cluster.wait("all pods", || served(cluster, 6)));
    let first = machines[0].stage();
    first.sh(&format!("{} install --uninstall", podwire_tests::podwire()));
    assert_eq!(first.sh("find /opt/cni/bin /etc/cni/net.d ! -type d"), "", "what was not taken back");
}
