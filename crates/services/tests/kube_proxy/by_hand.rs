//! Worlds that each show one rule of kube-proxy.

use podwire_ip::IpFamily;
use serde_json::{json, Value};

use crate::world::{endpoint, service, slice, slices, World, DUAL};

const EXTERNAL: [&str; 2] = ["198.51.100.7", "fd00:7::7"];
const BALANCER: [&str; 2] = ["198.51.100.8", "fd00:7::8"];

/// One Service with its slices.
fn one(name: &str, service: Value, endpoints: &[&str]) -> World {
    World::new(name, std::iter::once(service).chain(slices("a", endpoints)))
}

fn web(more: Value) -> Value {
    service("a", 1, DUAL, more)
}

/// A load balancer with an address that is also an external IP of the Service.
fn balancer(more: Value, mode: Option<&str>) -> Value {
    let mut service = web(json!({ "type": "LoadBalancer", "externalIPs": EXTERNAL }));
    more.as_object().unwrap().iter().for_each(|(key, value)| service["spec"][key] = value.clone());
    let ingress = BALANCER.map(|ip| match mode {
        Some(mode) => json!({ "ip": ip, "ipMode": mode }),
        None => json!({ "ip": ip }),
    });
    service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
    service
}

fn labelled(mut service: Value, label: &str) -> Value {
    service["metadata"]["labels"] = json!({ label: "x" });
    service
}

/// Every combination of policies that matters, with endpoints of each kind.
fn policies() -> Vec<World> {
    let mut worlds = Vec::new();
    let sets: [&[&str]; 6] =
        [&["1", "2", "r"], &["r", "o"], &["1"], &["n"], &[], &["1 draining", "2 unready", "r draining"]];
    for external in ["Cluster", "Local"] {
        for internal in ["Cluster", "Local"] {
            for endpoints in sets {
                let policies =
                    json!({ "externalTrafficPolicy": external, "internalTrafficPolicy": internal });
                let name = format!("external policy {external}, internal policy {internal}, {endpoints:?}");
                worlds.push(one(&name, balancer(policies, None), endpoints));
            }
        }
    }
    worlds
}

fn sources() -> Vec<World> {
    let lists: [&[&str]; 8] = [
        &["192.0.2.2/32", "fd00:9::2/128"],
        &["192.0.2.0/24", "fd00:9::/64"],
        &["10.1.0.1/32", " 10.2.0.0/16 ", "fd00:1::1/128", "fd00:2::/64"],
        &["10.0.0.0/8", "10.1.0.0/16", "fd00::/16"],
        &["192.0.2.2/32"],
        &["fd00:9::2/128"],
        &["0.0.0.0/0", "10.1.0.1/32", "fd00:1::1/128"],
        &["203.0.113.0/24", "fd00:ff::/64"],
    ];
    let world = |policy: &str, ranges: &&[&str]| {
        let more = json!({ "loadBalancerSourceRanges": ranges, "externalTrafficPolicy": policy });
        one(&format!("source ranges {ranges:?}, policy {policy}"), balancer(more, Some("VIP")), &["1", "r"])
    };
    let local = world("Local", &lists[0]);
    lists.iter().map(|ranges| world("Cluster", ranges)).chain([local]).collect()
}

fn topology() -> Vec<World> {
    let sets: [&[&str]; 9] = [
        &["1 zone=z", "2 zone=z", "r zone=y"],
        &["1 zone=y", "r zone=z"],
        &["1 zone=z", "r"],
        &["1 zone=x", "r zone=y"],
        &["1 zone=z unready", "2 zone=y"],
        &["1 zone=z draining", "r zone=y draining"],
        &["1 node=n", "2 node=n", "r node=m"],
        &["1 node=m", "r node=m zone=z"],
        &["1 node=n zone=y", "2 zone=z", "r zone=z"],
    ];
    let world = |endpoints: &&[&str]| {
        one(&format!("hints {endpoints:?}"), web(json!({ "type": "NodePort" })), endpoints)
    };
    sets.iter().map(world).collect()
}

fn conditions() -> Vec<World> {
    let sets: [&[&str]; 8] = [
        &["1", "2 draining", "r"],
        &["1 draining", "2 gone", "r unready"],
        &["1 draining", "r"],
        &["1 unready", "r gone"],
        &["1 published", "2 draining"],
        &["1 nowhere", "r nowhere"],
        &["3 on=m", "r on=n"],
        &["1 ready", "n", "o"],
    ];
    let world = |endpoints: &&[&str]| {
        let more =
            json!({ "type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local" });
        one(&format!("conditions {endpoints:?}"), web(more), endpoints)
    };
    sets.iter().map(world).collect()
}

fn affinity() -> Vec<World> {
    ["Cluster", "Local"]
        .into_iter()
        .map(|policy| {
            let more = json!({ "sessionAffinity": "ClientIP", "externalTrafficPolicy": policy,
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 100 } } });
            one(&format!("affinity, policy {policy}"), balancer(more, None), &["1", "2", "r"])
        })
        .collect()
}

/// Service types, families, ports, labels.
fn shapes() -> Vec<World> {
    let node_port = || json!({ "type": "NodePort" });
    let renamed = |number: u16| {
        json!({ "type": "NodePort", "ports": [{ "name": "t", "port": 80, "protocol": "TCP", "nodePort": number },
            { "name": "u", "port": 81, "protocol": "UDP", "nodePort": number },
            { "name": "none", "port": 82, "protocol": "TCP" }] })
    };
    let mut two_slices = vec![web(node_port())];
    let [one_port, other_port] = [("s", 8080, ["1", "r"]), ("p", 9090, ["2", "3"])];
    for (name, port, servers) in [one_port, other_port] {
        for family in IpFamily::ALL {
            let endpoints = servers.map(|server| endpoint(family, server));
            two_slices.push(slice("a", name, family, port, &endpoints));
        }
    }
    let headless = json!({ "clusterIP": "None", "clusterIPs": ["None"] });
    let foreign = "service.kubernetes.io/service-proxy-name";
    let mut foreign_slices = slices("a", &["1"]);
    foreign_slices.iter_mut().for_each(|slice| slice["metadata"]["labels"][foreign] = "x".into());
    let with_foreign_slices = std::iter::once(web(node_port())).chain(foreign_slices);
    let two =
        [web(node_port()), service("b", 2, DUAL, json!({ "type": "NodePort", "externalIPs": EXTERNAL }))];
    vec![
        one("one family", service("a", 1, &[IpFamily::V4], node_port()), &["1", "r"]),
        one("the other family", service("a", 1, &[IpFamily::V6], node_port()), &["1", "r"]),
        one("IPv6 first", service("a", 1, &[IpFamily::V6, IpFamily::V4], node_port()), &["1", "r"]),
        one("a NodePort for two protocols", web(renamed(30777)), &["1"]),
        World::new("two slices with different ports", two_slices),
        one("headless", web(headless), &["1"]),
        one("ExternalName", web(json!({ "type": "ExternalName", "externalName": "example.org" })), &["1"]),
        one("another proxy", labelled(web(node_port()), foreign), &["1"]),
        one("a headless label", labelled(web(node_port()), "service.kubernetes.io/headless"), &["1"]),
        World::new("slices of another proxy", with_foreign_slices),
        World::new("slices without a Service", slices("a", &["1"])),
        one("a load balancer that is a proxy", balancer(json!({}), Some("Proxy")), &["1", "r"]),
        one(
            "an external IP that is the balancer's",
            balancer(
                json!({ "externalIPs": BALANCER,
            "loadBalancerSourceRanges": ["192.0.2.2/32", "fd00:9::2/128"] }),
                None,
            ),
            &["1", "r"],
        ),
        World::new(
            "two Services",
            two.into_iter().chain(slices("a", &["1"])).chain(slices("b", &["2", "r"])),
        ),
        one("no session affinity again", web(node_port()), &["1", "2", "3", "r", "n", "o"]),
    ]
}

/// The world of [`differences`](crate::differences).
fn reused_address() -> World {
    let endpoints = |words: &str| IpFamily::ALL.map(|family| endpoint(family, words));
    let mut objects = vec![service("a", 1, &[IpFamily::V4], json!({}))];
    let [old, new] = [endpoints("3 gone"), endpoints("3 on=m")];
    objects.push(slice("a", "old", IpFamily::V4, 8080, &old[..1]));
    objects.push(slice("a", "new", IpFamily::V4, 8080, &new[..1]));
    World::new("an address of a pod that is gone belongs to a new pod", objects)
}

pub fn worlds() -> Vec<World> {
    let parts =
        [policies(), sources(), topology(), conditions(), affinity(), shapes(), vec![reused_address()]];
    parts.into_iter().flatten().collect()
}
