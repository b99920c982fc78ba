//! containerd is killed while it starts a pod.
//!
//! The moments are not left to chance: a plugin, or runc, stands still at a gate, before or after its work, until the test has
//! killed containerd. Then it goes on alone, as it would on a node, or is killed too.

use std::thread;

use podwire_runtime_tests::{Containerd, Plugins, Wish};
use podwire_tests::podwire;

use crate::network::{packets_pass, serve};
use crate::{assert_nothing_left, remove_all, scene};

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
    Before("loopback"),
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
BEFORE
REAL "$@"
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

/// Removes what no pod of containerd's owns: namespaces first, since what lives is told by them.
fn sweep(containerd: &Containerd) {
    let mut cri = containerd.cri();
    remove_all(&mut cri);
    containerd.sh("for one in $(ls /run/netns | grep ^cni-); do ip netns delete $one; done");
    let audit = containerd.output(&[&podwire(), "cni", "audit", "--fix"], &[]);
    println!("{}{}", audit.stdout, audit.stderr);
}

#[test]
fn whatever_a_crash_of_containerd_leaves_of_half_a_pod_is_swept() {
    let (mut containerd, outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    for gate in GATES {
        for then in [Then::GoesOn, Then::Dies] {
            println!("{gate:?}, and {then:?}");
            gate.put_up(&containerd);
            let mut cri = containerd.cri();
            let running = thread::spawn(move || cri.try_run(&Wish::named("half").port(8080, 80)));
            let pid = containerd.sh("timeout 60 cat /run/test/reached");
            containerd.kill();
            if then == Then::Dies {
                containerd.sh(&format!("kill -9 {pid}"));
            } else {
                containerd.sh("timeout 60 sh -c 'echo go >/run/test/gate'");
            }
            containerd.sh(&format!("timeout 60 tail --pid={} -s 0.02 -f /dev/null", pid.trim()));
            running.join().expect("the call").expect_err("containerd is dead");
            gate.take_away(&containerd);
            containerd.restart();
            sweep(&containerd);
            assert_nothing_left(&containerd, &before);
        }
    }
    // The node is as good as new: the same host port again.
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &Wish::named("web").port(8080, 80));
    let other = serve(&mut cri, &Wish::named("other"));
    packets_pass(&containerd, &outside, [&web, &other]);
}
