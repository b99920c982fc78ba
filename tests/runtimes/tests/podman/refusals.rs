//! Failures are reported in one clear line and leave nothing behind.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins, Podman};

use crate::scene;

/// A registry without a listener: the machine outside.
const NOWHERE: &str = "192.0.2.2:5000/nothing:1";
const FILE: &str = "/etc/cni/net.d/pods.conflist";

/// The change to the stage, podman's arguments, and the texts of its error and of its warning.
struct Refusal {
    spoil: &'static str,
    run: &'static [&'static str],
    says: &'static [&'static str],
    warns: &'static str,
}

const fn refusal(
    spoil: &'static str,
    run: &'static [&'static str],
    says: &'static [&'static str],
    warns: &'static str,
) -> Refusal {
    Refusal { spoil, run, says, warns }
}

const REFUSALS: &[Refusal] = &[
    refusal("", &["--network", "nowhere", "podwire.test/box:1"], &["nowhere", "network not found"], ""),
    refusal("", &["--network", "pods", NOWHERE], &[NOWHERE, "connection refused"], ""),
    // podman checks that the plugins of each file exist, and drops a network with a missing one.
    refusal(
        "rm /opt/cni/bin/portmap",
        POD,
        &["pods", "network not found"],
        "failed to find plugin \\\"portmap\\\"",
    ),
    refusal("echo '{ broken' > $FILE", POD, &["pods", "network not found"], "pods.conflist"),
    refusal("sed -i 's|fd90::/64|fd90::/129|' $FILE", POD, &["pods", "network not found"], "fd90::/129"),
    // podman's library cannot read this result back.
    refusal("sed -i 's|0.4.0|1.1.0|' $FILE", POD, &["unsupported CNI result version", "1.1.0"], ""),
    // podman does not check IPAM plugins: bridge reports this one.
    refusal("rm /opt/cni/bin/host-local", POD, &["host-local", "/opt/cni/bin"], ""),
    // The first plugin rejects a key that podman ignores.
    refusal(
        "sed -i 's|\"type\": \"bridge\"|\"type\": \"bridge\", \"macspoofchk\": 7|' $FILE",
        POD,
        &["plugin type=\"bridge\" failed (add)", "macspoofchk"],
        "",
    ),
    // The second plugin fails: the first one's work is undone.
    refusal(
        "sed -i 's|\"type\": \"portmap\"|\"type\": \"portmap\", \"markMasqBit\": 99|' $FILE",
        POD,
        &["plugin type=\"portmap\" failed (add)", "MasqMarkBit must be between 0 and 31"],
        "",
    ),
    // The port of another container: that container's conmon listens on it, so that no other program takes it.
    refusal("", POD_WITH_PORT, &["cannot listen on the TCP port", "8080", "already in use"], ""),
];

const POD: &[&str] = &["--network", "pods", "-p", "8081:80", "podwire.test/pause:1"];
const POD_WITH_PORT: &[&str] = &["--network", "pods", "-p", "192.0.2.1:8080:80", "podwire.test/pause:1"];

fn spoil(podman: &Podman, script: &str) {
    podman.sh(&format!("FILE={FILE}\n{script}"));
}

#[test]
fn failures_are_one_line_and_leave_nothing() {
    let (podman, _outside) = scene(Plugins::Ours);
    podman.run(&ContainerSpec::named("web").port(8080, 80));
    podman.sh(&format!("cp {FILE} /run/test/good"));
    let before = podman.traces();
    for Refusal { spoil: script, run, says, warns } in REFUSALS {
        spoil(&podman, script);
        let (line, warnings) = podman.refuses(&[&["run", "-d", "--name", "refused"], *run].concat());
        println!("{line}");
        assert!(says.iter().all(|words| line.contains(words)), "{says:?} is not in: {line}");
        assert!(warnings.contains(warns), "{warns:?} is not in: {warnings}");
        podman.install(Plugins::Ours);
        podman.sh(&format!("cp /run/test/good {FILE}"));
        podman.must(&["rm", "-f", "-i", "-t", "0", "refused"]);
        podman.assert_nothing_left(&before);
    }
    // The original network again.
    podman.run(&ContainerSpec::named("refused").port(8081, 80));
}
