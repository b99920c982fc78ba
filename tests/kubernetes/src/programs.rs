//! The programs of Kubernetes, which the project's scripts build.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use podwire_tests::project;

/// The directory with Kubernetes' programs and etcd. They are built if they do not exist, which takes many minutes.
pub fn programs() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| script("scripts/kubernetes-binaries", &[]))
}

/// helm.
pub fn helm() -> String {
    script("scripts/kubernetes-binaries", &["helm"]) + "/helm"
}

/// CoreDNS.
pub fn coredns() -> String {
    script("scripts/kubernetes-binaries", &["coredns"]) + "/coredns"
}

/// The image under test, built from `dist/`.
pub fn image() -> String {
    script("scripts/image", &[]);
    project("dist/podwire-image.tar").display().to_string()
}

/// Runs a script and shows its progress. Returns the last line that it printed.
fn script(path: &str, words: &[&str]) -> String {
    let output = Command::new(project(path)).args(words).stderr(Stdio::inherit()).output().expect("a script");
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{path}: {}\n{printed}", output.status);
    printed.lines().last().unwrap_or_default().to_owned()
}
