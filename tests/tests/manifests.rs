//! The manifests in `deploy`, as users apply them: what the containers may do, see and answer.

use podwire_test_servers::{kubernetes_programs, KubeApiServer};
use podwire_tests::project;
use serde_json::{json, Value};

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
    let mut agents = pods().into_iter().filter(|(title, _)| title.contains("flannel.yaml: \"DaemonSet"));
    let (title, pod) = agents.next_back().expect("the agent of flannel mode");
    let dir = "/var/lib/cni/networks";
    let volumes = array(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["hostPath"]["path"] == dir).expect("a volume");
    let mounts = array(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]);
    let mount = mount.unwrap_or_else(|| panic!("{title}: {dir} is not mounted"));
    assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&dir.into(), &true.into()), "{title}");
}

/// Otherwise a machine with a copy of the disk has the identity of the original in the store.
#[test]
fn the_calico_agent_sees_the_id_of_its_machine() {
    let mut agents = pods().into_iter().filter(|(title, _)| title.contains("calico.yaml: \"DaemonSet"));
    let (title, pod) = agents.next_back().expect("the agent of calico mode");
    let file = "/etc/machine-id";
    let volumes = array(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["hostPath"]["path"] == file);
    let volume = volume.unwrap_or_else(|| panic!("{title}: there is no volume of {file}"));
    // A machine without the file must not keep the agent from its start.
    assert_eq!(volume["hostPath"]["type"], "FileOrCreate", "{title}");
    let mounts = array(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]);
    let mount = mount.unwrap_or_else(|| panic!("{title}: {file} is not mounted"));
    assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&file.into(), &true.into()), "{title}");
}

#[test]
fn system_calls_are_filtered() {
    for (title, pod) in pods() {
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{title}");
    }
}

/// Users of the manifests without kube-proxy name the API server there, as for Calico's.
#[test]
fn a_config_map_can_name_the_api_server() {
    let wanted = json!([{"configMapRef": {"name": "kubernetes-services-endpoint", "optional": true}}]);
    for (title, pod) in pods() {
        assert_eq!(pod["containers"][0]["envFrom"], wanted, "{title}");
    }
}

/// A real API server with the objects of the manifests: an agent changes the status of its own node and of the pods on
/// it only.
#[test]
fn an_agent_changes_its_own_node_and_its_pods_only() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: the admission policy of the manifests: {why}"),
    };
    let server = KubeApiServer::start(&programs);
    for node in ["n1", "n2"] {
        server.request("POST", "/api/v1/nodes", Some(&json!({"metadata": {"name": node}}))).unwrap();
        server.create_pod("shop", &format!("web-{node}"), node, json!({}));
    }
    let wanted = [
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    // The calico agent patches pods too.
    for (_, object) in objects().into_iter().filter(|(path, _)| path.contains("calico")) {
        let kind = object["kind"].as_str().expect("a kind");
        let is_agents =
            object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("podwire-agent"));
        if wanted.contains(&kind) && is_agents {
            let plural = kind.to_lowercase().replace("policy", "policie") + "s";
            let plural = plural.replace("policiebindings", "policybindings");
            let version = object["apiVersion"].as_str().expect("a version");
            server.request("POST", &format!("/apis/{version}/{plural}"), Some(&object)).unwrap();
        }
    }
    let patch = json!({"metadata": {"annotations": {"test": "1"}}});
    let tried = |node: Option<&str>, path: &str| {
        let account = "kube-system:podwire-agent";
        server.patch_as(account, node, path, &patch).map(drop).map_err(|error| error.to_string())
    };
    let (node, pod) = (
        |name: &str| format!("/api/v1/nodes/{name}/status"),
        |name: &str| format!("/api/v1/namespaces/shop/pods/{name}/status"),
    );
    // Roles and policies take effect a moment after they are created.
    server.until("the agent may patch its own node", || tried(Some("n1"), &node("n1")).is_ok());
    server.until("the agent may not patch another node", || tried(Some("n1"), &node("n2")).is_err());
    for (from, path, is_allowed) in [
        (Some("n1"), node("n1"), true),
        (Some("n2"), node("n2"), true),
        (Some("n2"), node("n1"), false),
        (Some("n1"), pod("web-n1"), true),
        (Some("n1"), pod("web-n2"), false),
        (None, node("n1"), false),
        (None, pod("web-n1"), false),
    ] {
        let outcome = tried(from, &path);
        assert_eq!(outcome.is_ok(), is_allowed, "from {from:?}: {path}: {outcome:?}");
        if let Err(why) = outcome {
            assert!(why.contains("may not change an object of node"), "{why}");
        }
    }
}
