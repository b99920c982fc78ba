//! Pods of a real Kubernetes API with annotations, and their records in Calico's datastore, a real etcd.

mod cluster;

use cluster::{Cluster, KUBECONFIG, STATE};
use podwire_tests::podwire;
use serde_json::{json, Value};

fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().expect("ips").iter();
    ips.filter_map(|ip| ip["address"].as_str()).collect()
}

fn nothing() -> Value {
    json!({})
}

#[test]
fn pods_get_what_their_annotations_request() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.serve();
    let allowed = json!({"feature_control": {"ip_addrs_no_ipam": true, "floating_ips": true}});

    let these = json!({"cni.projectcalico.org/ipAddrs": "[\"10.244.0.200\", \"fd44::c8\"]"});
    let fixed = cluster.pod("fixed", these);
    let result = fixed.add(&nothing());
    assert_eq!(addresses(&result), ["10.244.0.200/32", "fd44::c8/128"]);
    let checked = fixed.call("CHECK", &nothing(), Some(&result));
    assert_eq!(checked.status, 0, "{}", checked.stdout);

    let pool = json!({"cni.projectcalico.org/ipv4pools": "[\"special\"]", "cni.projectcalico.org/ipFamilies": "[\"IPv4\"]"});
    let result = cluster.pod("pool", pool).add(&nothing());
    assert_eq!(addresses(&result).len(), 1);
    assert!(addresses(&result)[0].starts_with("10.77.0."), "{result:#}");

    let everything = json!({
        "cni.projectcalico.org/ipAddrsNoIpam": "[\"192.0.2.55\"]",
        "cni.projectcalico.org/hwAddr": "1c:0c:0a:c0:ff:ee",
        "cni.projectcalico.org/floatingIPs": "[\"198.51.100.7\"]",
        "cni.projectcalico.org/allowedSourcePrefixes": "[\"10.8.1.0/24\"]",
        "kubernetes.io/ingress-bandwidth": "10M",
        "qos.projectcalico.org/egressBandwidth": "20M",
    });
    let own = cluster.pod("own", everything);
    // The pool that one pod requested is added to the warm pool shortly after.
    cluster.eventually("the warm pool is filled", |cluster| {
        let before = cluster.in_use();
        std::thread::sleep(std::time::Duration::from_secs(3));
        cluster.in_use() == before
    });
    let used = cluster.in_use();
    let result = own.add(&allowed);
    assert_eq!(addresses(&result), ["192.0.2.55/32"]);
    assert_eq!(result["interfaces"][1]["mac"], "1c:0c:0a:c0:ff:ee");
    assert_eq!(cluster.node.json("ip -n own -j link show eth0")[0]["address"], "1c:0c:0a:c0:ff:ee");
    let checked = own.call("CHECK", &allowed, Some(&result));
    assert_eq!(checked.status, 0, "{}", checked.stdout);
    let end = result["interfaces"][0]["name"].as_str().expect("the node's end").to_owned();
    let buckets = || cluster.node.sh("tc qdisc show | grep tbf");
    assert!(buckets().contains("rate 10Mbit") && buckets().contains("rate 20Mbit"), "{}", buckets());
    cluster.node.sh(&format!("tc qdisc delete dev {end} root"));
    let (_, message) = own.call("CHECK", &allowed, Some(&result)).error();
    assert!(message.contains("has no token bucket"), "{message}");
    let endpoint = own.endpoint();
    let spec = json!({
        "orchestrator": "k8s", "node": "node1", "containerID": "own", "pod": "own", "endpoint": "eth0",
        "ipNetworks": ["192.0.2.55/32"],
        "ipNATs": [{"internalIP": "192.0.2.55", "externalIP": "198.51.100.7"}],
        "profiles": ["kns.default"], "interfaceName": result["interfaces"][0]["name"], "mac": "1c:0c:0a:c0:ff:ee",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "hostPort": 0, "hostIP": ""}],
        "allowSpoofedSourcePrefixes": ["10.8.1.0/24"],
        "qosControls": {
            "ingressBandwidth": 10_000_000, "ingressBurst": 4_294_967_296_u64,
            "egressBandwidth": 20_000_000, "egressBurst": 4_294_967_296_u64,
        },
    });
    assert_eq!(endpoint["spec"], spec);
    assert_eq!(endpoint["metadata"]["labels"]["app"], "own");
    assert_eq!(cluster.in_use(), used, "it got no address");
    own.del(&allowed, &result);
    cluster.eventually("the endpoint is withdrawn", |cluster| cluster.endpoint("own").is_none());
    assert!(!cluster.node.can("ip link show type ifb | grep -q ."), "the detour is gone");

    // The namespace's annotation applies to all of its pods.
    let shared = json!({"metadata": {"annotations": {"cni.projectcalico.org/ipFamilies": "[\"IPv6\"]"}}});
    cluster.ask("PATCH", "/api/v1/namespaces/default", &shared);
    // The store gets the endpoint a moment later.
    let mut few = 0..40;
    let given = few.find_map(|number| {
        let pod = cluster.pod(&format!("shared{number}"), nothing());
        let result = pod.add(&nothing());
        match addresses(&result)[..] {
            [only] => Some(only.to_owned()),
            _ => {
                pod.del(&nothing(), &result);
                None
            }
        }
    });
    assert!(given.expect("one family").starts_with("fd44::"));
}

#[test]
fn unavailable_requests_fail_by_name_and_change_nothing() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.serve();
    let taken = cluster.pod("taken", json!({"cni.projectcalico.org/ipAddrs": "[\"10.244.0.200\"]"}));
    taken.add(&nothing());
    taken.endpoint();
    let state = |cluster: &Cluster| {
        let links = cluster.node.sh("ip -o link | cut -d: -f2 | sort");
        (links, cluster.node.sh(&format!("ls {STATE}/leases {STATE}/endpoints/leases | sort")))
    };
    let before = state(&cluster);
    let rows = [
        ("ipAddrs", "10.0.0.1", 7, "failed to parse '10.0.0.1' as JSON"),
        ("ipAddrs", "[\"203.0.113.9\"]", 7, "is not in an enabled IP pool"),
        ("ipAddrs", "[\"10.244.0.200\"]", 999, "Address already assigned in block"),
        ("ipAddrs", "[\"10.244.0.201\", \"10.244.0.202\"]", 7, "cannot have more than one IPv4 address"),
        ("ipAddrsNoIpam", "[\"192.0.2.9\"]", 7, "requested feature is not enabled: ip_addrs_no_ipam"),
        ("ipv4pools", "[\"nowhere\"]", 7, "the given pool (nowhere) does not exist"),
        ("ipFamilies", "[\"IPv5\"]", 7, "error parsing ipFamilies"),
        ("hwAddr", "1c:0c", 7, "failed to parse MAC"),
        ("floatingIPs", "[\"198.51.100.7\"]", 7, "requested feature is not enabled: floating_ips"),
        ("allowedSourcePrefixes", "[\"x\"]", 7, "failed to parse 'x' as a CIDR"),
    ];
    for (number, (name, text, code, words)) in rows.into_iter().enumerate() {
        let annotation = format!("cni.projectcalico.org/{name}");
        let pod = cluster.pod(&format!("bad{number}"), json!({ &annotation: text }));
        let (reported, message) = pod.call("ADD", &nothing(), None).error();
        assert_eq!(reported, code, "{name} {text}: {message}");
        assert!(message.contains(words) && message.contains(name), "{name} {text}: {message}");
        assert_eq!(state(&cluster), before, "{name} {text}");
    }
}

#[test]
fn a_cached_pod_is_attached_and_detached_while_no_server_responds() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.serve();
    let gone = cluster.pod("gone", nothing());
    let known = json!({"cni.projectcalico.org/hwAddr": "1c:0c:0a:c0:ff:ee"});
    let pod = cluster.pod("known", known);
    let first = gone.add(&nothing());
    gone.endpoint();
    cluster.eventually("the allocator has the pod", |_| pod.is_known());
    cluster.suspend(|cluster| {
        let result = pod.add(&nothing());
        assert_eq!(result["interfaces"][1]["mac"], "1c:0c:0a:c0:ff:ee");
        gone.del(&nothing(), &first);
        assert!(cluster.node.can(&format!("ls {STATE}/endpoints/released | grep -q json")), "it is noted");
    });
    assert_eq!(pod.endpoint()["spec"]["mac"], "1c:0c:0a:c0:ff:ee");
    cluster.eventually("the other is withdrawn", |cluster| cluster.endpoint("gone").is_none());
}

#[test]
fn without_an_agent_the_plugin_reads_and_writes_the_store() {
    let Some(cluster) = Cluster::start() else { return };
    let pod = cluster.pod("alone", json!({"cni.projectcalico.org/ipAddrs": "[\"10.244.0.200\"]"}));
    let result = pod.add(&nothing());
    assert_eq!(addresses(&result), ["10.244.0.200/32"]);
    let endpoint = cluster.endpoint("alone").expect("written when the ADD returns");
    assert_eq!(endpoint["spec"]["ipNetworks"], json!(["10.244.0.200/32"]));
    // The new sandbox is created before the old one is deleted: the pod keeps its address.
    let later = pod.in_sandbox(cluster.node.pod("alone2")).add(&nothing());
    assert_eq!(addresses(&later), ["10.244.0.200/32"]);
    pod.del(&nothing(), &result);
    let endpoint = cluster.endpoint("alone").expect("the later one's");
    assert_eq!(endpoint["spec"]["containerID"], "alone2");
}

#[test]
fn host_local_gives_addresses_of_the_nodes_own_range() {
    let Some(cluster) = Cluster::start() else { return };
    let pod = cluster.pod("ranged", nothing());
    let both = json!([[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]);
    let ipam = json!({"ipam": {"type": "host-local", "ranges": both}, "num_queues": 3});
    let result = pod.add(&ipam);
    let given = addresses(&result);
    assert!(given[0].starts_with("10.9.0.") && given[1].starts_with("fd09::"), "{given:?}");
    let queues = cluster.node.json("ip -n ranged -d -j link show eth0");
    assert_eq!((&queues[0]["num_tx_queues"], &queues[0]["num_rx_queues"]), (&json!(3), &json!(3)));
    let checked = pod.call("CHECK", &ipam, Some(&result));
    assert_eq!(checked.status, 0, "{}", checked.stdout);
    pod.del(&ipam, &result);
    assert!(cluster.endpoint("ranged").is_none());
    assert!(!cluster.node.can("ls /var/lib/cni/networks/k8s-pod-network/10.9.0.*"));
    let gate = json!({"readiness_gates": ["https://127.0.0.1/ready"]});
    let (code, text) = cluster.pod("gated", nothing()).call("ADD", &gate, None).error();
    assert_eq!((code, text.contains("readiness_gates")), (7, true), "{text}");
}

#[test]
fn with_the_kubernetes_store_a_pods_annotations_have_its_addresses() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.define_custom_resources();
    // Only Calico's programs read the annotations. They create this object.
    let information = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation", "metadata": {"name": "default"},
    });
    cluster.ask("POST", "/apis/crd.projectcalico.org/v1/clusterinformations", &information);
    // Selected by the label that every namespace has.
    for (name, cidr) in [("kube-system", "10.87.0.0/24"), ("default", "10.88.0.0/24")] {
        let namespaces = format!("--namespaces \"kubernetes.io/metadata.name == '{name}'\"");
        let pool =
            format!("ipam pool {name} {cidr} {namespaces} --store kubernetes --kubeconfig {KUBECONFIG}");
        cluster.node.sh(&format!("{} {pool}", podwire()));
    }
    cluster.serve_from("kubernetes");
    let config =
        json!({"datastore_type": "kubernetes", "etcd_endpoints": "", "ipam": {"type": "calico-ipam"}});
    let pod =
        cluster.pod("named", json!({"cni.projectcalico.org/ipAddrs": "[\"10.88.0.7\"]", "theirs": "stays"}));
    let result = pod.add(&config);
    assert_eq!(addresses(&result), ["10.88.0.7/32"]);
    let said = |cluster: &Cluster| {
        let pod = cluster.ask("GET", "/api/v1/namespaces/default/pods/named", &Value::Null);
        let annotations = pod["metadata"]["annotations"].clone();
        assert_eq!(annotations["theirs"], "stays");
        ["podIP", "podIPs", "containerID"].map(|name| {
            annotations[format!("cni.projectcalico.org/{name}")].as_str().unwrap_or("-").to_owned()
        })
    };
    cluster.eventually("its addresses", |cluster| said(cluster) == ["10.88.0.7/32", "10.88.0.7/32", "named"]);
    pod.del(&config, &result);
    cluster.eventually("the pod has no addresses any more", |cluster| said(cluster) == ["", "", "named"]);
    let other = cluster.pod("plain", nothing()).add(&config);
    assert!(addresses(&other)[0].starts_with("10.88.0."), "of its namespace's pool: {other:#}");
}
