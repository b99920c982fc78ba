//! The chart, rendered by the real helm.

use std::process::Command;
use std::sync::OnceLock;

use podwire_tests::project;
use serde_json::Value;

use crate::{helm, manifest};

/// The directory of the chart.
pub const CHART: &str = "deploy/helm/podwire";

/// Runs helm. Returns whether it succeeded, and its output.
pub fn call(words: &[&str]) -> (bool, String) {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(helm);
    let output = Command::new(program).args(words).current_dir(project(".")).output().expect("helm");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), printed.into_owned())
}

/// The objects of the chart with these settings, definitions of custom resources first.
pub fn rendered(settings: &[&str]) -> Vec<Value> {
    let mut words = vec!["template", "podwire", CHART, "--namespace", "kube-system", "--include-crds"];
    words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let (is_good, printed) = call(&words);
    assert!(is_good, "{printed}");
    manifest::parse(&printed)
}
