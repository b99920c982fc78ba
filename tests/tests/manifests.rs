//! The manifests in `deploy`, as users apply them: what the containers may do, see and answer.

use podwire_tests::project;
use serde_json::Value;

/// The objects of both manifests, each with its file.
fn objects() -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for path in ["deploy/kubernetes-flannel.yaml", "deploy/kubernetes-calico.yaml"] {
        let text = std::fs::read_to_string(project(path)).expect("a manifest");
        let parsed = serde_saphyr::from_multiple::<Value>(&text).expect("YAML");
        all.extend(parsed.into_iter().filter(|one| !one.is_null()).map(|object| (path, object)));
    }
    all
}

/// The pods of DaemonSets and Deployments, each with a title.
fn pods() -> Vec<(String, Value)> {
    let workloads = objects().into_iter().filter(|(_, object)| object["spec"]["template"].is_object());
    let pods: Vec<(String, Value)> = workloads
        .map(|(path, object)| {
            let title = format!("{path}: {} {}", object["kind"], object["metadata"]["name"]);
            (title, object["spec"]["template"]["spec"].clone())
        })
        .collect();
    assert_eq!(pods.len(), 4, "an agent and a controller in each manifest");
    pods
}

fn array(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Pods cannot reach loopback, so their connections cannot fail a probe.
#[test]
fn health_is_served_and_probed_on_loopback_only() {
    for (title, pod) in pods() {
        for container in array(&pod["containers"]) {
            for probe in ["livenessProbe", "readinessProbe"] {
                assert_eq!(container[probe]["httpGet"]["host"], "127.0.0.1", "{title}: {probe}");
            }
            let arguments = array(&container["args"]);
            let names_address = |one: &Value| one.as_str().is_some_and(|one| one.starts_with("--healthz-ip"));
            assert!(!arguments.iter().any(names_address), "{title}: {arguments:?}");
        }
    }
}

/// Otherwise its metric of used addresses is always 0.
#[test]
fn the_flannel_agent_sees_the_addresses_that_it_counts() {
    let agents = pods().into_iter().filter(|(title, _)| title.contains("flannel.yaml: \"DaemonSet"));
    let (title, pod) = agents.last().expect("the agent of flannel mode");
    let dir = "/var/lib/cni/networks";
    let volumes = array(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["hostPath"]["path"] == dir).expect("a volume");
    let mounts = array(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]);
    let mount = mount.unwrap_or_else(|| panic!("{title}: {dir} is not mounted"));
    assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&dir.into(), &true.into()), "{title}");
}
