//! The chart, rendered by the real helm: the manifests in deploy/ equal its output, and its values reach the programs.

use podwire_kubernetes_tests::chart::{call, rendered, CHART};
use podwire_kubernetes_tests::manifest;
use podwire_tests::project;
use serde_json::Value;

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
