//! containerd is killed while it starts a pod.
//!
//! The moments are defined: a plugin or runc stops at a gate, before or after its work, until the test has killed
//! containerd. Then it continues without containerd, as on a node, or is killed too.

use std::thread;

use podwire_runtime_tests::{Containerd, Gate, Plugins, PodSpec, Then};
use podwire_tests::{differences, podwire};

use crate::network::{packets_pass, serve};
use crate::{assert_nothing_left, remove_all, scene, EGRESS, INGRESS};

/// The moments, and whether the pod has its veth pair then even if the program at the gate is killed. (Killing
/// host-local ends bridge, its caller, before it creates the pair.) When runc is called, the network is complete and
/// recorded.
const MOMENTS: &[(Gate, bool)] = &[
    (Gate::before("bridge"), false),
    (Gate::after("host-local"), false),
    (Gate::after("bridge"), true),
    (Gate::after("portmap"), true),
    (Gate::after("bandwidth"), true),
    (Gate::before("runc"), true),
    (Gate::after("runc"), true),
];

/// The program that removes leftovers first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cleanup {
    /// The restarted containerd removes the pods that it recorded; then `podwire cni audit` runs.
    Containerd,
    /// `podwire cni audit` runs while containerd is down; then containerd must handle the missing networks.
    Audit,
}

/// Removes the namespaces of the pods, by which the audit recognises running pods, and then what the audit finds.
/// Returns what the audit printed. The audit skips files younger than a minute, because an ADD may still be running, so
/// the files get an older time.
fn audit(containerd: &Containerd) -> String {
    containerd.sh("find /var/lib/cni -type f -exec touch -d '2 minutes ago' {} +");
    containerd.sh("for one in $(ls /run/netns | grep ^cni-); do ip netns delete $one; done");
    let audit = containerd.output(&[&podwire(), "cni", "audit", "--fix"], &[]);
    audit.stdout + &audit.stderr
}

/// Kills containerd while it starts a pod and a program waits at the gate. Returns what is left.
fn crash(containerd: &mut Containerd, gate: Gate, then: Then) -> String {
    gate.put_up(containerd);
    let mut cri = containerd.cri();
    let spec = PodSpec::named("partial").port(8080, 80).annotation(INGRESS, "1M").annotation(EGRESS, "1M");
    let running = thread::spawn(move || cri.try_run(&spec));
    containerd.kill_at(gate, then);
    running.join().expect("the call").expect_err("containerd was killed");
    gate.take_away(containerd);
    containerd.traces()
}

fn remove_leftovers_of_each_moment(cleanup: Cleanup) {
    let (mut containerd, outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    for (gate, has_veth_pair) in MOMENTS {
        for then in [Then::Continues, Then::IsKilled] {
            let case = format!("{gate:?}, {then:?}");
            let left = differences(&before, &crash(&mut containerd, *gate, then));
            assert!(left.contains("namespace cni-"), "{case}: the crash left no namespace: {left}");
            let veth_left = left.contains("link veth");
            assert_eq!(veth_left, *has_veth_pair || then == Then::Continues, "{case}: {left}");
            if cleanup == Cleanup::Audit {
                let printed = audit(&containerd);
                assert!(!veth_left || printed.contains("pods/"), "{case}: the audit printed {printed}");
                assert_nothing_left(&containerd, &before);
            }
            containerd.restart();
            remove_all(&mut containerd.cri());
            if cleanup == Cleanup::Containerd {
                audit(&containerd);
            }
            assert_nothing_left(&containerd, &before);
        }
    }
    // The same host port can be used again.
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let other = serve(&mut cri, &PodSpec::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
}

#[test]
fn containerd_and_audit_remove_leftovers_of_a_crashed_containerd() {
    remove_leftovers_of_each_moment(Cleanup::Containerd);
}

#[test]
fn audit_alone_removes_leftovers_of_a_crashed_containerd() {
    remove_leftovers_of_each_moment(Cleanup::Audit);
}
