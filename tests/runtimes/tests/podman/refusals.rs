//! Failures are reported in one clear line and leave nothing.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins, Podman};

use crate::scene;

/// A registry without a listener: the machine outside.
const NOWHERE: &str = "192.0.2.2:5000/nothing:1";
const FILE: &str = "/etc/cni/net.d/pods.conflist";

/// What is done to the stage, what is asked of podman, what its line must say, and what a warning before it.
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
    // podman looks for the plugins of each file that it reads, and has no network where one is missing.
    refusal(
        "rm /opt/cni/bin/portmap",
        POD,
        &["pods", "network not found"],
        "failed to find plugin \\\"portmap\\\"",
    ),
    refusal("echo '{ broken' > $FILE", POD, &["pods", "network not found"], "pods.conflist"),
    refusal("sed -i 's|fd90::/64|fd90::/129|' $FILE", POD, &["pods", "network not found"], "fd90::/129"),
    // What podman's library cannot read back, it should not have asked for.
    refusal("sed -i 's|0.4.0|1.1.0|' $FILE", POD, &["unsupported CNI result version", "1.1.0"], ""),
    // It does not look for IPAM plugins: bridge does.
    refusal("rm /opt/cni/bin/host-local", POD, &["host-local", "/opt/cni/bin"], ""),
    // The first plugin says no to what podman does not look at.
    refusal(
        "sed -i 's|\"type\": \"bridge\"|\"type\": \"bridge\", \"macspoofchk\": 7|' $FILE",
        POD,
        &["plugin type=\"bridge\" failed (add)", "macspoofchk"],
        "",
    ),
    // The second one does: what the first one did is taken back.
    refusal(
        "sed -i 's|\"type\": \"portmap\"|\"type\": \"portmap\", \"markMasqBit\": 99|' $FILE",
        POD,
        &["plugin type=\"portmap\" failed (add)", "markMasqBit"],
        "",
    ),
    // A port that another container has: its conmon listens there, so that no other program takes it.
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
    // The good network again.
    podman.run(&ContainerSpec::named("refused").port(8081, 80));
}
