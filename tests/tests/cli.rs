//! What the command line answers: published ports, names of pods, one form of JSON, the rights that it needs, and mistakes in
//! configs and arguments.

use podwire_tests::{commands, json_problems, ours, podwire, Node, Output};
use serde_json::{json, Value};

const CONF: &str = "/run/test/net.d";
/// A container id as container runtimes choose them, and its short form.
const LONG: &str = "4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1c4f1c2e9a0b1cbeef";
const SHORT: &str = "4f1c2e9a0b1c";

/// A node with the network `pods` and the namespaces `web` and `db`.
fn node() -> Node {
    let node = Node::new();
    let plugins = json!([
        {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]);
    network(&node, "pods", &plugins);
    for name in ["web", "db"] {
        node.pod(name);
    }
    node
}

fn network(node: &Node, name: &str, plugins: &Value) {
    let network = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
    node.write(&format!("{CONF}/{name}.conflist"), &network.to_string());
}

fn run(node: &Node, line: &str) -> Output {
    let program = podwire();
    let words: Vec<&str> = std::iter::once(&*program).chain(line.split(' ')).collect();
    node.output(&words, &[("NETCONFPATH", CONF), ("CNI_PATH", &ours())])
}

#[track_caller]
fn must(node: &Node, line: &str) -> String {
    let output = run(node, line);
    assert_eq!(output.status, 0, "{line}: {}{}", output.stdout, output.stderr);
    output.stdout
}

#[track_caller]
fn json_of(node: &Node, line: &str) -> Value {
    serde_json::from_str(&must(node, &format!("{line} --json")))
        .unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn published_ports_are_shown_wherever_an_attachment_is() {
    let node = node();
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.1"}]);
    let (text, publish) =
        ("8080:80 192.0.2.1:53:5353/udp", "--publish 8080:80 --publish 192.0.2.1:53:5353/udp");
    let added = must(&node, &format!("cni add pods web {publish}"));
    assert!(added.contains(&format!("  ports    {text}\n")), "{added}");
    let list = must(&node, "cni list");
    assert!(list.contains("PORTS") && list.contains(text), "{list}");
    assert_eq!(json_of(&node, "cni list")["attachments"][0]["ports"], ports);
    must(&node, "cni del pods web");
    assert_eq!(json_of(&node, &format!("cni add pods web {publish}"))["ports"], ports);
    must(&node, "cni del pods web");
    assert!(!must(&node, "cni add pods web").contains("ports"));

    must(&node, "pod run shop --port 8080:80 --port 192.0.2.1:53:5353/udp");
    for line in ["pod list", "pod status shop"] {
        let shown = must(&node, line);
        assert!(shown.contains(text), "{line}: {shown}");
    }
    assert_eq!(json_of(&node, "pod list")["pods"][0]["ports"], ports);
    assert_eq!(json_of(&node, "pod status shop")["ports"], ports);
    must(&node, "pod stop shop");
    assert_eq!(json_of(&node, "pod list")["pods"][0]["ports"], json!([]), "a stopped pod publishes nothing");
    must(&node, "pod rm shop");
}

#[test]
fn containers_are_called_by_their_pods_or_short_ids() {
    let node = node();
    let other = LONG.replace("4f", "77");
    must(&node, &format!("cni add pods web --container {LONG}"));
    let pod = "--arg IgnoreUnknown=1 --arg K8S_POD_NAMESPACE=shop --arg K8S_POD_NAME=db";
    must(&node, &format!("cni add pods db --container {other} {pod}"));
    let list = must(&node, "cni list");
    for expected in [format!("pods     {SHORT}  eth0"), "pods     shop/db       eth0".into()] {
        assert!(list.contains(&expected), "{expected:?}:\n{list}");
    }
    assert!(!list.contains(LONG) && !list.contains(&other), "{list}");
    let all = json_of(&node, "cni list");
    let names: Vec<_> =
        all["attachments"].as_array().unwrap().iter().map(|one| (&one["container"], &one["pod"])).collect();
    assert_eq!(
        names,
        [(&json!(LONG), &Value::Null), (&json!(other), &json!({"namespace": "shop", "name": "db"}))]
    );

    node.sh("nft flush ruleset; ip netns delete db");
    let audit = run(&node, "cni audit").stdout;
    assert!(audit.contains("pods/shop/db/eth0") && !audit.contains(&format!("pods/{other}")), "{audit}");
    let stale = must(&node, "cni gc pods --dry-run");
    assert!(stale.starts_with("would remove shop/db eth0 10.9.0."), "{stale}");

    // Messages, too; JSON has the whole id.
    let attached = format!("cni check pods --container {other}");
    let failed = run(&node, &attached).stderr;
    assert!(failed.contains("shop/db") && !failed.contains(&other), "{failed}");
    let whole = run(&node, &format!("{attached} --json")).stderr;
    assert!(whole.contains(&other), "{whole}");
    let wrong = run(&node, "cni check pods web --container 4f1c2e9a0b1d");
    assert_eq!(wrong.status, 1, "an id that no container has: {}", wrong.stdout);
    assert_eq!(
        must(&node, &format!("cni del pods --container {SHORT}")),
        format!("detached {SHORT} from pods\n")
    );
    must(&node, "cni gc pods");
    assert_eq!(json_of(&node, "cni list")["attachments"], json!([]));
}

#[test]
fn del_of_an_unknown_attachment_says_that_nothing_was_there() {
    let node = node();
    let (nothing, done) = ("nothing to detach: eth0 of web is not known in pods", "detached web from pods\n");
    let unknown = must(&node, "cni del pods web");
    assert!(unknown.starts_with(nothing), "{unknown}");
    must(&node, "cni add pods web");
    assert_eq!(must(&node, "cni del pods web"), done);
    assert!(must(&node, "cni del pods web").starts_with(nothing));
    assert_eq!(json_of(&node, "cni del pods web")["detached"], false);
    // The plugins know it, although its record is lost.
    must(&node, "cni add pods web");
    node.sh("rm /var/lib/cni/results/*");
    assert_eq!(json_of(&node, "cni del pods web")["detached"], true);
}

/// Daemons, and commands that print what another program prints.
const WITHOUT_JSON: [&str; 8] = [
    "agent calico",
    "agent flannel",
    "controller",
    "demo",
    "dhcp daemon",
    "ipam answer",
    "ipam serve",
    "pod exec",
];

#[test]
fn every_command_prints_one_json_object_with_keys_in_camel_case() {
    let node = node();
    node.write("/run/test/policies.yaml", "tests: []\n");
    let pod = |name: &str| format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n");
    let closed = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed}\n\
                  spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}\n";
    node.write("/run/test/pods.yaml", &format!("{}{}{closed}", pod("a"), pod("b")));
    let lines = [
        "cni add pods web --publish 8080:80",
        "cni list",
        "cni status",
        "cni lint",
        "cni check pods web",
        "cni check pods web --repair",
        "cni gc pods --dry-run",
        "cni audit",
        "cni reload",
        "verify --timeout 10s",
        "ipam pool pods 10.8.0.0/16 --store /run/test/ipam.db",
        "ipam migrate pods --dry-run --store /run/test/ipam.db",
        "ipam upgrade pods --store /run/test/ipam.db",
        "ipam show --blocks --store /run/test/ipam.db",
        "ipam configure --store /run/test/ipam.db",
        "ipam check --store /run/test/ipam.db",
        "ipam release --node nobody --store /run/test/ipam.db",
        "ipam split 2 --name pods --store /run/test/ipam.db",
        "cni del pods web",
        "pod run one two",
        "pod list",
        "pod status",
        "pod stop two",
        "pod rm two",
        "lab break",
        "install --dry-run --root /run/test",
        "policy test /run/test/policies.yaml",
        "policy explain a b 80 --file /run/test/pods.yaml",
        "plugins",
        "version",
    ];
    let mut wrong = Vec::new();
    for line in lines {
        // A command that cannot do its work prints an object, too.
        let output = run(&node, &format!("{line} --json"));
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text));
        assert_ne!(value["what"], "cannot read the command line", "{line}: {value}");
        wrong.extend(json_problems(line, &value));
    }
    // Those of labs and Services are in the suite `lab`.
    let is_tested = |command: &String| {
        WITHOUT_JSON.contains(&command.as_str())
            || command.starts_with("lab ")
            || command.starts_with("service ")
            || lines
                .iter()
                .any(|line| line.split(' ').take(command.split(' ').count()).eq(command.split(' ')))
    };
    wrong.extend(commands().into_iter().filter(|one| !is_tested(one)).map(|one| format!("{one}: no test")));
    assert!(wrong.is_empty(), "{wrong:#?}");
    must(&node, "pod rm --all");
}

#[test]
fn errors_of_usage_are_json_too() {
    let node = node();
    for line in ["cni ad pods web --json", "--json cni add", "--json", "pod run --port x web --json"] {
        let output = run(&node, line);
        let error: Value = serde_json::from_str(&output.stderr)
            .unwrap_or_else(|error| panic!("{line}: {error}: {}{}", output.stdout, output.stderr));
        assert_eq!((output.status, &error["code"]), (2, &json!(4)), "{line}: {error}");
        assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{line}: {error}");
        assert_eq!(error["what"], "cannot read the command line", "{line}");
    }
    let text = run(&node, "cni ad pods web");
    assert!(text.status == 2 && text.stderr.starts_with("error: "), "{}", text.stderr);
    // `--json` behind `--` is of the command that runs in the pod.
    assert!(run(&node, "cni ad -- --json").stderr.starts_with("error: "));
    assert!(must(&node, "cni add --help --json").contains("Usage:"));
}

#[test]
fn without_root_a_command_says_so_instead_of_a_wrong_answer() {
    let node = node();
    must(&node, "cni add pods web");
    // The directory of the project may be closed to other users.
    node.sh(&format!("cp {} /run/test/podwire", podwire()));
    let as_nobody = |line: &str| {
        let drop = "setpriv --reuid 65534 --regid 65534 --clear-groups /run/test/podwire";
        let words: Vec<&str> = drop.split(' ').chain(line.split(' ')).collect();
        node.output(&words, &[("NETCONFPATH", CONF), ("CNI_PATH", &ours())])
    };
    let mut wrong = Vec::new();
    for line in [
        "cni list",
        "cni status",
        "cni audit",
        "cni reload",
        "cni gc pods --dry-run",
        "cni check pods web",
        "cni del pods web",
        "pod list",
        "pod status",
        "pod exec x -- true",
        "lab status",
        "lab verify",
        "service list",
        "verify",
        "demo",
    ] {
        let output = as_nobody(line);
        let name = line.split(' ').next().unwrap_or_default();
        let expected = format!("podwire: cannot run `podwire {name}`: this needs root (try sudo)\n");
        if (output.status, output.stdout.as_str(), &output.stderr) != (1, "", &expected) {
            wrong.push(format!("{line}: {}: {}{}", output.status, output.stdout, output.stderr));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A directory that cannot be read is not one without addresses, and a store that cannot be opened is not missing.
    node.sh("chmod 755 /var/lib; mkdir -m 755 /var/lib/podwire");
    must(&node, "ipam pool pods 10.8.0.0/16");
    for line in ["ipam show", "ipam migrate pods --dry-run"] {
        for mode in ["755", "700"] {
            node.sh(&format!("chmod {mode} /var/lib/podwire"));
            let output = as_nobody(line);
            let text = output.stdout + &output.stderr;
            assert!(output.status == 1 && text.contains("this needs root"), "{line}: {text}");
        }
    }
    let error: Value = serde_json::from_str(&as_nobody("cni list --json").stderr).unwrap();
    assert_eq!(error["details"], "this needs root");
    for line in ["plugins", "version", "lab break", "cni list --help"] {
        assert_eq!(as_nobody(line).status, 0, "{line}");
    }
}

#[test]
fn mistakes_in_a_config_name_the_file_and_what_was_meant() {
    let node = node();
    network(
        &node,
        "typo",
        &json!([{"type": "brdige", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]),
    );
    network(
        &node,
        "ipam",
        &json!([{"type": "ptp", "ipam": {"type": "host_local", "subnet": "10.1.0.0/24"}}]),
    );
    network(
        &node,
        "vlan",
        &json!([{"type": "bridge", "vlan": 5000, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]),
    );
    for (name, words) in [
        ("typo", ["failed to find plugin \"brdige\"", "did you mean \"bridge\"?"]),
        ("ipam", ["failed to find plugin \"host_local\"", "did you mean \"host-local\"?"]),
        ("vlan", ["plugin type=\"bridge\"", "5000"]),
    ] {
        for line in [format!("cni add {name} web"), format!("cni status {name}")] {
            let output = run(&node, &line);
            let text = output.stdout + &output.stderr;
            let file = format!("{CONF}/{name}.conflist");
            assert_eq!(output.status, 1, "{line}: {text}");
            for word in [words[0], words[1], &file] {
                assert!(text.contains(word), "{line}: {word}:\n{text}");
            }
        }
    }
    let skipped = run(&node, "pod run one --network typo").stderr;
    assert_eq!(skipped.matches(&format!("{CONF}/typo.conflist")).count(), 1, "{skipped}");
    node.write("/run/test/broken.conflist", "{");
    let refused =
        run(&node, "install --dry-run --root /run/test --conflist /run/test/broken.conflist").stderr;
    assert!(refused.contains("/run/test/broken.conflist"), "{refused}");
}

#[test]
fn plugins_beside_the_program_are_found_without_a_directory() {
    let node = node();
    // Neither /opt/cni/bin nor Debian's packages have it.
    node.write("/run/test/noop", "{}");
    network(&node, "pods", &json!([{"type": "noop", "debugFile": "/run/test/noop"}]));
    let words = ["env", "-u", "CNI_PATH", &podwire(), "cni", "status", "pods", "--conf-dir", CONF];
    let output = node.output(&words, &[]);
    assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
    let words = ["env", "-u", "CNI_PATH", &podwire(), "pod", "status", "--conf-dir", CONF];
    let output = node.output(&words, &[]);
    assert!(output.stdout.starts_with("network ready: pods"), "{}{}", output.stdout, output.stderr);
}

#[test]
fn tables_fit_the_terminal_and_are_whole_elsewhere() {
    let node = node();
    must(&node, &format!("cni add pods web --container {LONG} --publish 8080:80"));
    let list = format!("NO_COLOR=1 NETCONFPATH={CONF} CNI_PATH={} {} cni list", ours(), podwire());
    let widest = |text: &str| text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0);
    let whole = node.sh(&list);
    assert!(widest(&whole) > 100 && !whole.contains('…'), "{whole}");
    for columns in [80, 100] {
        let script = format!("script -qec 'stty cols {columns}; {list}' /dev/null");
        let shown = node.sh(&script);
        assert!(widest(&shown) <= columns, "{columns}:\n{shown}");
        assert!(shown.contains("10.9.0.") && shown.contains("8080:80"), "{shown}");
    }
}
