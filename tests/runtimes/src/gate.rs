//! A gate stops a program at a defined moment, before or after its work, until the test continues or kills it.
//! Meanwhile the test kills the caller of the program.

use crate::Stage;

/// The moment at which a program stops.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    program: &'static str,
    after: bool,
    verb: &'static str,
}

/// What happens to the program at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It continues without its caller.
    Continues,
    /// It is killed too.
    IsKilled,
}

/// The first directory in which runtimes look for `runc` and `conmon`, so that a gate can replace them.
pub const GATES: &str = "/opt/gate";

/// Replaces a program: reads its input, signals that it started, and waits at the gate.
const STAND_IN: &str = r#"#!/bin/sh
wait_at_the_gate() { echo $$ >/run/test/reached; read -r word </run/test/gate; }
case "${CNI_COMMAND:-$*}" in VERB) ;; *) exec REAL "$@" ;; esac
# Only the first call waits: a runtime may call the program again from another process.
mkdir /run/test/came 2>/dev/null || exec REAL "$@"
if [ -n "${CNI_COMMAND:-}" ]; then
  # Read the whole config first: its writer may have ended when the gate opens.
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
    /// Before the work of a plugin at ADD, of `runc create`, or of conmon.
    pub const fn before(program: &'static str) -> Gate {
        Gate { program, after: false, verb: "ADD" }
    }

    /// After the work of a plugin at ADD, of `runc create`, or of conmon.
    pub const fn after(program: &'static str) -> Gate {
        Gate { program, after: true, verb: "ADD" }
    }

    /// Before the work of a plugin at another verb.
    pub const fn at(verb: &'static str, program: &'static str) -> Gate {
        Gate { program, after: false, verb }
    }

    /// The path of the program, and of the real program while it is replaced.
    fn files(self, stage: &Stage) -> [String; 2] {
        match self.program {
            "runc" | "conmon" => {
                let real =
                    stage.sh(&format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v {}", self.program));
                [format!("{GATES}/{}", self.program), real.trim().into()]
            }
            plugin => [format!("/opt/cni/bin/{plugin}"), format!("/opt/real/{plugin}")],
        }
    }

    /// Replaces the program by the gate.
    pub fn put_up(self, stage: &Stage) {
        let [file, real] = self.files(stage);
        let verb = match self.program {
            "runc" => "*\" create \"*",
            "conmon" => "*",
            _ => self.verb,
        };
        if file.starts_with("/opt/cni") {
            stage.sh(&format!("mkdir -p /opt/real && cp -a {file} {real}"));
        }
        let wait = |here| if here { "wait_at_the_gate" } else { "" };
        let script = STAND_IN
            .replace("VERB", verb)
            .replace("REAL", &real)
            .replace("BEFORE", wait(!self.after))
            .replace("AFTER", wait(self.after));
        stage.sh(&format!("rm -rf {file} /run/test/reached /run/test/gate /run/test/came"));
        stage.write(&file, &script);
        stage.sh(&format!("chmod 755 {file}; mkfifo /run/test/reached /run/test/gate"));
    }

    /// Waits until the program has reached the gate, calls `meanwhile`, and lets the program continue or kills it.
    pub fn pass(self, stage: &Stage, then: Then, meanwhile: impl FnOnce()) {
        let pid = stage.sh("timeout 60 cat /run/test/reached");
        let pid = pid.trim();
        meanwhile();
        let go = match then {
            Then::IsKilled => "kill -9 $pid 2>/dev/null",
            Then::Continues => "timeout 10 sh -c 'echo go >/run/test/gate'",
        };
        // Some callers kill the programs that they started when they end, and some never wait for them.
        stage.sh(&format!(
            "pid={pid}; runs() {{ grep -q '^State:[[:space:]]*[^ZX]' /proc/$pid/status 2>/dev/null; }}
             runs || exit 0; {go} || ! runs || exit 1
             for try in $(seq 600); do runs || exit 0; sleep 0.05; done; exit 1"
        ));
        // A plugin that called the program undoes its own work before it ends.
        stage.sh("works() { readlink /proc/[0-9]*/exe 2>/dev/null | grep -q '^/opt/\\(cni/bin\\|real\\)/'; }
             for try in $(seq 200); do works || exit 0; sleep 0.05; done");
    }

    /// Replaces the gate by the real program.
    pub fn take_away(self, stage: &Stage) {
        let [file, real] = self.files(stage);
        // The real file stays where it is: a container may have recorded the path of its runtime.
        stage.sh(&if file.starts_with("/opt/cni") {
            format!("cp -a {real} {file}.new && mv {file}.new {file}")
        } else {
            format!("ln -sf {real} {file}")
        });
    }
}
