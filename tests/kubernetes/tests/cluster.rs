//! A cluster with `deploy/kubernetes-flannel.yaml`: nodes get a network, pods reach each other, a node joins, one is
//! drained, one is rebooted, the agents are removed. At the end the kernel, which all nodes share, is as before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use podwire_kubernetes_tests::metrics::{self, at_least, is};
use podwire_kubernetes_tests::web::{all_reach_all, kept_apart, kernel, nodes_of, reboot, served, web};
use podwire_kubernetes_tests::{manifest, Cluster, Machine, Ranges};
use serde_json::{json, Value};

const MANIFEST: &str = "deploy/kubernetes-flannel.yaml";

/// How long the API server is stopped.
const AWAY: Duration = Duration::from_secs(60);

/// Waits until a node is ready, and checks that it is not ready before its agent.
fn becomes_ready(cluster: &Cluster, machine: &Machine) {
    cluster.wait(&format!("{} is ready", machine.name), || {
        cluster
            .api
            .is_ready(&machine.name)
            .then(|| assert!(machine.agent_is_ready(), "ready before its agent"))
    });
    let available = || cluster.api.condition(&machine.name, "NetworkUnavailable");
    let [_, reason, _] = cluster.wait(&format!("the network of {} is there", machine.name), || {
        available().filter(|[status, ..]| status == "False")
    });
    assert_eq!(reason, "PodwireIsUp");
    let takes_pods = || cluster.api.takes_pods(&machine.name).then_some(());
    cluster.wait(&format!("{} takes pods", machine.name), takes_pods);
}

/// The manifest's objects, with the controller only if it assigns the pod CIDRs.
fn podwire(ranges: Ranges) -> Vec<Value> {
    let mut objects = manifest::objects(MANIFEST);
    if ranges == Ranges::KubeControllerManager {
        objects.retain(|object| !manifest::is_part_of(object, "controller"));
    }
    objects
}

#[test]
fn nodes_become_ready_with_their_agents_and_pods_of_all_reach_each_other_through_joins_drains_and_reboots() {
    let before = kernel();
    let ranges = Ranges::chosen();
    println!("ranges: {ranges:?}");
    let mut cluster = Cluster::new(ranges);
    let mut machines = vec![cluster.boot("n1", 11), cluster.boot("n2", 12)];

    no_network_no_readiness(&cluster, &machines);
    let objects = podwire(ranges);
    cluster.api.apply(&objects);
    for machine in &machines {
        becomes_ready(&cluster, machine);
    }
    service_accounts_have_minimal_rights(&cluster, ranges);
    cluster.api.apply(&[web(4)]);
    let pods = cluster.wait("4 pods", || served(&cluster, 4));
    assert_eq!(nodes_of(&pods), BTreeSet::from(["n1", "n2"]));
    all_reach_all(&cluster, &machines, &pods);
    kept_apart(&cluster, &machines, &pods);

    machines.push(cluster.boot("n3", 13));
    becomes_ready(&cluster, &machines[2]);
    cluster.api.apply(&[web(6)]);
    let pods = cluster.wait("6 pods", || served(&cluster, 6));
    assert_eq!(nodes_of(&pods), BTreeSet::from(["n1", "n2", "n3"]));
    all_reach_all(&cluster, &machines, &pods);

    metrics_are_true(&cluster, &machines, ranges);

    upgrade(&cluster, &machines, &objects);
    // The agents find existing pods and rules.
    kept_apart(&cluster, &machines, &pods);
    drain(&cluster, &machines, 1);
    reboot(&cluster, &mut machines, 2);
    becomes_ready(&cluster, &machines[2]);
    // This is last: afterwards Kubernetes' controllers and scheduler need up to a minute to work again.
    lose_the_api(&mut cluster, &machines);
    agents_go(&cluster, &machines, &objects);

    drop(machines);
    drop(cluster);
    assert_eq!(kernel(), before, "the kernel of the machine that runs the test");
}

/// Nodes register, report why they are not ready, and stay not ready.
fn no_network_no_readiness(cluster: &Cluster, machines: &[Machine]) {
    for machine in machines {
        let why = cluster.wait(&format!("{} reports why it is not ready", machine.name), || {
            cluster.api.condition(&machine.name, "Ready").filter(|[_, _, why]| why.contains("network"))
        });
        assert_eq!(why[0], "False", "{why:?}");
    }
    // They still do after a few heartbeats.
    std::thread::sleep(Duration::from_secs(5));
    for machine in machines {
        assert!(!cluster.api.is_ready(&machine.name), "{} is ready without a network", machine.name);
        assert_eq!(machine.stage().sh("ls /etc/cni/net.d /opt/cni/bin").matches("podwire").count(), 0);
    }
}

/// The agents have only the rights that they need, and so does the controller. That they have enough shows in the other
/// checks.
fn service_accounts_have_minimal_rights(cluster: &Cluster, ranges: Ranges) {
    let rights = |account: &str| cluster.api.rights(account);
    let watched = ["get nodes", "list nodes", "watch nodes"];
    let agents = [
        "patch nodes/status",
        "list pods",
        "watch pods",
        "list namespaces",
        "watch namespaces",
        "list networkpolicies",
        "watch networkpolicies",
        "create events",
        "patch events",
    ];
    assert_eq!(rights("podwire-agent"), [&watched[..], &agents].concat());
    if ranges == Ranges::Podwire {
        // It may also get and update its own Lease, which is not checked here.
        let controllers = ["patch nodes", "create events", "patch events", "create leases"];
        assert_eq!(rights("podwire-controller"), [&watched[..], &controllers].concat());
    }
}

/// Calls a plugin with a config that it refuses.
fn fail_a_plugin_call(machine: &Machine) {
    let config = json!({"cniVersion": "1.1.0", "name": "wrong", "type": "bridge", "bridge": 7});
    let script = format!(
        "echo '{config}' | CNI_COMMAND=ADD CNI_CONTAINERID=none CNI_NETNS=$(echo /run/netns/* | cut -d' ' -f1) \
         CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/bridge"
    );
    let said = machine.stage().try_sh(&script);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("invalid type: integer `7`"), "{said}");
}

/// Every metric that the docs name equals what the nodes and the API server have.
fn metrics_are_true(cluster: &Cluster, machines: &[Machine], ranges: Ranges) {
    let documented = metrics::documented("docs/agent-flannel.md");
    for machine in machines {
        let count = |script: &str| -> f64 { machine.stage().sh(script).trim().parse().expect("a number") };
        let addresses = count("find /var/lib/cni/networks -type f -name '*.*.*.*' | wc -l");
        assert!(addresses > 0.0, "{} has no pods", machine.name);
        fail_a_plugin_call(machine);
        let peers = machines.len() as f64 - 1.0;
        let own = [
            ("podwire_agent_source_current", is(1)),
            ("podwire_agent_pod_cidr_addresses", is(256)),
            ("podwire_agent_pod_cidr_addresses_used", is(addresses)),
            ("podwire_agent_kernel_objects{kind=\"device\"}", is(1)),
            (
                "podwire_agent_kernel_objects{kind=\"route\"}",
                is(count("ip route show dev flannel.1 | wc -l")),
            ),
            ("podwire_agent_kernel_objects{kind=\"neighbour\"}", is(peers)),
            ("podwire_agent_kernel_objects{kind=\"forwarding\"}", is(peers)),
            // The device, and three objects for each peer.
            ("podwire_agent_kernel_changes_total", at_least(1.0 + 3.0 * peers)),
            ("podwire_agent_convergence_seconds", at_least(1)),
            ("podwire_agent_reconciles_total", at_least(1)),
            ("podwire_agent_reconcile_seconds", at_least(1)),
            ("podwire_agent_reconcile_failures_total", is(0)),
            ("podwire_agent_plugin_call_seconds", at_least(addresses)),
            // At least the one of `fail_a_plugin_call`; an ADD may also be tried before the agent is ready.
            ("podwire_agent_plugin_call_failures_total", at_least(1)),
        ];
        let expected = [&metrics::of_agent(addresses, peers)[..], &own].concat();
        metrics::become_true(cluster, &machine.name, || {
            Some(machine.agent_metrics()?.differences(&documented, &expected))
        });
    }
    if ranges == Ranges::Podwire {
        controllers_metrics_are_true(cluster, machines);
    }
}

fn controllers_metrics_are_true(cluster: &Cluster, machines: &[Machine]) {
    let nodes = machines.len() as f64;
    let expected = [
        ("leader_election_master_status", is(1)),
        ("node_ipam_controller_cidrset_cidrs_allocations_total", is(nodes)),
        ("node_ipam_controller_cidrset_cidrs_releases_total", is(0)),
        // A /16 in parts of /24.
        ("node_ipam_controller_cirdset_max_cidrs", is(256)),
        ("node_ipam_controller_cidrset_usage_cidrs", is(nodes / 256.0)),
        ("node_ipam_controller_cidrset_allocation_tries_per_request", is(nodes)),
        ("podwire_controller_nodes", is(nodes)),
        ("podwire_controller_waiting_nodes", is(0)),
        ("podwire_controller_quarantined_nodes", is(0)),
        ("podwire_controller_writes_total", is(nodes)),
        ("podwire_controller_write_failures_total", is(0)),
        ("podwire_controller_watch_failures_total", is(0)),
        ("podwire_controller_suspected_addresses", is(0)),
        ("podwire_controller_released_addresses_total", is(0)),
        ("podwire_controller_repaired_records_total", is(0)),
        ("podwire_controller_freed_nodes_total", is(0)),
        ("podwire_controller_collection_failures_total", is(0)),
        ("podwire_controller_assignment_seconds", is(nodes)),
    ];
    let documented = metrics::documented("docs/controller.md");
    metrics::become_true(cluster, "controller", || {
        let found = machines.iter().find_map(Machine::controller_metrics)?;
        Some(found.differences(&documented, &expected))
    });
}

/// Another version of the agents is rolled out, node by node, and no packet between nodes is lost.
fn upgrade(cluster: &Cluster, machines: &[Machine], objects: &[Value]) {
    let mut agents = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("the agents").clone();
    agents["spec"]["template"]["metadata"]["annotations"]["test/version"] = "next".into();
    let pods = cluster.wait("all pods", || served(cluster, 6));
    let (from, to) = (&pods[0], pods.last().expect("a pod"));
    assert_ne!(from.node, to.node);
    let machine = machines.iter().find(|machine| machine.name == from.node).expect("its node");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            // At least one round, and a limit in case the rollout does not end.
            for round in 0..100 {
                if round > 0 && is_done.load(Ordering::Relaxed) {
                    break;
                }
                let reported = machine.exec(&from.container, &format!("ping -c 20 -i 0.1 {}", to.address));
                assert!(reported.stdout.contains(" 0% packet loss"), "{}", reported.stdout);
            }
        });
        cluster.api.apply(&[agents.clone()]);
        cluster.wait("all agents are replaced", || {
            let status = cluster.api.find(&agents)?;
            let (wanted, status) = (&status["metadata"]["generation"], &status["status"]);
            let is_complete = status["observedGeneration"] == *wanted
                && status["updatedNumberScheduled"] == machines.len()
                && status["numberAvailable"] == machines.len();
            is_complete.then_some(())
        });
        is_done.store(true, Ordering::Relaxed);
        pings.join().expect("pings without loss");
    });
}

/// The API server is stopped for a minute: the agents report it, and no packet between nodes is lost. Afterwards the
/// agents follow changes of nodes and policies again.
fn lose_the_api(cluster: &mut Cluster, machines: &[Machine]) {
    let pods = cluster.wait("all pods", || served(cluster, 6));
    let (from, to) = (&pods[0], pods.last().expect("a pod"));
    let machine = machines.iter().find(|machine| machine.name == from.node).expect("its node");
    cluster.without_api(AWAY, || {
        // A round takes two seconds.
        for _ in 0..AWAY.as_secs() / 2 {
            let reported = machine.exec(&from.container, &format!("ping -q -c 20 -i 0.1 {}", to.address));
            assert!(reported.stdout.contains(" 0% packet loss"), "{}", reported.stdout);
        }
        for machine in machines {
            assert!(!machine.agent_is_current(), "{} has not noticed", machine.name);
        }
    });
    for machine in machines {
        let what = format!("the agent of {} knows again what the API server knows", machine.name);
        cluster.wait(&what, || machine.agent_is_current().then_some(()));
    }
    kept_apart(cluster, machines, &pods);
}

/// All pods of a node are evicted. They leave nothing behind there, and other pods are not affected.
fn drain(cluster: &Cluster, machines: &[Machine], drained: usize) {
    let machine = &machines[drained];
    cluster.api.cordon(&machine.name, true);
    for pod in cluster.wait("all pods", || served(cluster, 6)).iter().filter(|pod| pod.node == machine.name) {
        cluster.api.evict("default", &pod.name);
    }
    let pods = cluster.wait("6 pods elsewhere", || {
        served(cluster, 6).filter(|pods| !nodes_of(pods).contains(machine.name.as_str()))
    });
    // A plugin removes the veth pair first, and then releases the address.
    let networks = "find /var/lib/cni/networks -type f -name '*.*.*.*'";
    cluster.wait("neither a veth pair nor an address is left on the drained node", || {
        (machine.veths() == 0 && machine.stage().sh(networks).is_empty()).then_some(())
    });
    all_reach_all(cluster, machines, &pods);
    cluster.api.cordon(&machine.name, false);
}

/// The objects of the manifest are deleted: running pods keep their connections.
fn agents_go(cluster: &Cluster, machines: &[Machine], objects: &[Value]) {
    cluster.api.delete(objects);
    cluster.wait("the agents are deleted", || {
        let agents = cluster.api.pods("kube-system", "app.kubernetes.io/component=agent");
        (agents.is_empty() && machines.iter().all(|machine| !machine.agent_is_ready())).then_some(())
    });
    all_reach_all(cluster, machines, &cluster.wait("all pods", || served(cluster, 6)));
    let first = machines[0].stage();
    first.sh(&format!("{} install --uninstall", podwire_tests::podwire()));
    assert_eq!(first.sh("ls /opt/cni/bin"), "", "plugins that were not taken back");
}
