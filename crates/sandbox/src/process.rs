//! A process, safe against PID reuse.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};

/// How long a pause process may take to end after SIGTERM.
const TERM_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the kernel may take to end it and everything else in the pod after SIGKILL. Processes that were started from outside
/// end only when init has reaped them, which some init programs do every few seconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const ESRCH: i32 = 3;

/// A process, by PID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The PID.
    pub pid: u32,
    /// When it was started, in ticks since the boot.
    pub start: u64,
}

impl Process {
    /// The process that has this PID now.
    pub fn of(pid: u32) -> io::Result<Process> {
        let (_, start) = read_stat(pid)?;
        Ok(Process { pid, start })
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        read_stat(self.pid).is_ok_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X'))
    }

    /// The file of its network namespace.
    pub fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid).into()
    }

    /// A descriptor of it; none if it is gone.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        match sys::open_pidfd(self.pid) {
            // In this order: after the descriptor is open, the PID cannot be reused.
            Ok(process) => Ok(self.is_alive().then_some(process)),
            Err(error) if error.raw_os_error() == Some(ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends it, and with it everything in its pod. Returns whether it is gone.
    pub fn end(&self) -> io::Result<bool> {
        let Some(process) = self.open()? else {
            // A child of this process that has ended must be reaped.
            if let Ok(process) = sys::open_pidfd(self.pid) {
                if read_stat(self.pid).is_ok_and(|(_, start)| start == self.start) {
                    sys::reap(process.as_fd());
                }
            }
            return Ok(true);
        };
        for (signal, timeout) in [(SIGTERM, TERM_TIMEOUT), (SIGKILL, KILL_TIMEOUT)] {
            match sys::signal_process(process.as_fd(), signal) {
                Err(error) if error.raw_os_error() != Some(ESRCH) => return Err(error),
                _ => {}
            }
            if sys::readable(&[process.as_fd()], timeout)? == [true] {
                sys::reap(process.as_fd());
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// State and start time of a process: the first and twentieth field after its name, which may contain spaces and parentheses.
fn read_stat(pid: u32) -> io::Result<(char, u64)> {
    // One read(2) returns the whole line.
    let mut line = [0; 1024];
    let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
    let text = String::from_utf8_lossy(&line[..length]);
    let fields = || text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
    let state = fields().and_then(|mut fields| fields.next()?.chars().next());
    let start = fields().and_then(|mut fields| fields.nth(19)?.parse().ok());
    state.zip(start).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is invalid")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_pid_is_detected() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive() && own.start > 0);
        assert!(own.open().unwrap().is_some());
        let earlier = Process { start: own.start - 1, ..own };
        assert!(!earlier.is_alive() && earlier.open().unwrap().is_none());
        assert!(earlier.end().unwrap(), "a process that is gone has ended");
    }

    #[test]
    fn an_ended_process_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.end().unwrap());
        assert!(!process.is_alive() && read_stat(process.pid).is_err(), "no zombie is left");
        let _ = child.wait();
        assert!(process.end().unwrap());
    }
}
