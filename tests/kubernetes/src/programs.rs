//! The programs of Kubernetes, which the project's scripts build.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use podwire_tests::project;

/// The folder with Kubernetes' programs and etcd. They are built if they are not there, which takes its time.
pub fn programs() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| script("scripts/kubernetes-binaries", &[]))
}

/// helm.
pub fn helm() -> String {
    script("scripts/kubernetes-binaries", &["helm"]) + "/helm"
}

/// The file with the image of what is tested, made anew of `dist/`.
pub fn image() -> String {
    script("scripts/image", &[]);
    project("dist/podwire-image.tar").display().to_string()
}

/// Runs a script, whose progress is to be seen; returns the last line that it printed.
fn script(path: &str, words: &[&str]) -> String {
    let output = Command::new(project(path)).args(words).stderr(Stdio::inherit()).output().expect("a script");
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{path}: {}\n{printed}", output.status);
    printed.lines().last().unwrap_or_default().to_owned()
}
