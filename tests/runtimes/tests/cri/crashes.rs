//! containerd is killed while it starts a pod.
//!
//! The moments are defined: a plugin, or runc, stops at a gate, before or after its work, until the test has killed
//! containerd. Then it continues alone, as it would on a node, or is killed too.

use std::thread;

use podwire_runtime_tests::{Containerd, Gate, Plugins, PodSpec, Then};
use podwire_tests::{differences, podwire};

use crate::network::{packets_pass, serve};
use crate::{assert_nothing_left, remove_all, scene, EGRESS, INGRESS};

/// From the first plugin to the last, and beyond: when runc is called, the network is complete and recorded. With each,
/// whether the pod has its veth pair even if the one at the gate dies there: killed may be bridge itself, or who called
/// bridge's IPAM plugin.
const MOMENTS: &[(Gate, bool)] = &[
    (Gate::before("bridge"), false),
    (Gate::after("host-local"), false),
    (Gate::after("bridge"), true),
    (Gate::after("portmap"), true),
    (Gate::after("bandwidth"), true),
    (Gate::before("runc"), true),
    (Gate::after("runc"), true),
];

/// Who removes what is left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sweeper {
    /// The next containerd, as far as it remembers; then our audit.
    Containerd,
    /// Our audit, before containerd is back; then containerd must cope.
    Audit,
}

/// Removes the networks of pods that do not run: their namespaces, by which the audit recognises running pods, and then
/// what the audit finds, which is returned. The audit skips files younger than a minute, whose records may still be
/// written, so the files get an older time.
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
    let spec = PodSpec::named("half").port(8080, 80).annotation(INGRESS, "1M").annotation(EGRESS, "1M");
    let running = thread::spawn(move || cri.try_run(&spec));
    containerd.kill_at(gate, then);
    running.join().expect("the call").expect_err("containerd is dead");
    gate.take_away(containerd);
    containerd.traces()
}

fn half_a_pod_is_swept_by(sweeper: Sweeper) {
    let (mut containerd, outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    for (gate, has_wire) in MOMENTS {
        for then in [Then::GoesOn, Then::Dies] {
            let case = format!("{gate:?}, {then:?}");
            let left = differences(&before, &crash(&mut containerd, *gate, then));
            assert!(left.contains("namespace cni-"), "{case}: a crash that leaves nothing: {left}");
            let wired = left.contains("link veth");
            assert_eq!(wired, *has_wire || then == Then::GoesOn, "{case}: {left}");
            if sweeper == Sweeper::Audit {
                let said = audit(&containerd);
                assert!(!wired || said.contains("pods/"), "{case}: the audit says {said}");
                assert_nothing_left(&containerd, &before);
            }
            containerd.restart();
            remove_all(&mut containerd.cri());
            if sweeper == Sweeper::Containerd {
                audit(&containerd);
            }
            assert_nothing_left(&containerd, &before);
        }
    }
    // The node is as good as new: the same host port again.
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let other = serve(&mut cri, &PodSpec::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
}

#[test]
fn containerd_and_audit_remove_leftovers_of_a_crashed_containerd() {
    half_a_pod_is_swept_by(Sweeper::Containerd);
}

#[test]
fn audit_alone_removes_leftovers_of_a_crashed_containerd() {
    half_a_pod_is_swept_by(Sweeper::Audit);
}
