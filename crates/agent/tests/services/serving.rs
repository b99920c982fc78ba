//! The Services of files, and of an API server.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_agent::{service_objects, ServicesSettings};
use podwire_kubernetes::ClientOptions;
use podwire_policy_agent::Source;
use podwire_test_servers::{kubernetes_programs, KubeApiServer};
use serde_json::{json, Value};

use super::testbed::{get, get_from, on_node, run, runtime, wait, with_agent};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.1, type: NodePort, externalIPs: [127.0.0.1], ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.7.2], nodeName: n}]
";

/// Waits for a status of the Services.
fn wait_services(wanted: impl Fn(&Value) -> bool) -> Value {
    wait(|status| wanted(&status["services"]))["services"].clone()
}

fn services(source: Source) -> Option<ServicesSettings> {
    Some(ServicesSettings {
        source,
        node_port_networks: Some(vec!["192.0.2.0/24".parse().unwrap()]),
        healthz: Some("0.0.0.0:10256".parse().unwrap()),
        cleanup_kube_proxy: true,
    })
}

/// What the files say is in the kernel, in the status and in the metrics, and follows the files.
fn check(services: PathBuf) {
    let status = wait_services(|services| services["frontends"] == 2);
    assert_eq!(
        (&status["synced"], &status["objectProblems"]["count"]),
        (&Value::from(true), &Value::from(1))
    );
    let problem = status["objectProblems"]["first"][0].as_str().unwrap();
    assert!(problem.starts_with("Service shop/web: externalIPs"), "{problem}");
    let table = run("nft list table inet podwire_services");
    for element in
        ["10.96.0.1 . tcp . 80", "192.0.2.1 . tcp . 30080", "10.244.7.2 . 8080", "10.244.7.0/24", "shop/web"]
    {
        assert!(table.contains(element), "{element} is not in {table}");
    }
    let metrics = get("/metrics");
    for line in [
        "podwire_agent_services_frontends 2",
        "kubeproxy_sync_proxy_rules_service_changes_total 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\"} 0",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} is not in {metrics}");
    }
    assert!(metrics.ends_with("# EOF\n") && metrics.matches("# EOF").count() == 1, "{metrics}");
    assert!(!metrics.contains("\nkubeproxy_sync_proxy_rules_duration_seconds_count 0\n"), "{metrics}");
    // An invalid file changes nothing.
    std::fs::write(services.join("b.yaml"), "{").unwrap();
    std::fs::write(services.join("a.yaml"), SERVICE.replace("nodePort: 30080", "nodePort: 30081")).unwrap();
    std::fs::remove_file(services.join("b.yaml")).unwrap();
    wait_services(|_| {
        run("nft list map inet podwire_services frontends_4").contains("192.0.2.1 . tcp . 30081")
    });
    std::fs::remove_file(services.join("a.yaml")).unwrap();
    wait_services(|services| services["frontends"] == 0);
}

#[test]
fn an_agent_serves_the_services_in_files() {
    on_node("files", |dir| {
        let files = dir.join("services");
        std::fs::write(files.join("a.yaml"), SERVICE).unwrap();
        with_agent(dir, services(Source::Files(files.clone())), move || check(files));
    });
}

/// The server is on the node too: its processes inherit the namespace.
#[test]
fn an_agent_serves_the_services_of_an_api_server() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: {why}"),
    };
    on_node("kubernetes", move |dir| {
        let server = KubeApiServer::start(&programs);
        server.grant("services", &documented_rules());
        server.until("the user has its rights", || {
            let watch =
                |group: &str, resource: &str| json!({"group": group, "resource": resource, "verb": "watch"});
            server.may("resourceAttributes", watch("discovery.k8s.io", "endpointslices"))
        });
        let client = ClientOptions::from_kubeconfig(Some(server.kubeconfig("podwire")));
        let source = Source::Kubernetes(client);
        with_agent(dir, services(source.clone()), move || check_api(server, &source));
    });
}

/// The rules in docs/services.md.
fn documented_rules() -> Value {
    let page = include_str!("../../../../docs/services.md");
    let block = page.split("```json").nth(1).and_then(|rest| rest.split("```").next());
    serde_json::from_str(block.expect("a block of JSON in docs/services.md")).unwrap()
}

/// The elements of the maps, with `nft`.
fn elements() -> String {
    run("nft list map inet podwire_services frontends_4; nft list map inet podwire_services endpoints_4")
}

/// Waits for the beginning of a response from a health port.
fn wait_for(port: u16, path: &str, begin: &str) {
    let begun = Instant::now();
    loop {
        let response = get_from("192.0.2.1", port, path);
        if response.starts_with(begin) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{port}{path}: {response}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A metric's value.
fn metric(name: &str) -> f64 {
    let metrics = get("/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in {metrics}"))
}

/// The Node decides about `/healthz`, and a load balancer's Service has a port of its own.
fn check_health(server: &KubeApiServer, slice: &str) {
    wait_for(10256, "/healthz", "HTTP/1.1 200 ");
    let taint = |taints: Value| server.patch("/api/v1/nodes/n", &json!({"spec": {"taints": taints}}));
    taint(json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]));
    wait_for(10256, "/healthz", "HTTP/1.1 503 ");
    wait_for(10256, "/livez", "HTTP/1.1 200 ");
    taint(json!([]));
    wait_for(10256, "/healthz", "HTTP/1.1 200 ");
    let balanced = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}});
    server.patch("/api/v1/namespaces/shop/services/web", &balanced);
    let service = server.request("GET", "/api/v1/namespaces/shop/services/web", None).unwrap();
    let port = u16::try_from(service["spec"]["healthCheckNodePort"].as_u64().unwrap()).unwrap();
    wait_for(port, "/", "HTTP/1.1 503 ");
    assert_eq!(metric("kubeproxy_network_programming_duration_seconds_count"), 0.0);
    let now =
        String::from_utf8(Command::new("date").args(["-u", "+%FT%T.%NZ"]).output().unwrap().stdout).unwrap();
    let changed = json!({
        "metadata": {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": now.trim()}},
        "endpoints": [{"addresses": ["10.244.7.3"], "nodeName": "n"}],
    });
    server.patch(slice, &changed);
    wait_for(port, "/", "HTTP/1.1 200 ");
    assert_eq!(metric("kubeproxy_network_programming_duration_seconds_count"), 1.0);
    assert!(metric("kubeproxy_network_programming_duration_seconds_sum") > 0.0);
}

/// The kinds and names of the objects that a command reads.
fn listed(source: &Source) -> Vec<String> {
    let objects = runtime().block_on(service_objects(source, "n")).unwrap();
    let name = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    objects.iter().map(name).collect()
}

fn check_api(mut server: KubeApiServer, source: &Source) {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    let create = |server: &KubeApiServer, path: &str, object: Value| {
        server.request("POST", path, Some(&object)).unwrap()
    };
    create(&server, "/api/v1/nodes", json!({"metadata": {"name": "n"}}));
    create(&server, "/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    let service = create(&server, "/api/v1/namespaces/shop/services", service);
    let frontend = format!("{} . tcp . 80", service["spec"]["clusterIP"].as_str().unwrap());
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.244.7.2"]}],
    });
    create(&server, SLICES, slice);
    let has = |text: &str| elements().contains(text);
    wait_services(|services| services["synced"] == true && has(&frontend) && has("10.244.7.2 . 8080"));
    let objects = listed(source);
    for object in ["Service web", "EndpointSlice web-1", "Node n", "ServiceCIDR kubernetes"] {
        assert!(objects.iter().any(|one| one == object), "{object}: {objects:?}");
    }
    let replace = |server: &KubeApiServer, address: &str| {
        server.patch(&format!("{SLICES}/web-1"), &json!({"endpoints": [{"addresses": [address]}]}));
    };
    replace(&server, "10.244.7.3");
    wait_services(|_| has("10.244.7.3 . 8080") && !has("10.244.7.2 . 8080"));
    check_health(&server, &format!("{SLICES}/web-1"));
    // Without the server the Services stay; with it, changes arrive again.
    server.stop();
    std::thread::sleep(Duration::from_secs(1));
    assert!(has(&frontend) && has("10.244.7.3 . 8080"));
    server.serve();
    replace(&server, "10.244.7.4");
    wait_services(|_| has("10.244.7.4 . 8080"));
    server.request("DELETE", "/api/v1/namespaces/shop/services/web", None).unwrap();
    wait_services(|_| !has(&frontend));
}
