//! A process that removes a lab when its owner ends, however the owner ends.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use podwire_fs::FileError;

use crate::Result;

/// Removes a lab when this value is dropped or when this process dies: the child waits for the end of a pipe.
#[derive(Debug)]
pub struct CleanupProcess {
    process: Child,
}

impl CleanupProcess {
    /// Starts the process for a lab, which need not exist yet.
    pub fn start(name: &str) -> Result<CleanupProcess> {
        let failed = || FileError::at("start", "podwire lab down --after-input");
        let mut command = Command::new(std::env::current_exe().map_err(failed())?);
        command.args(["lab", "down", "--after-input", "--name", name]);
        // Its own process group: Ctrl-C in the terminal must not end it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(CleanupProcess { process: command.spawn().map_err(failed())? })
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
