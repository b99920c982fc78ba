//! How slices are joined, and which objects are excluded.

use podwire_services::{Compiler, Kind, NodeInput, ObjectName, Protocol};
use serde_json::{json, Value};

use crate::cluster::{check, service, slice, slice_of, web, TWO};

#[test]
fn slices_are_joined() {
    let named = |name: &str, port: u16, endpoints: &[&str]| {
        slice_of("web", name, json!({ "name": "http", "port": port }), endpoints)
    };
    let web =
        || service("web", json!({ "clusterIP": "10.96.0.1", "ports": [{ "name": "http", "port": 80 }] }));
    let mut terminating = named("b", 8080, &["-10.0.0.1@m"]);
    terminating["endpoints"][0]["conditions"] =
        json!({ "ready": false, "serving": true, "terminating": true });
    let mut without_port = named("c", 8080, &["10.0.0.9"]);
    without_port["ports"] = json!([{ "name": "http", "port": null }, { "name": "http", "port": 0 }]);
    let mut fqdn = named("d", 8080, &["10.0.0.9"]);
    fqdn["addressType"] = "FQDN".into();
    let mut empty = named("e", 8080, &[]);
    (empty["ports"], empty["endpoints"]) = (Value::Null, Value::Null);
    let mut second = named("f", 8080, &["10.0.0.1"]);
    second["endpoints"][0]["addresses"] = json!(["10.0.0.1", "10.0.0.5"]);
    check(&[
        (
            "several slices, and a target port with two numbers",
            vec![web(), named("a", 8080, &["10.0.0.1", "10.0.0.2"]), named("b", 8081, &["10.0.0.1", "10.0.0.3"])],
            &["TCP 10.96.0.1:80 x/web:http ClusterIp [10.0.0.1:8080,10.0.0.1:8081,10.0.0.2:8080,10.0.0.3:8081]"],
        ),
        (
            "an address of a new pod whose old pod is terminating",
            vec![web(), terminating, named("a", 8080, &["10.0.0.1@n"])],
            &["TCP 10.96.0.1:80 x/web:http ClusterIp [10.0.0.1:8080]"],
        ),
        (
            "slices without ports, with host names, and without anything",
            vec![web(), without_port, fqdn, empty],
            &["TCP 10.96.0.1:80 x/web:http ClusterIp [] Reject"],
        ),
        (
            "only the first address of an endpoint",
            vec![web(), second],
            &["TCP 10.96.0.1:80 x/web:http ClusterIp [10.0.0.1:8080]"],
        ),
    ]);
}

#[test]
fn labels_exclude_services_and_slices() {
    let labelled = |mut object: Value, label: &str| {
        object["metadata"]["labels"][label] = "".into();
        object
    };
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        check(&[
            ("a Service", vec![labelled(web(json!({})), label), slice(TWO)], &[]),
            (
                "a slice",
                vec![web(json!({})), labelled(slice(TWO), label)],
                &["TCP 10.96.0.1:80 x/web ClusterIp [] Reject"],
            ),
        ]);
    }
}

#[test]
fn an_endpoint_names_its_services() {
    let mut compiler = Compiler::new(NodeInput::default());
    let names = compiler.endpoint_services();
    let spec = |ip: &str| json!({ "clusterIP": ip, "ports": [{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "http", "port": 80 }] });
    let slice = |service: &str, addr: &str| {
        let mut slice = slice_of(service, service, json!({ "name": "http", "port": 8080 }), &[addr]);
        slice["ports"] = json!([{ "name": "http", "port": 8080 }, { "name": "dns", "port": 8080, "protocol": "UDP" },
            { "name": "other", "port": 9090 }]);
        slice
    };
    let objects =
        [service("a", spec("10.96.0.1")), service("b", spec("10.96.0.2")), slice("a", "10.0.0.1@m")];
    objects.into_iter().chain([slice("b", "-10.0.0.1@m")]).for_each(|object| compiler.put(object));
    compiler.desired();
    let of = |protocol, addr: &str| names.of(protocol, addr.parse().unwrap()).join(" ");
    // Not ready, and on another node: it is an endpoint.
    assert_eq!(of(Protocol::Tcp, "10.0.0.1:8080"), "x/a:http x/b:http");
    assert_eq!(of(Protocol::Udp, "10.0.0.1:8080"), "x/a:dns x/b:dns");
    for (protocol, addr) in [
        (Protocol::Sctp, "10.0.0.1:8080"),
        (Protocol::Tcp, "10.0.0.1:8081"),
        (Protocol::Tcp, "10.0.0.2:8080"),
        // The Services do not have this port.
        (Protocol::Tcp, "10.0.0.1:9090"),
    ] {
        assert_eq!(of(protocol, addr), "", "{protocol} {addr}");
    }
    compiler.put(slice("b", "10.0.0.2@m"));
    compiler.desired();
    assert_eq!(of(Protocol::Tcp, "10.0.0.1:8080"), "x/a:http");
    assert_eq!(of(Protocol::Tcp, "10.0.0.2:8080"), "x/b:http");
    compiler.objects().remove(Kind::Service, &ObjectName { namespace: "x".into(), name: "a".into() });
    compiler.objects().clear(Kind::EndpointSlice);
    compiler.desired();
    assert_eq!(of(Protocol::Tcp, "10.0.0.1:8080"), "");
    assert_eq!(of(Protocol::Tcp, "10.0.0.2:8080"), "");
}
