use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pod(name: &str, ip: &str) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "status": { "podIPs": [{ "ip": ip }] } });
    snapshot.add(object).unwrap();
    snapshot
}

fn interface(pod: &str, container: &str, ip: &str) -> Interface {
    Interface {
        pod: pod.into(),
        namespace: "default".into(),
        owner: Owner { container: container.into(), ..Owner::default() },
        addresses: vec![ip.parse().unwrap()],
        ..Interface::default()
    }
}

fn addresses(cluster: &ClusterState, pod: &str, include_unlisted: bool) -> Option<Vec<String>> {
    let node = LocalNode { name: "here".into(), addresses: Vec::new() };
    let snapshot = cluster.snapshot(&node, include_unlisted);
    let pod = snapshot.pod(pod)?;
    Some(pod.addresses().iter().map(ToString::to_string).collect())
}

#[test]
fn attached_addresses_replace_those_of_the_source() {
    let mut cluster = ClusterState::default();
    cluster.update(Update::Listed(Kind::Pod, pod("web", "10.0.0.9")));
    cluster.attach(interface("web", "c1", "10.0.0.2"));
    assert_eq!(addresses(&cluster, "web", false).unwrap(), ["10.0.0.2"]);
    cluster.detach(&interface("web", "c1", "10.0.0.2").owner);
    assert_eq!(addresses(&cluster, "web", false).unwrap(), ["10.0.0.9"]);
}

#[test]
fn an_address_has_one_owner() {
    let mut cluster = ClusterState::default();
    cluster.update(Update::Listed(Kind::Pod, pod("old", "10.0.0.2")));
    cluster.update(Update::Changed(pod("new", "10.0.0.9")));
    cluster.attach(interface("old", "c1", "10.0.0.2"));
    cluster.attach(interface("new", "c2", "10.0.0.2"));
    assert_eq!(addresses(&cluster, "new", false).unwrap(), ["10.0.0.2"]);
    assert_eq!(addresses(&cluster, "old", false).unwrap(), Vec::<String>::new());
}

#[test]
fn an_address_resolves_to_its_pod() {
    let mut cluster = ClusterState::default();
    cluster.update(Update::Listed(Kind::Pod, pod("far", "10.0.0.9")));
    cluster.update(Update::Changed(pod("old", "10.0.0.2")));
    cluster.attach(interface("new", "c1", "10.0.0.2"));
    let name = |ip: &str| cluster.pod_with_address(ip.parse().unwrap());
    assert_eq!(name("10.0.0.9").as_deref(), Some("default/far"));
    assert_eq!(name("10.0.0.2").as_deref(), Some("default/new"), "attached addresses win");
    assert_eq!(name("10.0.0.3"), None);
}

#[test]
fn an_unlisted_pod_counts_only_if_the_source_lists_no_pods() {
    let mut cluster = ClusterState::default();
    cluster.attach(interface("c1", "c1", "10.0.0.2"));
    assert_eq!(addresses(&cluster, "c1", false), None);
    assert_eq!(addresses(&cluster, "c1", true).unwrap(), ["10.0.0.2"]);
}

fn object(kind: &str, name: &str, label: &str, rest: serde_json::Value) -> serde_json::Value {
    let mut object =
        json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "labels": { "app": label } } });
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

fn only(object: serde_json::Value) -> Snapshot {
    let mut snapshot = Snapshot::new();
    snapshot.add(object).unwrap();
    snapshot
}

#[derive(Clone, Debug)]
enum Event {
    Update(Update),
    Attach(Interface),
    Detach(Interface),
}

/// A random event. There are few names, labels and addresses, so that events concern the same objects.
fn event() -> impl Strategy<Value = Event> {
    (0..6u8, 0..4u8, 0..3u8, 0..4u8).prop_map(|(kind, name, label, other)| {
        let (pod, label, ip) = (format!("p{name}"), format!("a{label}"), format!("10.0.0.{other}"));
        let selector = |label: &str| json!({ "matchLabels": { "app": label } });
        match kind {
            0 => {
                let rest = json!({ "spec": { "nodeName": "here" }, "status": { "podIPs": [{ "ip": ip }] } });
                Event::Update(Update::Changed(only(object("Pod", &pod, &label, rest))))
            }
            1 => Event::Update(Update::Deleted(Kind::Pod, format!("default/{pod}"))),
            2 => Event::Attach(interface(&pod, &pod, &ip)),
            3 => Event::Detach(interface(&pod, &pod, &ip)),
            4 => {
                let from = json!([{ "podSelector": selector(&format!("a{other}")) }]);
                let spec = json!({ "podSelector": selector(&label), "ingress": [{ "from": from }] });
                let mut policy = object("NetworkPolicy", &pod, "", json!({ "spec": spec }));
                policy["apiVersion"] = json!("networking.k8s.io/v1");
                Event::Update(Update::Changed(only(policy)))
            }
            _ => {
                let namespace = object("Namespace", "default", &label, json!({}));
                Event::Update(Update::Listed(Kind::Namespace, only(namespace)))
            }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_updated_compiler_equals_a_new_one(
        events in prop::collection::vec((event(), any::<bool>()), 1..30), include_unlisted in any::<bool>()
    ) {
        let node = LocalNode { name: "here".into(), addresses: Vec::new() };
        let (mut cluster, mut known) = (ClusterState::default(), None);
        for (number, (event, compile_now)) in events.into_iter().enumerate() {
            match event {
                Event::Update(update) => cluster.update(update),
                Event::Attach(interface) => drop(cluster.attach(interface)),
                Event::Detach(interface) => drop(cluster.detach(&interface.owner)),
            }
            if compile_now {
                let compiler = cluster.compiler(known.take(), &node, include_unlisted);
                let compiler = known.insert(compiler);
                let snapshot = cluster.snapshot(&node, include_unlisted);
                let fresh = podwire_policy::compile(&snapshot, Some("here")).program;
                prop_assert_eq!(compiler.program(), &fresh, "after event {}", number);
            }
        }
    }
}
