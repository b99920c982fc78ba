//! containerd is killed while it starts a pod.
//!
//! The moments are not left to chance: a plugin, or runc, stands still at a gate, before or after its work, until the test has
//! killed containerd. Then it goes on alone, as it would on a node, or is killed too.

use std::thread;

use podwire_runtime_tests::{Containerd, Plugins, Wish};
use podwire_tests::{differences, podwire};

use crate::network::{packets_pass, serve};
use crate::{assert_nothing_left, remove_all, scene, EGRESS, INGRESS};

/// Where a program stands still.
#[derive(Clone, Copy, Debug)]
enum Gate {
    Before(&'static str),
    After(&'static str),
}

/// What becomes of the program that stands at the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    GoesOn,
    Dies,
}

use Gate::{After, Before};

/// From the first plugin to the last, and beyond: when runc is called, the network is complete and recorded.
const GATES: &[Gate] = &[
    Before("bridge"),
    After("host-local"),
    After("bridge"),
    After("portmap"),
    After("bandwidth"),
    Before("runc"),
    After("runc"),
];

/// Stands in for a program: tells that it has come, and waits at the gate.
const STAND_IN: &str = r#"#!/bin/sh
wait_at_the_gate() { echo $$ >/run/test/reached; read -r word </run/test/gate; }
case "${CNI_COMMAND:-$*}" in ADD | *" create "*) ;; *) exec REAL "$@" ;; esac
if [ -n "${CNI_COMMAND:-}" ]; then
  # The whole config first: who writes it may be dead when the gate opens.
  config=$(cat)
  work() { printf %s "$config" | REAL "$@"; }
else
  work() { REAL "$@"; }
fi
BEFORE
work "$@"
status=$?
AFTER
exit $status
"#;

impl Gate {
    fn program(self) -> &'static str {
        match self {
            Before(program) | After(program) => program,
        }
    }

    /// Where the program is looked for, and where it really is while another stands in.
    fn files(self) -> [String; 2] {
        let program = self.program();
        match program {
            "runc" => ["/opt/runc/runc".into(), "/usr/sbin/runc".into()],
            _ => [format!("/opt/cni/bin/{program}"), format!("/opt/real/{program}")],
        }
    }

    /// Whether the pod has its cable when the program has passed the gate, or died there.
    fn has_wire(self, then: Then) -> bool {
        match self {
            // Killed is who called bridge's IPAM plugin, or bridge itself; else bridge completes its work.
            Before("bridge") => then == Then::GoesOn,
            After("host-local") => then == Then::GoesOn,
            _ => true,
        }
    }

    /// Puts the gate up.
    fn put_up(self, containerd: &Containerd) {
        let [file, real] = self.files();
        if self.program() != "runc" {
            containerd.sh(&format!("mkdir -p /opt/real && mv {file} {real}"));
        }
        let wait = |here| if here { "wait_at_the_gate" } else { "" };
        let script = STAND_IN
            .replace("REAL", &real)
            .replace("BEFORE", wait(matches!(self, Before(_))))
            .replace("AFTER", wait(matches!(self, After(_))));
        containerd.write(&file, &script);
        containerd
            .sh(&format!("chmod 755 {file}; rm -f /run/test/*; mkfifo /run/test/reached /run/test/gate"));
    }

    /// Takes the gate away.
    fn take_away(self, containerd: &Containerd) {
        let [file, real] = self.files();
        let back = if self.program() == "runc" { format!("rm {file}") } else { format!("mv {real} {file}") };
        containerd.sh(&back);
    }
}

/// Who removes what is left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sweeper {
    /// The next containerd, as far as it remembers; then our audit.
    Containerd,
    /// Our audit, before containerd is back; then containerd must cope.
    Audit,
}

/// Removes the network of pods that do not run: their namespaces, since by these it is told who lives, and what the audit finds.
/// Returns what that was. What is younger than a minute it leaves to whoever may be about to write down whose it is: so a minute
/// goes by.
fn audit(containerd: &Containerd) -> String {
    containerd.sh("find /var/lib/cni -type f -exec touch -d '2 minutes ago' {} +");
    containerd.sh("for one in $(ls /run/netns | grep ^cni-); do ip netns delete $one; done");
    let audit = containerd.output(&[&podwire(), "cni", "audit", "--fix"], &[]);
    audit.stdout + &audit.stderr
}

/// Kills containerd while it starts a pod and a program stands at the gate. Returns what is left.
fn crash(containerd: &mut Containerd, gate: Gate, then: Then) -> String {
    gate.put_up(containerd);
    let mut cri = containerd.cri();
    let wish = Wish::named("half").port(8080, 80).annotation(INGRESS, "1M").annotation(EGRESS, "1M");
    let running = thread::spawn(move || cri.try_run(&wish));
    let pid = containerd.sh("timeout 60 cat /run/test/reached");
    let pid = pid.trim();
    containerd.kill();
    let end = match then {
        Then::Dies => format!("kill -9 {pid} 2>/dev/null"),
        Then::GoesOn => "echo go 1<>/run/test/gate".into(),
    };
    // runc may have ended by itself: it does when the one who wanted it has gone.
    containerd.sh(&format!("timeout 60 sh -c 'while kill -0 {pid} 2>/dev/null; do {end}; sleep 0.02; done'"));
    running.join().expect("the call").expect_err("containerd is dead");
    gate.take_away(containerd);
    containerd.traces()
}

fn half_a_pod_is_swept_by(sweeper: Sweeper) {
    let (mut containerd, outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    for gate in GATES {
        for then in [Then::GoesOn, Then::Dies] {
            let case = format!("{gate:?}, {then:?}");
            let left = differences(&before, &crash(&mut containerd, *gate, then));
            assert!(left.contains("namespace cni-"), "{case}: a crash that leaves nothing: {left}");
            let wired = left.contains("link veth");
            assert_eq!(wired, gate.has_wire(then), "{case}: {left}");
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
    let web = serve(&mut cri, &Wish::named("web").port(8080, 80));
    let other = serve(&mut cri, &Wish::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
}

#[test]
fn whatever_a_crash_of_containerd_leaves_of_half_a_pod_is_swept_by_the_next_one_and_the_audit() {
    half_a_pod_is_swept_by(Sweeper::Containerd);
}

#[test]
fn whatever_a_crash_of_containerd_leaves_of_half_a_pod_is_swept_by_the_audit_alone() {
    half_a_pod_is_swept_by(Sweeper::Audit);
}
