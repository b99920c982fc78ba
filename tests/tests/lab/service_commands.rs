//! What `podwire service` says about the Services of a lab, and every error of its commands.

use std::collections::BTreeSet;
use std::process::Output;

use podwire_tests::{json_problems, podwire, subcommands};
use serde_json::{json, Value};

use super::laboratory::{text, Laboratory};
use super::policies::TempDir;
use super::services::{addresses, PODS, SERVICES};

/// A Service whose slice is written, with endpoints in all states, and a load balancer with source ranges.
const STATES: &str = "
apiVersion: v1
kind: Service
metadata: {name: states, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.5
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: [203.0.113.0/24]
  ports: [{name: http, port: 80, nodePort: 30085}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.5}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: states-1, namespace: shop, labels: {kubernetes.io/service-name: states}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.99.1], nodeName: n2}
- {addresses: [10.244.99.2], nodeName: n2, conditions: {ready: false, serving: false}}
- {addresses: [10.244.99.3], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.99.4], nodeName: n2, conditions: {ready: false, serving: false, terminating: true}}
";

/// `podwire service WORDS` on a node.
fn service(lab: &Laboratory, node: &str, words: &[&str]) -> Output {
    lab.run(&[&["exec", node, "--", &podwire(), "service"], words].concat())
}

pub fn service_json(lab: &Laboratory, node: &str, words: &[&str]) -> Value {
    let output = service(lab, node, &[words, &["--json"]].concat());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{words:?}: {error}: {}{}", text(&output.stdout), text(&output.stderr))
    });
    let problems = json_problems(&words.join(" "), &value);
    assert!(problems.is_empty(), "{problems:?}");
    value
}

#[test]
fn podwire_service_says_what_the_kernel_has() {
    let dir = TempDir::new();
    for (file, content) in [("pods.yaml", PODS), ("services.yaml", SERVICES), ("states.yaml", STATES)] {
        dir.write(file, content);
    }
    let lab = Laboratory::up(&["--nodes", "2", "--pods", "0", "--services", dir.path()]);
    lists(&lab);
    shows(&lab);
    explains(&lab);
    refuses(&lab);
    says_that_there_is_no_route(&lab);
    let tested = ["list", "show", "explain"].map(String::from);
    assert_eq!(subcommands(&["service"]), BTreeSet::from(tested));
}

/// The flag for the objects that the agents read.
const SOURCE: &str = "files:/var/lib/podwire/lab/services";

fn lists(lab: &Laboratory) {
    let web = addresses(lab, "shop/web");
    let listed = service_json(lab, "n2", &["list"]);
    let all = listed["services"].as_array().expect("services");
    let of = |name: &str| all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{listed}"));
    let port = json!({ "name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080 });
    assert_eq!(
        of("web"),
        &json!({ "namespace": "shop", "name": "web", "type": "NodePort", "ips": web, "servicePorts": [port],
            "endpoints": 1, "localEndpoints": 0, "problems": [] })
    );
    assert_eq!(of("none")["problems"], json!(["no endpoint: connections are refused"]));
    assert_eq!((&of("states")["type"], &of("states")["localEndpoints"]), (&json!("external"), &json!(1)));
    let source = ["list", "--services", SOURCE];
    let listed = service_json(lab, "n1", &source);
    let types: Vec<&Value> =
        listed["services"].as_array().expect("services").iter().map(|one| &one["type"]).collect();
    assert_eq!(types, ["ClusterIP", "LoadBalancer", "NodePort"]);
    let said = text(&service(lab, "n1", &["list"]).stdout);
    assert!(said.starts_with("NAMESPACE  NAME    TYPE") && said.contains("80:30080/TCP  1/1"), "{said}");
    assert!(said.contains("problem: Service shop/none: no endpoint"), "{said}");
}

fn shows(lab: &Laboratory) {
    let shown = service_json(lab, "n1", &["show", "shop/states", "--services", SOURCE]);
    let cluster = &shown["frontends"][0];
    assert_eq!((&cluster["kind"], &cluster["affinitySeconds"]), (&json!("cluster IP"), &json!(10800)));
    let endpoint = json!({ "ip": "10.244.99.1", "port": 8080, "local": false, "reason": "ready" });
    assert_eq!(cluster["endpoints"], json!([endpoint]));
    let reasons: Vec<&Value> =
        cluster["leftOut"].as_array().expect("left out").iter().map(|one| &one["reason"]).collect();
    assert_eq!(
        reasons,
        ["not ready", "terminating, and other endpoints are ready", "terminating and no longer serving"]
    );
    let balancer = &shown["frontends"][1];
    assert_eq!((&balancer["kind"], &balancer["localEndpoints"]), (&json!("load balancer"), &json!([])));
    assert_eq!(balancer["sourceRanges"], json!(["203.0.113.0/24"]));
    assert_eq!(
        balancer["refusal"],
        "dropped from clients outside this node: only other nodes have endpoints"
    );
    // Without the source there are no reasons, and the kind of the address is not known.
    let shown = service_json(lab, "n1", &["show", "shop/states"]);
    let kinds: Vec<&Value> =
        shown["frontends"].as_array().expect("frontends").iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["cluster IP", "NodePort", "external address"]);
    assert_eq!(shown["frontends"][0]["endpoints"][0]["reason"], Value::Null);
    let said = text(&service(lab, "n2", &["show", "shop/states", "--services", SOURCE]).stdout);
    for words in [
        "Service shop/states, LoadBalancer",
        "TCP 10.96.0.5:80: cluster IP, port http",
        "  endpoint 10.244.99.1:8080: on this node, ready",
        "  left out 10.244.99.2:8080: not ready",
        "  for other clients:\n    endpoint 10.244.99.1:8080",
        "  session affinity: a client keeps its endpoint for 10800 s",
        "  only for clients in 203.0.113.0/24",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = text(&service(lab, "n1", &["show", "shop/none"]).stdout);
    assert!(said.contains("  refused: no node has an endpoint\n"), "{said}");
}

/// From, to, exit status, and what the text contains.
fn explains(lab: &Laboratory) {
    let wrong: Vec<String> = [
        ("shop/client", "shop/web:http", 0, "it sees the client's address"),
        (
            "shop/client",
            "shop/web:30080",
            0,
            "because the address is external and its traffic policy is Cluster",
        ),
        ("shop/web-1", "shop/web:80", 0, "because the endpoint is the client itself"),
        ("node", "shop/web:80", 0, "node (192.168.10.11) -> TCP 10.96.0.10:80 of shop/web:http: forwarded"),
        ("outside", "shop/web:80", 0, "because the client is not a pod of this node"),
        (
            "node",
            "shop/none",
            1,
            "the Service has no endpoint on any node; the client gets ICMP port unreachable",
        ),
        ("shop/client", "shop/web:81", 1, "the Service with this cluster IP does not have the port"),
        ("shop/client", "10.96.200.1:80", 1, "dropped\n  no Service has this address of a ServiceCIDR"),
        ("shop/client", "8.8.8.8:53/UDP", 0, "no Service has this address and port"),
        ("203.0.113.9", "198.51.100.5:80", 1, "only other nodes have endpoints; the client gets no answer"),
        ("203.0.113.9", "198.51.100.5:80", 1, "source ranges 203.0.113.0/24: admit the client"),
        ("192.0.2.9", "198.51.100.5:80", 1, "loadBalancerSourceRanges do not have the client"),
        ("outside", "198.51.100.5:80", 1, "name an address with --from"),
        ("shop/client", "shop/states:http", 1, "session affinity: the client keeps its endpoint for 10800 s"),
    ]
    .into_iter()
    .filter_map(|(from, to, status, says)| {
        let output = service(lab, "n1", &["explain", "--from", from, to]);
        let said = text(&output.stdout);
        let is_right = output.status.code() == Some(status) && said.contains(says);
        (!is_right).then(|| format!("{from} {to}: {:?} {said}{}", output.status, text(&output.stderr)))
    })
    .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let words = ["explain", "--from", "shop/client", "shop/states:80", "--services", SOURCE];
    let explained = service_json(lab, "n1", &words);
    let one = &explained["connections"][0];
    assert_eq!((&one["verdict"], &one["service"]), (&json!("forwarded"), &json!("shop/states:http")));
    assert_eq!(one["source"], lab.address("shop/client"));
    let endpoint = json!({ "ip": "10.244.99.1", "port": 8080, "local": false, "masqueraded": false,
        "masqueradeReason": null });
    assert_eq!(one["endpoints"], json!([endpoint]));
    assert_eq!(one["leftOut"][0], json!({ "ip": "10.244.99.2", "port": 8080, "reason": "not ready" }));
}

/// Every mistake has an error with its cause and what to do.
fn refuses(lab: &Laboratory) {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["show", "shop/wbe"], "this node serves no Service shop/wbe", "similar: shop/web"),
        (&["show", "web"], "this node serves no Service default/web", "similar: shop/web"),
        (&["show", "a/b/c"], "\"a/b/c\" is not the name of a Service", "NAMESPACE/NAME"),
        (
            &["explain", "--from", "node", "shop/elsewhere"],
            "no Service shop/elsewhere",
            "podwire service list",
        ),
        (
            &["explain", "--from", "node", "shop/web:htp"],
            "Service shop/web has no port \"htp\"",
            "its ports are http",
        ),
        (&["explain", "--from", "node", "10.96.0.10"], "10.96.0.10 has no port", "ADDRESS:PORT"),
        (&["explain", "--from", "node", "shop/web:80/ip"], "\"ip\" is not TCP, UDP or SCTP", "/UDP"),
        (
            &["explain", "--from", "shop/clent", "shop/web"],
            "no pod shop/clent is attached",
            "similar: shop/client",
        ),
        (
            &["explain", "--from", "fd00::9", "shop/none"],
            "fd00::9 has no address of the family of shop/none",
            "",
        ),
        (&["list", "--services", "etcd"], "is not a source: write kubernetes or files:DIRECTORY", ""),
        (&["list", "--services", "files:/nowhere"], "/nowhere", ""),
    ];
    let mut wrong = Vec::new();
    for (words, why, hint) in cases {
        let output = service(lab, "n1", words);
        let said = text(&output.stderr);
        let status = if words[0] == "explain" { 2 } else { 1 };
        if output.status.code() != Some(status) || !said.contains(why) || !said.contains(hint) {
            wrong.push(format!("{words:?}: {:?} {said}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let headless =
        "apiVersion: v1\nkind: Service\nmetadata: {name: direct, namespace: shop}\nspec: {clusterIP: None}\n";
    lab.sh("n1", &format!("mkdir /run/objects; printf '{headless}' > /run/objects/a.yaml"));
    let said = service(lab, "n1", &["show", "shop/direct", "--services", "files:/run/objects"]);
    assert!(text(&said.stderr).contains("headless"), "{}", text(&said.stderr));
    // The router has no agent.
    for verb in [&["list"][..], &["show", "shop/web"], &["explain", "--from", "node", "shop/web"]] {
        let said = text(&service(lab, "router", verb).stderr);
        assert!(said.contains("no agent serves Services here") && said.contains("--services"), "{said}");
    }
}

/// A process needs some route to an address, although nftables would change it.
fn says_that_there_is_no_route(lab: &Laboratory) {
    lab.sh("n2", "ip route del default");
    let output = service(lab, "n2", &["explain", "--from", "node", "10.96.0.5:80"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no route\n  the kernel has no route to 10.96.0.5, so connect() fails"), "{said}");
}
