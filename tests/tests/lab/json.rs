//! The form of the JSON of the commands.

use std::collections::BTreeSet;

use podwire_tests::{json_problems, podwire, subcommands};
use serde_json::Value;

use super::laboratory::Laboratory;
use super::policies::{policy, TempDir, SHOP};

/// The lab has warnings, nodes without a route to each other, a fault, and a pod that is missing: all optional parts.
#[test]
fn every_command_of_a_lab_prints_one_json_object_with_keys_in_camel_case() {
    let dir = TempDir::new();
    dir.write("shop.yaml", SHOP);
    dir.write("db.yaml", &policy("none"));
    dir.write(
        "service.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n",
    );
    let words = ["--nodes", "3", "--pods", "1", "--subnets", "2", "--backend", "host-gw", "--json"];
    let lab = Laboratory::up(&[&words[..], &["--policies", dir.path(), "--services", dir.path()]].concat());
    let up: Value =
        serde_json::from_str(&lab.started).unwrap_or_else(|error| panic!("{error}: {}", lab.started));
    let mut wrong = json_problems("up", &up);
    let mut run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (value, _) = lab.json(&words);
        wrong.extend(json_problems(line, &value));
        value
    };
    let applied = run("apply");
    run("break kill-agent n1");
    let broken = run("status");
    run("heal");
    lab.sh("n2", &format!("{} pod rm n2-pod1", podwire()));
    let verified = run("verify --timeout 300ms");
    run("down");
    for (value, part) in [
        (&up, "/warnings/0"),
        (&up, "/nodes/0/unreachable/0"),
        (&up, "/services/0/ips/0"),
        (&applied, "/warnings/0"),
        (&broken, "/faults/0"),
        (&verified, "/missing/0"),
        (&verified, "/rules/0"),
    ] {
        assert!(value.pointer(part).is_some(), "{part}: {value}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // `exec` prints what its command prints.
    let tested = ["up", "apply", "status", "exec", "verify", "break", "heal", "down"].map(String::from);
    assert_eq!(subcommands(&["lab"]), BTreeSet::from(tested));
}
