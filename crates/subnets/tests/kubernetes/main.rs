//! The Kubernetes source against the stand-in API server of podwire-test-servers.

use std::path::PathBuf;
use std::time::Duration;

use podwire_kubernetes::ClientOptions;
use podwire_subnets::{
    Backend, Error, Health, Kubernetes, KubernetesOptions, Registration, Severity, Snapshot, Source,
    Underlay, Vtep, Watch,
};
use podwire_test_servers::StandInApiServer;
use serde_json::{json, Value};

const PREFIX: &str = "flannel.alpha.coreos.com";

/// A source for node `own`, with its own net-conf.json.
struct Agent {
    dir: PathBuf,
    options: KubernetesOptions,
    source: Kubernetes,
}

impl Agent {
    async fn of(server: &StandInApiServer, name: &str, conf: &str) -> Agent {
        let dir = std::env::temp_dir().join(format!("podwire-kubernetes-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("net-conf.json"), conf).unwrap();
        let client = ClientOptions { api_url: Some(server.url.clone()), kubeconfig: None };
        let net_conf = dir.join("net-conf.json");
        let options = KubernetesOptions { client, net_conf, ..KubernetesOptions::new("own") };
        let source = Kubernetes::new(&options).await.unwrap();
        Agent { dir, options, source }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

const V4: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
const BOTH: &str = r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/48", "Backend": {"Type": "vxlan"}}"#;

/// What flannel writes on node number N.
fn flannels(number: u8) -> Value {
    json!({
        format!("{PREFIX}/kube-subnet-manager"): "true",
        format!("{PREFIX}/backend-type"): "vxlan",
        format!("{PREFIX}/backend-data"): format!(r#"{{"VNI":1,"VtepMAC":"c6:00:00:00:00:{number:02x}"}}"#),
        format!("{PREFIX}/public-ip"): format!("192.0.2.{number}"),
    })
}

fn add(server: &StandInApiServer, number: u8) {
    server.put(&format!("n{number}"), flannels(number), &[&format!("10.244.{number}.0/24")]);
}

async fn until(watch: &mut Watch, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut snapshot = watch.latest();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    while !wanted(&snapshot) {
        snapshot = tokio::time::timeout_at(end, watch.changed())
            .await
            .unwrap_or_else(|_| panic!("not within 60 s; the last was {snapshot:?}"));
    }
    snapshot
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.nodes.iter().flat_map(|nodes| nodes.iter().map(|node| node.name.as_str())).collect()
}

fn registration() -> Registration {
    let underlay = Underlay { v4: Some([192, 0, 2, 77].into()), v6: None };
    let backend = Backend::vxlan(Some(Vtep { vni: 1, mac: "c6:00:00:00:00:77".into() }), None);
    Registration { name: "own".into(), underlay, backend, ..Registration::default() }
}

#[tokio::test]
async fn only_nodes_with_flannels_annotations_are_listed() {
    let server = StandInApiServer::start().await;
    add(&server, 1);
    server.put("plain", json!({}), &["10.244.9.0/24"]);
    server.put("odd", flannels(8), &["10.244.8.0/24"]);
    server.put("odd", json!({format!("{PREFIX}/public-ip"): "nonsense"}), &[]);
    let agent = Agent::of(&server, "seen", V4).await;
    let mut watch = Source::Kubernetes(Box::new(agent.source.clone())).watch();
    let (nodes, first) = watch.known().await;
    assert_eq!((names(&first), &first.health), (vec!["n1"], &Health::Current));
    assert_eq!(nodes[0].pod_cidrs.v4.unwrap().to_string(), "10.244.1.0/24");
    assert_eq!(nodes[0].underlay.v4.unwrap().to_string(), "192.0.2.1");
    assert_eq!(nodes[0].backend.vtep().unwrap().mac, "c6:00:00:00:00:01");
    assert_eq!(first.skipped[0].name, "odd");
    assert!(first.skipped[0].reason.contains("public-ip: invalid IPv4 address"), "{:?}", first.skipped);

    add(&server, 2);
    until(&mut watch, |snapshot| names(snapshot) == ["n1", "n2"]).await;
    server.put("plain", flannels(9), &[]);
    until(&mut watch, |snapshot| names(snapshot) == ["n1", "n2", "plain"]).await;
    server.delete("n1");
    until(&mut watch, |snapshot| names(snapshot) == ["n2", "plain"]).await;
    // The same name, another machine, another pod CIDR.
    server.delete("n2");
    server.put("n2", flannels(3), &["10.244.3.0/24"]);
    let again = |snapshot: &Snapshot| {
        let nodes = snapshot.nodes.iter().flat_map(|nodes| nodes.iter());
        nodes
            .into_iter()
            .any(|node| node.name == "n2" && node.pod_cidrs.v4.unwrap().to_string() == "10.244.3.0/24")
    };
    until(&mut watch, again).await;
}

#[tokio::test]
async fn only_metadata_are_watched_and_each_node_is_read_whole_once() {
    let server = StandInApiServer::start().await;
    for number in 1..=3 {
        add(&server, number);
    }
    let agent = Agent::of(&server, "lean", V4).await;
    let mut watch = agent.source.watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 3).await;
    let before = watch.latest().number;
    for _ in 0..5 {
        for number in 1..=3 {
            server.heartbeat(&format!("n{number}"));
        }
    }
    add(&server, 4);
    let seen = until(&mut watch, |snapshot| names(snapshot).len() == 4).await;
    assert_eq!(seen.number, before + 1, "a heartbeat changes nothing");
    assert_eq!(server.count(&["WATCH", "whole"]), 0);
    assert_eq!(server.count(&["GET /api/v1/nodes whole"]), 0);
    assert_eq!(server.count(&["GET /api/v1/nodes/", "whole"]), 4);
    assert_eq!(server.count(&["GET /api/v1/nodes meta"]), 1);
}

#[tokio::test]
async fn many_nodes_are_read_whole_with_one_list() {
    let server = StandInApiServer::start().await;
    for number in 1..=30 {
        add(&server, number);
    }
    let agent = Agent::of(&server, "many", V4).await;
    let mut watch = agent.source.watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 30).await;
    assert_eq!(server.count(&["GET /api/v1/nodes whole"]), 1);
    assert_eq!(server.count(&["GET /api/v1/nodes/"]), 0);
}

#[tokio::test]
async fn a_node_is_listed_when_its_pod_cidr_is_assigned_after_its_annotations() {
    let server = StandInApiServer::start().await;
    server.put("late", flannels(5), &[]);
    let agent = Agent::of(&server, "late", V4).await;
    let mut watch = agent.source.watch();
    let first = until(&mut watch, |snapshot| snapshot.nodes.is_some()).await;
    assert_eq!(first.skipped[0].reason, "pod cidr not assigned");
    server.put("late", json!({}), &["10.244.5.0/24"]);
    let seen = until(&mut watch, |snapshot| names(snapshot) == ["late"]).await;
    assert!(seen.skipped.is_empty());
}

#[tokio::test]
async fn after_410_gone_all_nodes_are_listed_again() {
    let server = StandInApiServer::start().await;
    for number in 1..=3 {
        add(&server, number);
    }
    let agent = Agent::of(&server, "gone", V4).await;
    let mut watch = agent.source.watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 3).await;
    server.cut();
    let stale = until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    assert_eq!(names(&stale).len(), 3, "what is known stays known");
    while let Ok(later) = tokio::time::timeout(Duration::from_millis(700), watch.changed()).await {
        assert!(matches!(later.health, Health::Stale { .. }), "{}", later.health);
    }
    server.delete("n2");
    add(&server, 9);
    server.compact();
    server.restore();
    let back = until(&mut watch, |snapshot| names(snapshot).contains(&"n9")).await;
    assert_eq!((names(&back), &back.health), (vec!["n1", "n3", "n9"], &Health::Current));
    assert_eq!(server.count(&["GET /api/v1/nodes meta"]), 2);
    assert_eq!(
        server.count(&["GET /api/v1/nodes/", "whole"]),
        4,
        "pod_cidrs that are known are not read again"
    );
}

#[tokio::test]
async fn a_bookmark_avoids_a_list() {
    let server = StandInApiServer::start().await;
    add(&server, 1);
    let agent = Agent::of(&server, "bookmark", V4).await;
    let mut watch = agent.source.watch();
    until(&mut watch, |snapshot| names(snapshot).len() == 1).await;
    server.bookmark();
    // An event after the bookmark shows that the bookmark was processed.
    add(&server, 2);
    until(&mut watch, |snapshot| names(snapshot).len() == 2).await;
    server.cut();
    until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    server.compact();
    server.restore();
    let back = until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    assert_eq!(names(&back).len(), 2, "whole again, though nothing has changed");
    add(&server, 3);
    until(&mut watch, |snapshot| names(snapshot).len() == 3).await;
    assert_eq!(server.count(&["GET /api/v1/nodes meta"]), 1);
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_servers_message() {
    let server = StandInApiServer::start().await;
    server.state().refuse = Some(403);
    let agent = Agent::of(&server, "refusal", V4).await;
    let mut watch = agent.source.watch();
    let stale = until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    assert!(stale.nodes.is_none());
    let text = stale.health.to_string();
    assert!(
        text.starts_with(r#"kubernetes: list nodes: nodes is forbidden: User "system:serviceaccount:x""#),
        "{text}"
    );
    server.state().refuse = None;
    until(&mut watch, |snapshot| snapshot.health == Health::Current).await;
    let error = agent.source.acquire(&registration()).await.unwrap_err();
    assert!(matches!(error, Error::UnknownNode { .. }), "{error}");
}

#[tokio::test]
async fn a_node_waits_for_its_pod_cidr_and_writes_flannels_annotations() {
    let server = StandInApiServer::start().await;
    let agent = Agent::of(&server, "acquire", V4).await;
    server.put("own", json!({"kept": "yes"}), &[]);
    let error = agent.source.acquire(&registration()).await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            r#"node "own" pod cidr not assigned: kube-controller-manager needs --allocate-node-cidrs"#
        ),
        "{error}"
    );
    let waiting = {
        let source = agent.source.clone();
        tokio::spawn(async move { source.wait_for_pod_cidr().await })
    };
    server.heartbeat("own");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    server.put("own", json!({}), &["10.244.77.0/24"]);
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().unwrap();

    assert_eq!(agent.source.find_previous().await.unwrap(), None);
    let node = agent.source.acquire(&registration()).await.unwrap();
    assert_eq!(node.pod_cidrs.v4.unwrap().to_string(), "10.244.77.0/24");
    let expected = json!({"metadata": {"annotations": {
        "flannel.alpha.coreos.com/backend-data": r#"{"VNI":1,"VtepMAC":"c6:00:00:00:00:77"}"#,
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/public-ip": "192.0.2.77",
    }}});
    assert_eq!(server.state().patches, [expected]);
    assert_eq!(
        server.count(&["PATCH /api/v1/nodes/own/status", "application/strategic-merge-patch+json"]),
        1
    );
    assert_eq!(server.annotation("own", "kept").as_deref(), Some("yes"));
    agent.source.acquire(&registration()).await.unwrap();
    assert_eq!(server.state().patches.len(), 1, "the same again is not written");

    let find_previous = agent.source.find_previous().await.unwrap().unwrap();
    assert_eq!(find_previous, node, "after a restart the device gets its hardware address again");
    server.put("own", json!({format!("{PREFIX}/public-ip-overwrite"): "203.0.113.5", format!("{PREFIX}/node-public-ip"): "198.51.100.1"}), &[]);
    agent.source.acquire(&registration()).await.unwrap();
    assert_eq!(server.annotation("own", &format!("{PREFIX}/public-ip")).as_deref(), Some("203.0.113.5"));
    server.set_internal_ip("own", "192.0.2.7");
    let (requested, internal) = agent.source.own_addresses().await.unwrap();
    assert_eq!(requested, Underlay { v4: Some([198, 51, 100, 1].into()), v6: None });
    assert_eq!(internal, [std::net::IpAddr::from([192, 0, 2, 7])]);
}

#[tokio::test]
async fn both_families_are_required_if_both_are_enabled() {
    let server = StandInApiServer::start().await;
    let agent = Agent::of(&server, "both", BOTH).await;
    server.put("own", json!({}), &["10.244.1.0/24"]);
    let error = agent.source.acquire(&registration()).await.unwrap_err().to_string();
    assert!(error.contains("missing IPv6 address on podCIDRs (10.244.1.0/24)"), "{error}");
    server.delete("own");
    server.put("own", json!({}), &["fd00:244:0:1::/64", "10.245.1.0/24"]);
    let error = agent.source.acquire(&registration()).await.unwrap_err().to_string();
    assert!(error.contains("doesn't contain 10.245.1.0/24 PodCIDR of the \"own\" node"), "{error}");
    server.delete("own");
    server.put("own", json!({}), &["fd00:244:0:1::/64", "10.244.1.0/24"]);
    let underlay = Underlay { v4: Some([192, 0, 2, 77].into()), v6: "2001:db8::77".parse().ok() };
    let vtep = |last: &str| Some(Vtep { vni: 1, mac: format!("c6:00:00:00:00:{last}") });
    let backend = Backend::vxlan(vtep("01"), vtep("02"));
    let node = agent.source.acquire(&Registration { underlay, backend, ..registration() }).await.unwrap();
    assert_eq!(node.pod_cidrs.v6.unwrap().to_string(), "fd00:244:0:1::/64");
    assert_eq!(server.annotation("own", &format!("{PREFIX}/public-ipv6")).as_deref(), Some("2001:db8::77"));
    assert_eq!(
        server.annotation("own", &format!("{PREFIX}/backend-v6-data")).as_deref(),
        Some(r#"{"VNI":1,"VtepMAC":"c6:00:00:00:00:02"}"#)
    );
}

#[tokio::test]
async fn the_condition_is_set_once_and_events_are_written() {
    let server = StandInApiServer::start().await;
    let agent = Agent::of(&server, "condition", V4).await;
    server.put("own", json!({}), &["10.244.1.0/24"]);
    agent.source.set_network_available().await.unwrap();
    agent.source.set_network_available().await.unwrap();
    let patches = server.state().patches.clone();
    assert_eq!(patches.len(), 1);
    let condition = &patches[0]["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("NetworkUnavailable"), &json!("False")));
    let time = condition["lastTransitionTime"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "whole seconds, as the API server reads them: {time}");

    agent.source.event(Severity::Warning, "RangeOverlaps", "n1 and n2 share addresses").await.unwrap();
    let events = server.state().events.clone();
    assert_eq!((&events[0]["reason"], &events[0]["type"]), (&json!("RangeOverlaps"), &json!("Warning")));
    assert_eq!(events[0]["regarding"]["name"], "own");
}

#[tokio::test]
async fn a_pod_finds_its_node() {
    let server = StandInApiServer::start().await;
    let agent = Agent::of(&server, "pod", V4).await;
    let pod = |node: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [], "nodeName": node}});
    server.state().pods.insert("p".into(), pod(json!("n7")));
    server.state().pods.insert("q".into(), pod(json!(null)));
    assert_eq!(agent.options.client.node_of_pod("kube-flannel", "p").await.unwrap(), "n7");
    let error = agent.options.client.node_of_pod("kube-flannel", "q").await.unwrap_err().to_string();
    assert!(
        error.starts_with("kubernetes: get pod kube-flannel/q: node name not present in pod spec"),
        "{error}"
    );
    let error = Kubernetes::new(&KubernetesOptions::new("own")).await.unwrap_err().to_string();
    assert!(error.contains("outside of a pod, name a kubeconfig file or an API server URL"), "{error}");
}

#[tokio::test]
async fn a_kubeconfig_has_the_server_and_the_credentials() {
    let server = StandInApiServer::start().await;
    server.put("own", json!({}), &["10.244.1.0/24"]);
    let agent = Agent::of(&server, "kubeconfig", V4).await;
    let path = agent.dir.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
         clusters:\n- name: k\n  cluster: {{server: \"{}\"}}\nusers:\n- name: u\n  user: {{token: secret}}\n",
        server.url
    );
    std::fs::write(&path, text).unwrap();
    let client = ClientOptions::from_kubeconfig(Some(path.clone()));
    let options = KubernetesOptions { client, ..agent.options.clone() };
    Kubernetes::new(&options).await.unwrap().acquire(&registration()).await.unwrap();
    assert_eq!(server.count(&["PATCH", "Bearer secret"]), 1);
    std::fs::write(&path, "nonsense: [").unwrap();
    let error = Kubernetes::new(&options).await.unwrap_err().to_string();
    assert!(
        error.starts_with("kubernetes: fail to create kubernetes config: ") && error.contains("kubeconfig: "),
        "{error}"
    );
}
