//! `--services` in a whole agent: from files, or from a real kube-apiserver, to the kernel and to the status. Needs root, `ip`
//! and `nft`; without the programs of Kubernetes the second test is left out.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_agent::flannel::{self, Settings};
use podwire_agent::{service_objects, FastPathMode, ServicesSettings};
use podwire_http_server::Listen;
use podwire_kubernetes::ClientOptions;
use podwire_netlink::sys;
use podwire_policy_agent::Source;
use podwire_subnets::StaticList;
use podwire_test_servers::{kubernetes_programs, KubeApiServer};
use serde_json::{json, Value};

const PORT: u16 = 9911;

const NODES: &str = r#"{"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
    "nodes": [{"name": "n", "ranges": ["10.244.7.0/24"], "underlay": ["192.0.2.1"]}]}"#;

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

/// Runs a command line.
fn run(line: &str) -> String {
    let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The response to a request of the agent's HTTP server; empty if it does not answer yet.
fn get(path: &str) -> String {
    get_from("127.0.0.1", PORT, path)
}

fn get_from(ip: &str, port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect((ip, port)) else { return String::new() };
    let mut text = String::new();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let _ = stream.read_to_string(&mut text);
    text
}

/// Waits for a status of the Services.
fn wait(wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let response = get("/status");
        let status: Value = response
            .split_once("\r\n\r\n")
            .and_then(|(_, body)| serde_json::from_str(body).ok())
            .unwrap_or_default();
        if wanted(&status["services"]) {
            return status["services"].clone();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{response}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn settings(dir: &Path, source: Source) -> Settings {
    Settings {
        subnet_file: dir.join("subnet.env"),
        readiness_file: dir.join("readiness"),
        plugin_calls_socket: dir.join("calls.sock"),
        host_local_dir: dir.join("networks"),
        health: Some(Listen { ip: None, port: PORT }),
        fast_path: FastPathMode::Off,
        services: Some(ServicesSettings {
            source,
            node_port_networks: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            healthz: Some("0.0.0.0:10256".parse().unwrap()),
            cleanup_kube_proxy: true,
        }),
        ..Settings::new("n")
    }
}

/// What the files say is in the kernel, in the status and in the metrics, and follows the files.
fn check(services: PathBuf) {
    let status = wait(|services| services["frontends"] == 2);
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
    wait(|_| run("nft list map inet podwire_services frontends_4").contains("192.0.2.1 . tcp . 30081"));
    std::fs::remove_file(services.join("a.yaml")).unwrap();
    wait(|services| services["frontends"] == 0);
}

/// Runs `check` beside an agent on a new node whose Services come from a source.
fn with_agent(
    name: &str,
    prepare: impl FnOnce(&Path) -> (Source, Box<dyn FnOnce() + Send>) + Send + 'static,
) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let dir = std::env::temp_dir().join(format!("podwire-services-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("nodes.json"), NODES).unwrap();
    let inside = {
        let dir = dir.clone();
        move || {
            sys::new_network_namespace().unwrap();
            run("ip link set lo up; ip link add uplink type veth peer name other; ip link set other up; \
                 ip link set uplink up; ip addr add 192.0.2.1/24 dev uplink; ip route add default via 192.0.2.2");
            let (services, check) = prepare(&dir);
            let checked = std::thread::spawn(check);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let source = podwire_subnets::Source::Static(StaticList::new(dir.join("nodes.json")));
            runtime.block_on(async {
                let agent = flannel::run(settings(&dir, services), source);
                let done = tokio::task::spawn_blocking(move || checked.join());
                tokio::select! {
                    ended = agent => panic!("the agent ended: {ended:?}"),
                    outcome = done => outcome.unwrap().unwrap(),
                }
            });
        }
    };
    let outcome = std::thread::spawn(inside).join();
    let _ = std::fs::remove_dir_all(&dir);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn an_agent_serves_the_services_in_files() {
    with_agent("files", |dir| {
        let services = dir.join("services");
        std::fs::create_dir_all(&services).unwrap();
        std::fs::write(services.join("a.yaml"), SERVICE).unwrap();
        (Source::Files(services.clone()), Box::new(move || check(services)))
    });
}

/// The server is on the node too: its processes inherit the namespace.
#[test]
fn an_agent_serves_the_services_of_an_api_server() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: {why}"),
    };
    with_agent("kubernetes", move |_| {
        let server = KubeApiServer::start(&programs);
        server.grant("services", &documented_rules());
        server.until("the user has its rights", || {
            let watch =
                |group: &str, resource: &str| json!({"group": group, "resource": resource, "verb": "watch"});
            server.may("resourceAttributes", watch("discovery.k8s.io", "endpointslices"))
        });
        let client = ClientOptions::from_kubeconfig(Some(server.kubeconfig("podwire")));
        let source = Source::Kubernetes(client);
        (source.clone(), Box::new(move || check_api(server, &source)))
    });
}

/// The rules in docs/services.md.
fn documented_rules() -> Value {
    let page = include_str!("../../../docs/services.md");
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let objects = runtime.block_on(service_objects(source, "n")).unwrap();
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
    wait(|services| services["synced"] == true && has(&frontend) && has("10.244.7.2 . 8080"));
    let objects = listed(source);
    for object in ["Service web", "EndpointSlice web-1", "Node n", "ServiceCIDR kubernetes"] {
        assert!(objects.iter().any(|one| one == object), "{object}: {objects:?}");
    }
    let replace = |server: &KubeApiServer, address: &str| {
        server.patch(&format!("{SLICES}/web-1"), &json!({"endpoints": [{"addresses": [address]}]}));
    };
    replace(&server, "10.244.7.3");
    wait(|_| has("10.244.7.3 . 8080") && !has("10.244.7.2 . 8080"));
    check_health(&server, &format!("{SLICES}/web-1"));
    // Without the server the Services stay; with it, changes arrive again.
    server.stop();
    std::thread::sleep(Duration::from_secs(1));
    assert!(has(&frontend) && has("10.244.7.3 . 8080"));
    server.serve();
    replace(&server, "10.244.7.4");
    wait(|_| has("10.244.7.4 . 8080"));
    server.request("DELETE", "/api/v1/namespaces/shop/services/web", None).unwrap();
    wait(|_| !has(&frontend));
}
