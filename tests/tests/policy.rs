//! `podwire policy`: tables that hold, tables that do not, and invalid files.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use podwire_tests::{podwire, project};
use serde_json::Value;

/// A temporary directory, deleted with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("podwire-policy-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Output {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs `podwire policy …` in the directory.
fn policy(directory: &Directory, line: &str) -> Output {
    let arguments = line.split_whitespace();
    let output = Command::new(podwire())
        .arg("policy")
        .args(arguments)
        .current_dir(&directory.0)
        .output()
        .expect("podwire");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code().unwrap(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: []}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec: {template: {metadata: {labels: {app: db}}, spec: {containers: [{ports: [{name: pg, containerPort: 5432}]}]}}}
---
# Ignored by policies.
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: pg}]
";

/// Policies that do not decide about connections from the web to the database.
const MORE: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingres: []}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: block, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Ingress]
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.244.0.0/16]}
    - namespaceSelector: {}
      podSelector:
        matchExpressions: [{key: tier, operator: In, values: [a, b]}, {key: old, operator: DoesNotExist}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress:
  - name: dns
    action: Accept
    to: [{nodes: {}}, {networks: [8.8.8.0/24]}]
    protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {range: {start: 1000, end: 2000}}}}]
  - {action: Accept, to: [{}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: other}
spec:
  tier: Baseline
  priority: 1
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: prod}}, podSelector: {}}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
";

/// The shop's manifests and a file with expectations.
fn shop(expectations: &str) -> Directory {
    let directory = Directory::new();
    directory.write("manifests/shop.yaml", SHOP);
    directory.write("manifests/notes.txt", "not: [YAML");
    directory.write("tests/shop.yaml", expectations);
    directory
}

#[test]
fn the_tables_of_both_apis_hold() {
    let directory = Directory::new();
    let tables = project("tests/policies");
    let files = ["network-policy", "cluster-network-policy"].map(|name| tables.join(format!("{name}.yaml")));
    let output = policy(&directory, &format!("test {} {}", files[0].display(), files[1].display()));
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let last = output.stdout.lines().last().unwrap();
    let count: usize = last.split(' ').next().unwrap().parse().unwrap();
    assert!(count >= 150, "{last}");
}

#[test]
fn expectations_that_hold_are_counted() {
    let directory = shop(
        "sources: [../manifests]\ntests:\n- name: only the web\n  port: [pg, 5432]\n  expect:\n  - deny: '* -> shop/db'\n  - allow: 'shop/web -> shop/db'\n  - deny: '192.0.2.1 -> shop/db'\n",
    );
    let output = policy(&directory, "test tests/shop.yaml --strict");
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    // Two ports; shop/web over IPv4 and IPv6, the external address over IPv4.
    assert_eq!(output.stdout, "ok  tests/shop.yaml: only the web (6 connections)\n1 tests, 6 connections\n");
}

#[test]
fn a_failed_expectation_names_the_deciding_policy() {
    let directory = shop("sources: [../manifests]\ntests:\n- {name: ssh, port: 22, expect: [{allow: 'shop/web -> shop/db'}]}\n");
    let output = policy(&directory, "test tests/shop.yaml");
    assert_eq!(output.code, 1);
    for line in [
        "FAILED  tests/shop.yaml: ssh (2 of 2 connections)",
        "  shop/web -> shop/db TCP 22: expected allow, is deny (10.244.0.2 -> 10.244.0.3)",
        "    egress of shop/web: allow: no policy applies",
        "    ingress of shop/db: deny: the pod is isolated and no rule allows it: shop/db",
    ] {
        assert!(output.stdout.lines().any(|is| is == line), "{line}\n{}", output.stdout);
    }
    let output = policy(&directory, "test tests/shop.yaml --json");
    let json: Value = serde_json::from_str(&output.stdout).unwrap();
    let failures = json["files"][0]["tests"][0]["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2);
    let of = |key: &str| failures[0][key].clone();
    assert_eq!(
        [of("from"), of("to"), of("port"), of("expected"), of("verdict")],
        ["shop/web".into(), "shop/db".into(), Value::from(22), "allow".into(), "deny".into()]
    );
    assert_eq!(output.code, 1);
}

#[test]
fn warnings_are_printed_and_fail_with_strict() {
    let directory = shop(
        "sources: [../manifests]\nobjects:\n- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: typo, namespace: shop}, spec: {podSelector: {}, polycyTypes: [Egress]}}\ntests:\n- {name: closed, expect: [{deny: 'shop/db -> shop/web'}]}\n",
    );
    let output = policy(&directory, "test tests/shop.yaml");
    assert_eq!(output.code, 0, "{}", output.stderr);
    let line = "warning: NetworkPolicy shop/typo: spec.polycyTypes: no such field";
    assert!(output.stdout.lines().any(|is| is == line), "{}", output.stdout);
    assert_eq!(policy(&directory, "test tests/shop.yaml --strict").code, 1);
}

#[test]
fn explain_names_the_rule_and_exits_by_the_verdict() {
    let directory = shop("tests: []");
    let output = policy(&directory, "explain shop/web shop/db pg -f manifests");
    assert_eq!(output.code, 0, "{}", output.stderr);
    let first: Vec<&str> = output.stdout.lines().take(4).collect();
    assert_eq!(
        first,
        [
            "shop/web (10.244.0.2) -> shop/db (10.244.0.3) TCP 5432: allow",
            "  egress of shop/web: allow: no policy applies",
            "    no match: NetworkPolicy shop/db: selects pods {app=db}, and the pod has labels {app=web} in namespace shop",
            "  ingress of shop/db: allow: NetworkPolicy shop/db ingress[0] says Accept",
        ]
    );
    let output =
        policy(&directory, "explain 192.0.2.1 shop/db 22/UDP -f manifests --json --pod-network 10.9.0.0/16");
    assert_eq!(output.code, 1);
    let json: Value = serde_json::from_str(&output.stdout).unwrap();
    let one = &json["connections"][0];
    assert_eq!((&one["verdict"], &one["port"]), (&"deny".into(), &22.into()));
    assert_eq!(one["destination"], "10.9.0.3");
    assert_eq!(one["decisions"][0]["direction"], "ingress");
    let why = "NetworkPolicy shop/db ingress[0]: the other end is 192.0.2.1, which is no pod, not pods {app=web} in \
               namespace shop; the port is UDP 22, not TCP port \"pg\" of the receiver";
    assert_eq!(one["decisions"][0]["skipped"][0], why);
}

#[test]
fn explain_says_why_rules_of_every_kind_do_not_match() {
    let directory = shop("tests: []");
    directory.write("manifests/more.yaml", MORE);
    let output = policy(&directory, "explain shop/web shop/db 22 -f manifests");
    assert_eq!(output.code, 1, "{}", output.stderr);
    for line in [
        "  egress of shop/web: allow: no policy applies",
        "    no match: ClusterNetworkPolicy admin egress[0] \"dns\": the other end is shop/db with labels {app=db} in \
         namespace shop, not nodes {} or 8.8.8.0/24; the port is TCP 22, not UDP 53 or TCP 1000-2000",
        "    no match: ClusterNetworkPolicy admin egress[1]: is invalid, so it accepts nothing",
        "    no match: NetworkPolicy shop/web: applies only to the other direction",
        "    no match: ClusterNetworkPolicy other: selects pods {} in namespaces {kubernetes.io/metadata.name=prod}, and \
         the pod has labels {app=web} in namespace shop",
        "    no match: NetworkPolicy shop/db ingress[0]: the port is TCP 22, not TCP port \"pg\" of the receiver",
        "    no match: NetworkPolicy shop/block ingress[0]: the other end is shop/web with labels {app=web} in namespace \
         shop, not 10.0.0.0/8 except 10.244.0.0/16 or pods {tier in (a,b),!old} in namespaces {}",
    ] {
        assert!(output.stdout.lines().any(|is| is == line), "{line}\n{}", output.stdout);
    }
    let warning = "warning: NetworkPolicy shop/web: spec.ingres: no such field";
    assert!(output.stdout.lines().any(|is| is == warning), "{}", output.stdout);
    let json = policy(&directory, "explain shop/web shop/db 22 -f manifests --json").stdout;
    assert!(json.contains("\"place\": \"spec.ingres\""), "{json}");
}

#[test]
fn explain_exits_with_2_after_an_error() {
    let directory = shop("tests: []");
    for (line, because) in [
        ("explain shop/none shop/db 22 -f manifests", "no pod matches \"shop/none\""),
        ("explain shop/web shop/db 22 -f nowhere", "read nowhere"),
        ("explain shop/web shop/db 22 --socket nowhere.sock", "ask the policy agent at nowhere.sock"),
        ("explain shop/web shop/db", "required"),
    ] {
        let output = policy(&directory, line);
        assert!(
            output.code == 2 && output.stderr.contains(because),
            "{line}: {} {}",
            output.code,
            output.stderr
        );
    }
}

#[test]
fn errors_of_invalid_files_name_the_file_and_the_problem() {
    let object = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {matchLabels: {v: 1}}}";
    for (name, text, because) in [
        ("none.yaml", None, "No such file or directory"),
        ("yaml.yaml", Some("tests: [\n"), "yaml.yaml: "),
        ("keys.yaml", Some("tests: []\ntest: []\n"), "unknown field `test`"),
        ("two.yaml", Some("tests: []\n---\ntests: []\n"), "expected one document, found 2"),
        ("line.yaml", Some("tests: [{name: t, expect: [{allow: 'a to b'}]}]"), "is not FROM -> TO"),
        ("pod.yaml", Some("tests: [{name: t, expect: [{allow: 'a -> b'}]}]"), "no pod matches \"a\""),
        (
            "node.yaml",
            Some("tests: [{name: t, expect: [{allow: 'node:a -> b'}]}]"),
            "node \"a\" does not exist",
        ),
        ("source.yaml", Some("sources: [nowhere]\ntests: []"), "read nowhere"),
        ("kind.yaml", Some("objects: [{apiVersion: v1}]\ntests: []"), "it has no kind"),
        ("object.yaml", Some("sources: [bad/object.yaml]\ntests: []"), "expected a string"),
    ] {
        let directory = Directory::new();
        directory.write("bad/object.yaml", object);
        if let Some(text) = text {
            directory.write(name, text);
        }
        let output = policy(&directory, &format!("test {name}"));
        assert_eq!(output.code, 1, "{name}: {}", output.stdout);
        assert!(
            output.stderr.starts_with(&format!("podwire: cannot test {name}\n  because: ")),
            "{}",
            output.stderr
        );
        assert!(output.stderr.contains(because), "{name}: {}", output.stderr);
    }
}

/// The YAML code blocks of a document.
fn blocks(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(project(document)).unwrap();
    text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).map(String::from).collect()
}

#[test]
fn the_example_in_the_document_holds() {
    let directory = Directory::new();
    let blocks = blocks("docs/policy.md");
    let [manifests, expectations, pod] = &blocks[..] else {
        panic!("manifests, expectations and one more pod: {}", blocks.len())
    };
    directory.write("manifests/shop.yaml", manifests);
    directory.write("manifests/vpn.yaml", pod);
    directory.write("tests/shop.yaml", expectations);
    let output = policy(&directory, "test tests/shop.yaml --strict");
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
}
