//! A cluster with `podwire agent calico`, installed by helm with `calico.enabled`: pods of all nodes reach each other,
//! the agents and the controller have exactly the rights that they need, and the addresses of a lost node are released.

use std::collections::BTreeSet;
use std::time::Duration;

use podwire_kubernetes_tests::metrics::{self, at_least, become_true, is};
use podwire_kubernetes_tests::web::{all_reach_all, kept_apart, kernel, nodes_of, reboot, served, web};
use podwire_kubernetes_tests::{chart::CHART, Cluster, Machine, Ranges};
use podwire_tests::project;
use serde_json::{json, Value};

const GROUP: &str = "crd.projectcalico.org/v1";

#[test]
fn pods_reach_each_other_and_the_addresses_of_a_lost_node_are_released() {
    let before = kernel();
    let cluster = Cluster::new(Ranges::Podwire);
    let mut machines = vec![cluster.boot("n1", 11), cluster.boot("n2", 12), cluster.boot("n3", 13)];
    let chart = project(CHART).display().to_string();
    let settings = "--set calico.enabled=true,controller.leakGracePeriod=10s";
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
    annotations_of_nodes_are_set(&cluster, &machines);
    rights_are_minimal(&cluster);
    no_problems_are_reported(&cluster, &machines);
    metrics_are_true(&cluster, &machines);
    agents_are_idle(&machines);

    assert_eq!(annotated_pods(&cluster), BTreeSet::new(), "nobody reads the annotations of pods");
    install_calico(&cluster);
    reboot(&cluster, &mut machines, 1);
    annotations_of_pods_are_set(&cluster, &machines[1]);
    lose_node(&cluster, machines.remove(2));
    let pods = cluster.wait("6 pods elsewhere", || {
        served(&cluster, 6).filter(|pods| nodes_of(pods) == BTreeSet::from(["n1", "n2"]))
    });
    all_reach_all(&cluster, &machines, &pods);
    no_problems_are_reported(&cluster, &machines);
    controllers_metrics_are_true(&cluster, &machines);
    agents_are_removed(&cluster, &machines);

    drop(machines);
    drop(cluster);
    assert_eq!(kernel(), before, "the kernel of the machine that runs the test");
}

/// The objects by which Calico's programs can be recognized in a cluster.
fn install_calico(cluster: &Cluster) {
    let (group, version) = GROUP.split_once('/').expect("a group and a version");
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("clusterinformations.{group}")},
        "spec": {
            "group": group, "scope": "Cluster",
            "names": {"kind": "ClusterInformation", "plural": "clusterinformations", "singular": "clusterinformation"},
            "versions": [{"name": version, "served": true, "storage": true, "schema": schema}],
        },
    });
    let information = json!({
        "apiVersion": GROUP, "kind": "ClusterInformation", "metadata": {"name": "default"},
        "spec": {"datastoreReady": true},
    });
    cluster.api.apply(&[definition]);
    cluster.wait("the new kind is served", || cluster.api.try_apply(std::slice::from_ref(&information)).ok());
}

/// The pods with an address in Calico's annotations.
fn annotated_pods(cluster: &Cluster) -> BTreeSet<(String, String)> {
    let pods = cluster.api.pods("default", "app=web").into_iter();
    let annotated = pods.filter_map(|pod| {
        let published = pod.metadata.annotations?.remove("cni.projectcalico.org/podIP")?;
        Some((pod.metadata.name?, published))
    });
    annotated.collect()
}

/// The agent of a node writes Calico's annotations of pods if it found Calico when it started.
fn annotations_of_pods_are_set(cluster: &Cluster, machine: &Machine) {
    cluster.wait(&format!("the addresses of {}'s pods are published", machine.name), || {
        let pods = served(cluster, 6)?.into_iter().filter(|pod| pod.node == machine.name);
        let expected: BTreeSet<_> = pods.map(|pod| (pod.name, format!("{}/32", pod.address))).collect();
        (!expected.is_empty() && annotated_pods(cluster) == expected).then_some(())
    });
}

/// Calico's annotations. The agent writes them with the right to patch the status only.
fn annotations_of_nodes_are_set(cluster: &Cluster, machines: &[Machine]) {
    for machine in machines {
        let annotations = cluster.api.node(&machine.name).and_then(|node| node.metadata.annotations);
        let published = annotations.and_then(|mut all| all.remove("projectcalico.org/IPv4Address"));
        assert_eq!(published, Some(format!("{}/24", machine.address)), "{}", machine.name);
    }
}

fn rights_are_minimal(cluster: &Cluster) {
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
        may(&["get"], &["clusterinformations"]),
    ];
    assert_eq!(cluster.api.rights("podwire-agent"), wanted.concat());
    // It may also get and update its own Lease, which is not checked here.
    let wanted = [
        may(&read, &["nodes", "pods"]),
        may(&["create"], &["leases"]),
        may(&read, &settings),
        may(&["get", "list", "create", "update", "delete"], &blocks),
    ];
    assert_eq!(cluster.api.rights("podwire-controller"), wanted.concat());
}

/// A missing right would be logged.
fn no_problems_are_reported(cluster: &Cluster, machines: &[Machine]) {
    for machine in machines {
        cluster.wait(&format!("no problems on {}", machine.name), || {
            let status = machine.agent_status();
            let is_clean = status["problems"] == json!([])
                && status["addresses"]["problem"].is_null()
                && status["policies"]["problem"].is_null();
            is_clean.then_some(())
        });
        let said = machine.stage().sh("cat /var/log/pods/kube-system_podwire-*/*/*.log");
        assert!(!said.contains("forbidden"), "{}: {said}", machine.name);
    }
}

/// Every metric that the docs name equals what the node and the API server have.
fn metrics_are_true(cluster: &Cluster, machines: &[Machine]) {
    let documented = metrics::documented("docs/agent-calico.md");
    for machine in machines {
        become_true(cluster, &machine.name, || {
            let blocks = cluster.api.list(GROUP, "IPAMBlock");
            let warm = format!("podwire-warm-{}", machine.name);
            let warm: usize = blocks.iter().map(|block| addresses_of(block, &warm)).sum();
            let owner = format!("host:{}", machine.name);
            let own = blocks.iter().filter(|block| block["spec"]["affinity"] == owner.as_str()).count();
            let pods = machine.stage().sh("ip -o link | grep -c ': cali'");
            let pods: f64 = pods.trim().parse().expect("a number");
            let own = [
                ("podwire_agent_leases", is(pods)),
                ("podwire_agent_warm_pool_addresses", is(warm as f64)),
                ("podwire_agent_unsynced_records", is(0)),
                ("podwire_agent_conflicting_addresses", is(0)),
                ("podwire_agent_unreadable_records", is(0)),
                ("podwire_agent_blocks", is(own as f64)),
                ("podwire_agent_routes", is((blocks.len() - own) as f64)),
                ("podwire_agent_store_answers", is(1)),
                // There is no BGP here.
                ("podwire_agent_bgp_session_established", is(0)),
            ];
            let expected = [&metrics::of_agent(pods, machines.len() as f64 - 1.0)[..], &own].concat();
            Some(machine.agent_metrics()?.differences(&documented, &expected))
        });
    }
}

/// While nothing happens, an agent uses at most 0.2 % of a core. It is woken by probes of the kubelet and by the API
/// server.
fn agents_are_idle(machines: &[Machine]) {
    let time = Duration::from_secs(20);
    let before: Vec<_> = machines.iter().map(Machine::agent_activity).collect();
    std::thread::sleep(time);
    for (machine, before) in machines.iter().zip(before) {
        let now = machine.agent_activity();
        let share = 100.0 * (now.0 - before.0) / time.as_nanos() as f64;
        let sleeps = (now.1 - before.1) / time.as_secs_f64();
        println!("the idle agent of {}: {share:.3} % of a core, {sleeps:.1} wake-ups a second", machine.name);
        assert!(share <= 0.2, "{}: {share} % of a core", machine.name);
    }
}

/// The number of addresses of a block that a handle has.
fn addresses_of(block: &Value, handle: &str) -> usize {
    let allocations = block["spec"]["allocations"].as_array().expect("allocations").iter();
    let of =
        |index: u64| &block["spec"]["attributes"][usize::try_from(index).expect("an index")]["handle_id"];
    allocations.filter_map(Value::as_u64).filter(|index| of(*index) == handle).count()
}

/// After a node was lost.
fn controllers_metrics_are_true(cluster: &Cluster, machines: &[Machine]) {
    let expected = [
        ("podwire_controller_suspected_addresses", is(0)),
        ("podwire_controller_released_addresses_total", at_least(1)),
        ("podwire_controller_freed_nodes_total", is(1)),
        ("podwire_controller_collection_failures_total", is(0)),
    ];
    let names = expected.iter().map(|(name, _)| (name.to_string(), false)).collect();
    become_true(cluster, "controller", || {
        let found = machines.iter().find_map(Machine::controller_metrics)?;
        Some(found.differences(&names, &expected))
    });
}

/// A node disappears without cleanup: the controller releases the addresses of its pods, its own addresses and its
/// blocks.
fn lose_node(cluster: &Cluster, machine: Machine) {
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
    cluster.wait("its affinities are removed", || claims(cluster).is_empty().then_some(()));
    cluster.wait("its blocks are released", || {
        let blocks = cluster.api.list(GROUP, "IPAMBlock");
        let own = blocks.iter().filter(|block| block["spec"]["affinity"] == format!("host:{name}"));
        (own.count() == 0).then_some(())
    });
}

/// After `helm uninstall` running pods keep their connections.
fn agents_are_removed(cluster: &Cluster, machines: &[Machine]) {
    cluster.helm(&["uninstall", "podwire"]);
    assert_eq!(cluster.api.list(GROUP, "IPPool").len(), 1, "the pool stays");
    cluster.wait("the agents are deleted", || {
        let agents = cluster.api.pods("kube-system", "app.kubernetes.io/component=agent");
        // The pod of the lost node stays until Kubernetes notices.
        let is_here = |node: &str| machines.iter().any(|machine| machine.name == node);
        let mut nodes = agents.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
        (!nodes.any(is_here)).then(|| assert!(!machines[0].agent_is_ready()))
    });
    all_reach_all(cluster, machines, &cluster.wait("all pods", || served(cluster, 6)));
    let first = machines[0].stage();
    first.sh(&format!("{} install --uninstall", podwire_tests::podwire()));
    assert_eq!(first.sh("find /opt/cni/bin /etc/cni/net.d ! -type d"), "", "files that were not removed");
}
