//! The build script's list of linked crates, compared with Cargo's own.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

#[test]
fn the_fingerprint_covers_every_workspace_crate_that_plugins_link() {
    let tree = ["tree", "--offline", "--package", "podwire-plugins", "--edges", "normal", "--prefix", "none"];
    let output = Command::new(env!("CARGO")).args(tree).args(["--format", "{p}"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let expected: BTreeSet<String> =
        names.filter(|name| name.starts_with("podwire-")).map(String::from).collect();
    let found = build::linked_crates(Path::new("../.."), "podwire-plugins");
    assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), expected);
}
