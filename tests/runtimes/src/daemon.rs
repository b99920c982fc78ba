//! A program that runs on a stage beside the test.

use podwire_tests::Process;

use crate::Stage;

/// A running program. It keeps running when this is dropped, until its stage ends or it is stopped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    /// Its number on the stage.
    pid: u32,
}

/// Prints the PID, and executes the program.
const PRINT_PID: &str = "echo \"pid $$\" >&2; exec \"$@\"";

impl Daemon {
    pub(crate) fn start(stage: &Stage, words: &[&str]) -> Daemon {
        let mut command = stage.command("sh");
        command.args(["-c", PRINT_PID, "sh"]).args(words);
        let mut process = Process::start(command);
        let said = process.expect(&["pid "]);
        let pid = said.trim_start_matches("pid ").parse().unwrap_or_else(|_| panic!("a number: {said}"));
        Daemon { process, pid }
    }

    /// Its number on the stage.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for a line on its standard error with all of these words; returns it.
    #[track_caller]
    pub fn expect(&mut self, words: &[&str]) -> String {
        self.process.expect(words)
    }

    /// How many lines with all of these words there were.
    pub fn count(&self, words: &[&str]) -> usize {
        self.process.count(words)
    }

    /// Ends it as a crash does (SIGKILL), and waits until it has ended. What it started goes on.
    pub fn kill(self, stage: &Stage) {
        self.end(stage, "KILL");
    }

    /// Asks it to end (SIGTERM), and waits until it has. What it started goes on.
    pub fn stop(self, stage: &Stage) {
        self.end(stage, "TERM");
    }

    fn end(self, stage: &Stage, signal: &str) {
        stage.sh(&format!("kill -{signal} {}", self.pid));
        self.process.wait();
    }
}
