//! Somebody who ends a lab when its owner is gone, by whatever end: a process that waits for the end of a pipe.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::{Error, Result};

/// As long as this is there, so may be the lab. It is ended when this is dropped, or when this process dies.
#[derive(Debug)]
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Sets one on the lab of this name, which need not be there yet.
    pub fn set(name: &str) -> Result<Guard> {
        let failed = || Error::file("start", "podwire lab down --after-input");
        let mut command = Command::new(std::env::current_exe().map_err(failed())?);
        command.args(["lab", "down", "--after-input", "--name", name]);
        // Whoever interrupts the owner at a terminal needs the guard all the more.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Guard { process: command.spawn().map_err(failed())? })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
