//! The chart, rendered by the real helm: the manifests in deploy/ equal its output, and its values reach the programs.

use podwire_kubernetes_tests::chart::{call, rendered, CHART};
use podwire_kubernetes_tests::manifest;
use podwire_test_servers::{kubernetes_programs, KubeApiServer};
use podwire_tests::project;
use serde_json::{json, Value};

fn find<'a>(objects: &'a [Value], title: &str) -> &'a Value {
    let found = objects.iter().find(|object| manifest::title(object) == title);
    found.unwrap_or_else(|| {
        panic!("no {title}: {:?}", objects.iter().map(manifest::title).collect::<Vec<_>>())
    })
}

fn container(object: &Value) -> &Value {
    &object["spec"]["template"]["spec"]["containers"][0]
}

fn arguments(object: &Value) -> Vec<&str> {
    container(object)["args"].as_array().expect("arguments").iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_manifests_equal_the_output_of_the_chart() {
    for (settings, path) in [
        (&[][..], "deploy/kubernetes-flannel.yaml"),
        (&["calico.enabled=true"], "deploy/kubernetes-calico.yaml"),
    ] {
        let (mut made, written) = (rendered(settings), manifest::objects(path));
        // The manifests leave them out: they would replace Calico's own definitions.
        made.retain(|object| object["kind"] != "CustomResourceDefinition");
        for (one, other) in made.iter().zip(&written) {
            assert_eq!(one, other, "{path}: {}: run `make manifests`", manifest::title(one));
        }
        assert_eq!(made.len(), written.len(), "{path}: run `make manifests`");
    }
}

#[test]
fn helm_lint_accepts_the_chart() {
    let (is_good, printed) = call(&["lint", "--strict", CHART]);
    assert!(is_good, "{printed}");
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = std::fs::read_to_string(project(CHART).join("Chart.yaml")).expect("the chart");
    for key in ["version", "appVersion"] {
        assert_eq!(manifest::parse(&chart)[0][key], env!("CARGO_PKG_VERSION"), "{key}");
    }
    let agent = rendered(&[]);
    let image =
        container(find(&agent, "DaemonSet podwire-agent"))["image"].as_str().expect("an image").to_owned();
    assert_eq!(image, format!("localhost/podwire:{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn networks_of_both_families_reach_the_agents_and_the_controller() {
    let objects = rendered(&["network.ipv6=fd00:10:244::/56", "network.backend.Type=host-gw"]);
    let conf = find(&objects, "ConfigMap podwire")["data"]["net-conf.json"].as_str().expect("a config");
    let conf: Value = serde_json::from_str(conf).expect("JSON");
    assert_eq!(conf["Network"], "10.244.0.0/16");
    assert_eq!(conf["IPv6Network"], "fd00:10:244::/56");
    assert_eq!(conf["EnableIPv6"], true);
    assert_eq!(conf["Backend"]["Type"], "host-gw");
    let arguments = arguments(find(&objects, "Deployment podwire-controller"));
    for wanted in [
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
        "--node-cidr-mask-size-ipv4=24",
        "--node-cidr-mask-size-ipv6=64",
    ] {
        assert!(arguments.contains(&wanted), "{wanted}: {arguments:?}");
    }
}

#[test]
fn an_ipv6_only_network_has_no_ipv4() {
    let objects = rendered(&["network.ipv4=", "network.ipv6=fd00:10:244::/56"]);
    let conf = find(&objects, "ConfigMap podwire")["data"]["net-conf.json"].as_str().expect("a config");
    let conf: Value = serde_json::from_str(conf).expect("JSON");
    assert_eq!((&conf["EnableIPv4"], &conf["Network"]), (&Value::Bool(false), &Value::Null));
    let arguments = arguments(find(&objects, "Deployment podwire-controller"));
    assert!(arguments.contains(&"--cluster-cidr=fd00:10:244::/56"), "{arguments:?}");
    assert!(arguments.contains(&"--node-cidr-mask-size=64"), "{arguments:?}");
}

#[test]
fn without_a_network_it_is_refused() {
    let (is_good, printed) = call(&["template", CHART, "--set", "network.ipv4="]);
    assert!(!is_good && printed.contains("network.ipv4 or network.ipv6 is needed"), "{printed}");
}

#[test]
fn the_controller_can_be_disabled() {
    let objects = rendered(&["controller.enabled=false"]);
    assert!(objects.iter().all(|object| !manifest::is_part_of(object, "controller")));
    find(&objects, "DaemonSet podwire-agent");
}

#[test]
fn an_api_server_can_be_named() {
    for setting in [&[][..], &["apiServer.host=192.0.2.1"]] {
        let objects = rendered(setting);
        for title in ["DaemonSet podwire-agent", "Deployment podwire-controller"] {
            let variables = container(find(&objects, title))["env"].as_array().cloned().unwrap_or_default();
            let host = variables.iter().find(|one| one["name"] == "KUBERNETES_SERVICE_HOST");
            assert_eq!(
                host.map(|one| one["value"].clone()),
                setting.first().map(|_| "192.0.2.1".into()),
                "{title}"
            );
        }
    }
}

#[test]
fn with_calico_there_are_pools_and_a_conflist_instead_of_net_conf() {
    let objects =
        rendered(&["calico.enabled=true", "network.ipv6=fd00:10:244::/56", "calico.vxlanMode=CrossSubnet"]);
    let pool = &find(&objects, "IPPool podwire-ipv4")["spec"];
    assert_eq!((&pool["cidr"], &pool["blockSize"]), (&"10.244.0.0/16".into(), &26.into()));
    let pool = &find(&objects, "IPPool podwire-ipv6")["spec"];
    assert_eq!((&pool["cidr"], &pool["blockSize"]), (&"fd00:10:244::/56".into(), &122.into()));
    assert_eq!((&pool["vxlanMode"], &pool["ipipMode"]), (&"CrossSubnet".into(), &"Never".into()));
    let list = find(&objects, "ConfigMap podwire")["data"]["10-calico.conflist"].as_str().expect("a list");
    let list: Value = serde_json::from_str(list).expect("JSON");
    let types: Vec<_> = list["plugins"].as_array().into_iter().flatten().map(|one| &one["type"]).collect();
    assert_eq!(types, ["calico", "portmap"]);
    let ipam = &list["plugins"][0]["ipam"];
    assert_eq!((&ipam["assign_ipv4"], &ipam["assign_ipv6"]), (&"true".into(), &"true".into()));
    let arguments = arguments(find(&objects, "Deployment podwire-controller"));
    assert!(arguments.contains(&"--ipam-store=kubernetes"), "{arguments:?}");
    assert!(arguments.iter().all(|one| !one.starts_with("--cluster-cidr")), "{arguments:?}");
    let agent = container(find(&objects, "DaemonSet podwire-agent"));
    assert_eq!((&agent["args"][0], &agent["args"][1]), (&"agent".into(), &"calico".into()));
    let (is_good, printed) =
        call(&["template", CHART, "--set", "calico.enabled=true", "--set", "calico.ipipMode=Always"]);
    assert!(!is_good && printed.contains("must be Never"), "{printed}");
}

#[test]
fn without_setup_neither_definitions_nor_pools_are_created() {
    let objects = rendered(&["calico.enabled=true", "calico.setup=false"]);
    let made = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
    assert_eq!((made("CustomResourceDefinition"), made("IPPool"), made("DaemonSet")), (0, 0, 1));
}

#[test]
fn bgp_passwords_are_mounted_as_files() {
    let objects =
        rendered(&["calico.enabled=true", "calico.bgp.enabled=true", "calico.bgp.secrets={bgp,tor}"]);
    let daemon = find(&objects, "DaemonSet podwire-agent");
    assert!(arguments(daemon).contains(&"--bgp-passwords=/etc/podwire-secrets"), "{daemon}");
    let mounts = container(daemon)["volumeMounts"].as_array().expect("mounts");
    let volumes = daemon["spec"]["template"]["spec"]["volumes"].as_array().expect("volumes");
    for secret in ["bgp", "tor"] {
        let path = format!("/etc/podwire-secrets/{secret}");
        let mount = mounts.iter().find(|one| one["mountPath"] == path.as_str()).expect("a mount");
        let volume = volumes.iter().find(|one| one["name"] == mount["name"]).expect("a volume");
        assert_eq!(volume["secret"]["secretName"], secret);
    }
}

/// The agent's arguments and container ports about Services, and the kinds of objects that it may read for them.
fn services(objects: &[Value]) -> (Vec<&str>, Vec<u64>, Vec<&str>) {
    let agent = find(objects, "DaemonSet podwire-agent");
    let mut arguments = arguments(agent);
    arguments
        .retain(|one| ["--services", "--nodeport", "--cleanup"].iter().any(|flag| one.starts_with(flag)));
    let ports = container(agent)["ports"].as_array().into_iter().flatten();
    let ports =
        ports.filter(|port| port["name"] == "services").filter_map(|port| port["containerPort"].as_u64());
    let rules = find(objects, "ClusterRole podwire-agent")["rules"].as_array().into_iter().flatten();
    let kinds =
        rules.flat_map(|rule| rule["resources"].as_array().into_iter().flatten()).filter_map(Value::as_str);
    let kinds = kinds.filter(|kind| ["services", "endpointslices", "servicecidrs"].contains(kind));
    (arguments, ports.collect(), kinds.collect())
}

#[test]
fn services_are_off_unless_they_are_wanted() {
    let off = (Vec::new(), Vec::new(), Vec::new());
    for mode in ["calico.enabled=false", "calico.enabled=true"] {
        assert_eq!(services(&rendered(&[mode])), off);
        // Without a cluster nothing tells whether kube-proxy runs.
        assert_eq!(services(&rendered(&[mode, "agent.services=auto"])), off);
        let kinds = vec!["services", "endpointslices", "servicecidrs"];
        let on = (vec!["--services=kubernetes"], vec![10256], kinds.clone());
        assert_eq!(services(&rendered(&[mode, "agent.services=true"])), on);
        let more = [
            mode,
            "agent.services=true",
            "services.nodePortAddresses={192.0.2.0/24,fd00:9::/64}",
            "services.cleanupKubeProxy=true",
        ];
        let flags = [
            "--services=kubernetes",
            "--nodeport-addresses=192.0.2.0/24,fd00:9::/64",
            "--cleanup-kube-proxy",
        ];
        assert_eq!(services(&rendered(&more)), (flags.into(), vec![10256], kinds));
    }
    let (is_good, printed) = call(&["template", CHART, "--set", "agent.services=perhaps"]);
    assert!(!is_good && printed.contains("agent.services must be auto, true or false"), "{printed}");
}

#[test]
fn agents_can_change_node_by_node() {
    for mode in ["calico.enabled=false", "calico.enabled=true"] {
        let strategy = |settings: &[&str]| {
            find(&rendered(settings), "DaemonSet podwire-agent")["spec"]["updateStrategy"].clone()
        };
        assert_eq!(strategy(&[mode]), json!({"rollingUpdate": {"maxUnavailable": "10%"}}));
        assert_eq!(strategy(&[mode, "agent.updateStrategy=OnDelete"]), json!({"type": "OnDelete"}));
    }
}

/// helm asks a real API server.
#[test]
fn services_are_on_by_themselves_in_a_cluster_without_kube_proxy() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: {why}"),
    };
    let server = KubeApiServer::start(&programs);
    let kubeconfig = server.kubeconfig("admin").display().to_string();
    let install = |settings: &[&str]| {
        let mut words = vec!["template", "podwire", CHART, "--namespace", "kube-system", "--dry-run=server"];
        words.extend(["--kubeconfig", &kubeconfig]);
        words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        call(&words)
    };
    let serves = |settings: &[&str]| {
        let (is_good, printed) = install(settings);
        assert!(is_good, "{printed}");
        !services(&manifest::parse(&printed)).0.is_empty()
    };
    let host = "apiServer.host=192.0.2.1";
    let create = |path: &str, object: Value| server.request("POST", path, Some(&object)).unwrap();
    server.until("the namespace kube-system exists", || {
        server.request("GET", "/api/v1/namespaces/kube-system", None).is_ok()
    });
    assert!(serves(&[host]));
    // Agents without the API server's address reach it through a Service, which another program serves.
    assert!(!serves(&[]));
    let (is_good, printed) = install(&["agent.services=true"]);
    assert!(!is_good && printed.contains("set apiServer.host"), "{printed}");
    assert!(!serves(&["agent.services=false"]));
    let config_map = json!({"metadata": {"name": "kubernetes-services-endpoint"}});
    create("/api/v1/namespaces/kube-system/configmaps", config_map);
    assert!(serves(&[]));
    // A static pod, as in RKE2 and on GKE.
    create("/api/v1/namespaces/kube-system/serviceaccounts", json!({"metadata": {"name": "default"}}));
    server.create_pod("kube-system", "kube-proxy-n1", "n1", json!({}));
    assert!(!serves(&[]));
    server
        .request("DELETE", "/api/v1/namespaces/kube-system/pods/kube-proxy-n1?gracePeriodSeconds=0", None)
        .unwrap();
    server.until("the pod is gone", || serves(&[]));
    let labels = json!({"k8s-app": "kube-proxy"});
    let spec = json!({"containers": [{"name": "kube-proxy", "image": "kube-proxy"}]});
    let daemon_set = json!({"metadata": {"name": "kube-proxy"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    create("/apis/apps/v1/namespaces/kube-system/daemonsets", daemon_set);
    assert!(!serves(&[]));
    assert!(serves(&["agent.services=true"]));
}
