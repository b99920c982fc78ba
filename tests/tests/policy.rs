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
    assert_eq!(json[0]["tests"][0]["failures"].as_array().unwrap().len(), 2);
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
    let first: Vec<&str> = output.stdout.lines().take(3).collect();
    assert_eq!(
        first,
        [
            "shop/web (10.244.0.2) -> shop/db (10.244.0.3) TCP 5432: allow",
            "  egress of shop/web: allow: no policy applies",
            "  ingress of shop/db: allow: NetworkPolicy shop/db ingress[0] says Accept",
        ]
    );
    let output =
        policy(&directory, "explain 192.0.2.1 shop/db 22/UDP -f manifests --json --pod-network 10.9.0.0/16");
    assert_eq!(output.code, 1);
    let json: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&json[0]["verdict"], &json[0]["port"]), (&"deny".into(), &22.into()));
    assert_eq!(json[0]["destination"], "10.9.0.3");
    assert_eq!(json[0]["decisions"][0]["direction"], "ingress");
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
