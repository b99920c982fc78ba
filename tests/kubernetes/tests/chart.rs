//! The chart, rendered by the real helm: what its defaults make is what `deploy/kubernetes.yaml` says, and its settings reach the
//! programs.

use std::process::Command;
use std::sync::OnceLock;

use podwire_kubernetes_tests::{helm, manifest};
use podwire_tests::project;
use serde_json::Value;

const CHART: &str = "deploy/helm/podwire";

/// helm, with these words.
fn call(words: &[&str]) -> (bool, String) {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(helm);
    let output = Command::new(program).args(words).current_dir(project(".")).output().expect("helm");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), printed.into_owned())
}

/// What the chart makes with these settings.
fn rendered(settings: &[&str]) -> Vec<Value> {
    let mut words = vec!["template", "podwire", CHART, "--namespace", "kube-system"];
    words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let (is_good, printed) = call(&words);
    assert!(is_good, "{printed}");
    manifest::parse(&printed)
}

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
fn the_manifest_is_what_the_chart_makes_of_its_defaults() {
    let (made, written) = (rendered(&[]), manifest::objects("deploy/kubernetes.yaml"));
    for (one, other) in made.iter().zip(&written) {
        assert_eq!(one, other, "{}: run `make manifests`", manifest::title(one));
    }
    assert_eq!(made.len(), written.len(), "run `make manifests`");
}

#[test]
fn the_chart_is_as_helm_wants_charts_to_be() {
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
fn a_network_of_ipv6_alone_has_no_ipv4() {
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
fn where_somebody_else_gives_out_ranges_there_is_no_controller() {
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
            let told = variables.iter().find(|one| one["name"] == "KUBERNETES_SERVICE_HOST");
            assert_eq!(
                told.map(|one| one["value"].clone()),
                setting.first().map(|_| "192.0.2.1".into()),
                "{title}"
            );
        }
    }
}
