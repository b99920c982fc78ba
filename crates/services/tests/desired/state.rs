//! Node ports, health checks, addresses, and changing objects.

use podwire_services::{
    Changes, Compiler, Desired, Kind, NodeInput, NodePortAddresses, ObjectName, ServicesWithoutLocal,
};
use serde_json::json;

use crate::cluster::{decide, lines, node, service, slice, slice_of, web, REMOTE};

#[test]
fn node_ports_are_served_at_the_chosen_addresses() {
    let mut objects = Compiler::default();
    let ips = json!(["10.96.0.1", "fd00:96::1"]);
    objects.put(service(
        "web",
        json!({ "type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ips,
        "ports": [{ "port": 80, "nodePort": 30080 }] }),
    ));
    let mut with = |addresses: NodePortAddresses| {
        objects.set_node(NodeInput {
            name: "n".into(),
            node_port_addresses: addresses,
            ..NodeInput::default()
        });
        lines(objects.desired()).into_iter().filter(|line| line.contains("30080")).collect::<Vec<_>>()
    };
    // The Node is not known yet.
    assert!(with(NodePortAddresses::Primary).is_empty());
    let these = ["127.0.0.1", "::1", "192.0.2.9", "fd00:9::9"].map(|ip| ip.parse().unwrap());
    assert_eq!(
        with(NodePortAddresses::These(these.into())),
        ["TCP 192.0.2.9:30080 x/web Cluster [] Reject", "TCP [fd00:9::9]:30080 x/web Cluster [] Reject"]
    );
}

#[test]
fn health_checks_count_ready_endpoints_of_this_node() {
    let web = |external: &str| {
        let policy = json!({ "type": "LoadBalancer", "externalTrafficPolicy": external, "healthCheckNodePort": 31000 });
        web(policy)
    };
    let mut slice = slice(&["10.0.0.1@n", "10.0.0.2@m", "10.0.0.3@n", "10.0.0.4@n"]);
    slice["endpoints"][2]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    slice["ports"] = json!([{ "port": 8080 }, { "name": "other", "port": 8081 }]);
    let found = decide(&[web("Local"), slice.clone()]);
    let counts: Vec<usize> = found.health_checks[&31000].local_endpoints.values().copied().collect();
    assert_eq!(counts, [2]);
    assert!(decide(&[web("Cluster"), slice]).health_checks.is_empty());
}

#[test]
fn other_parts_of_the_state_follow_the_objects() {
    let cidr = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["10.96.0.0/16", "fd00:96::/112"] } });
    let found = decide(&[web(json!({})), slice(&["10.0.0.1@n", "10.0.0.2@m", "10.0.0.3"]), cidr]);
    let texts = |ips: Vec<String>| ips.join(" ");
    assert_eq!(texts(found.cluster_ips.iter().map(|ip| ip.to_string()).collect()), "10.96.0.1");
    assert_eq!(
        texts(found.local_endpoint_ips.iter().map(|ip| ip.to_string()).collect()),
        "10.0.0.1 10.0.0.3"
    );
    assert_eq!(
        texts(found.service_cidrs.iter().map(|net| net.to_string()).collect()),
        "10.96.0.0/16 fd00:96::/112"
    );
}

#[test]
fn objects_are_replaced_and_removed_by_name() {
    let mut objects = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    objects.put(json!({ "apiVersion": "v1", "kind": "List", "items": [web(json!({})), slice(REMOTE)] }));
    objects.put(slice(&["10.0.0.9"]));
    assert_eq!(lines(objects.desired()), ["TCP 10.96.0.1:80 x/web ClusterIp [10.0.0.9:8080]"]);
    objects.put(web(json!({ "ports": 7 })));
    assert_eq!(objects.desired().problems.len(), 2);
    objects.objects().remove(Kind::Service, &ObjectName { namespace: "x".into(), name: "web".into() });
    objects.objects().clear(Kind::EndpointSlice);
    assert_eq!(objects.desired(), &Desired::default());
}

#[test]
fn only_changed_services_are_compiled_again_and_the_result_is_the_same() {
    let service_at = |number: u8, ip: u8| {
        let spec = json!({ "clusterIP": format!("10.96.0.{ip}"), "ports": [{ "port": 80 }] });
        service(&format!("s{number}"), spec)
    };
    let service = |number: u8| service_at(number, number);
    let slice = |of: u8, name: &str, endpoint: &str| {
        slice_of(&format!("s{of}"), name, json!({ "port": 8080 }), &[endpoint])
    };
    let mut objects =
        [service(1), slice(1, "a", "10.0.0.1@n"), service(2), slice(2, "b", "10.0.0.2@n"), service(3)];
    let mut compiler = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    objects.iter().cloned().for_each(|object| compiler.put(object));
    let mut copy = Desired::default();
    let changes = [
        (1, slice(1, "a", "10.0.0.9@n")),
        // Two Services have the same endpoint, and then the same cluster IP.
        (3, slice(2, "b", "10.0.0.9@n")),
        (1, slice(1, "a", "10.0.0.1@n")),
        (2, service_at(2, 1)),
        (0, service_at(1, 3)),
        // The slice of the second Service moves to the third, and back.
        (3, slice(3, "b", "10.0.0.2@n")),
        (3, slice(2, "b", "10.0.0.2@n")),
        // The Service of the slice does not exist.
        (3, slice(7, "b", "10.0.0.2@n")),
        (4, service(7)),
    ];
    for (index, object) in changes {
        compiler.put(object.clone());
        if object["metadata"]["name"] == "s7" {
            compiler
                .objects()
                .remove(Kind::Service, &ObjectName { namespace: "x".into(), name: "s3".into() });
        }
        objects[index] = object;
        let mut fresh = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
        objects.iter().cloned().for_each(|object| fresh.put(object));
        assert_eq!(compiler.desired(), fresh.desired(), "{}", objects[index]);
        update(&mut copy, &compiler.take_changes(), compiler.desired());
        assert_eq!(&copy, compiler.desired(), "{}", objects[index]);
    }
}

/// Replaces the changed parts, and what changes do not name.
fn update(copy: &mut Desired, changes: &Changes, desired: &Desired) {
    let Changes::Only { frontends, ips } = changes else { panic!("the compiler knows what has changed") };
    for frontend in frontends {
        copy.frontends.remove(frontend);
        copy.frontends.extend(desired.frontends.get_key_value(frontend).map(|(key, to)| (*key, to.clone())));
    }
    for ip in ips {
        for (copy, ips) in [
            (&mut copy.cluster_ips, &desired.cluster_ips),
            (&mut copy.local_endpoint_ips, &desired.local_endpoint_ips),
        ] {
            copy.remove(ip);
            copy.extend(ips.get(ip));
        }
    }
    let (frontends, cluster_ips) =
        (std::mem::take(&mut copy.frontends), std::mem::take(&mut copy.cluster_ips));
    let local_endpoint_ips = std::mem::take(&mut copy.local_endpoint_ips);
    *copy = Desired { frontends, cluster_ips, local_endpoint_ips, ..desired.clone() };
}

#[test]
fn services_without_an_endpoint_of_this_node_are_counted_by_policy() {
    let ports = json!([{ "name": "a", "port": 80, "nodePort": 30080 }, { "name": "b", "port": 81, "nodePort": 30081 }]);
    let web = |internal: &str, external: &str| {
        web(json!({ "type": "NodePort", "ports": ports, "internalTrafficPolicy": internal,
            "externalTrafficPolicy": external, "externalIPs": ["198.51.100.7"] }))
    };
    let slices = |endpoint: &str| {
        let slice = |port: &str| slice_of("web", port, json!({ "name": port, "port": 8080 }), &[endpoint]);
        [slice("a"), slice("b")]
    };
    let mut compiler = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    compiler.put(node());
    let mut count = |service, slices: [serde_json::Value; 2]| {
        [service].into_iter().chain(slices).for_each(|object| compiler.put(object));
        let found = compiler.without_local();
        (found.internal, found.external)
    };
    assert_eq!(count(web("Local", "Local"), slices("10.0.0.1@m")), (2, 2));
    // Another endpoint on another node.
    assert_eq!(count(web("Local", "Local"), slices("10.0.0.2@m")), (2, 2));
    assert_eq!(count(web("Local", "Cluster"), slices("10.0.0.2@m")), (2, 0));
    assert_eq!(count(web("Cluster", "Local"), slices("10.0.0.2@m")), (0, 2));
    assert_eq!(count(web("Local", "Local"), slices("10.0.0.1@n")), (0, 0));
    // Nobody has an endpoint: that is no matter of the policy.
    assert_eq!(count(web("Local", "Local"), slices("-10.0.0.1@m")), (0, 0));
    let [a, _] = slices("10.0.0.1@m");
    let [_, b] = slices("10.0.0.1@n");
    assert_eq!(count(web("Local", "Local"), [a, b]), (1, 1));
    let name = ObjectName { namespace: "x".into(), name: "web".into() };
    compiler.objects().remove(Kind::Service, &name);
    assert_eq!(compiler.without_local(), ServicesWithoutLocal::default());
}
