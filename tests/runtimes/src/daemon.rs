//! A program that runs on a stage during a test.

use podwire_tests::Process;

use crate::Stage;

/// A running program. It keeps running after this value is dropped, until its stage ends or it is stopped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    /// Its PID on the stage.
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

    /// Its PID on the stage.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for a line on its standard error that contains all of these words, and returns it.
    #[track_caller]
    pub fn expect(&mut self, words: &[&str]) -> String {
        self.process.expect(words)
    }

    /// The number of lines that contain all of these words.
    pub fn count(&self, words: &[&str]) -> usize {
        self.process.count(words)
    }

    /// Kills it (SIGKILL), and waits until it has ended. Programs that it started keep running.
    pub fn kill(self, stage: &Stage) {
        self.end(stage, "KILL");
    }

    /// Stops it (SIGTERM), and waits until it has ended. Programs that it started keep running.
    pub fn stop(self, stage: &Stage) {
        self.end(stage, "TERM");
    }

    fn end(self, stage: &Stage, signal: &str) {
        stage.sh(&format!("kill -{signal} {}", self.pid));
        self.process.wait();
    }
}
