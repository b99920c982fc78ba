//! A process that can be told from another one that gets its number later.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};

/// How long a pod's process may take to end by itself. It does nothing but wait for the word.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end it, and whatever else runs in the pod: those that were started from outside end when the machine's first
/// process has taken note of them, which on some machines looks every few seconds.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const ESRCH: i32 = 3;

/// A process, by its number and the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the boot.
    pub start: u64,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> io::Result<Process> {
        let (_, start) = look(pid)?;
        Ok(Process { pid, start })
    }

    /// Whether it is there and has not ended.
    pub fn is_alive(&self) -> bool {
        look(self.pid).is_ok_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X'))
    }

    /// The file of its network namespace.
    pub fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid).into()
    }

    /// A descriptor of it; none if it is gone.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        match sys::open_pidfd(self.pid) {
            // In this order: whoever has the number now has had it since.
            Ok(process) => Ok(self.is_alive().then_some(process)),
            Err(error) if error.raw_os_error() == Some(ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends it, and with it everything in its pod. Returns whether it is gone.
    pub fn end(&self) -> io::Result<bool> {
        let Some(process) = self.open()? else {
            // One that we started ourselves and that ended is still to be taken note of.
            if let Ok(process) = sys::open_pidfd(self.pid) {
                if look(self.pid).is_ok_and(|(_, start)| start == self.start) {
                    sys::reap(process.as_fd());
                }
            }
            return Ok(true);
        };
        for (signal, patience) in [(SIGTERM, PATIENCE), (SIGKILL, LAST_PATIENCE)] {
            match sys::signal_process(process.as_fd(), signal) {
                Err(error) if error.raw_os_error() != Some(ESRCH) => return Err(error),
                _ => {}
            }
            if sys::readable(&[process.as_fd()], patience)? == [true] {
                sys::reap(process.as_fd());
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// State and start of a process: the first and twentieth field behind its name, which may have blanks and brackets in it.
fn look(pid: u32) -> io::Result<(char, u64)> {
    // The kernel gives all of it at once.
    let mut line = [0; 1024];
    let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
    let text = String::from_utf8_lossy(&line[..length]);
    let fields = || text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
    let state = fields().and_then(|mut fields| fields.next()?.chars().next());
    let start = fields().and_then(|mut fields| fields.nth(19)?.parse().ok());
    state.zip(start).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat cannot be understood")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_number() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive() && own.start > 0);
        assert!(own.open().unwrap().is_some());
        let earlier = Process { start: own.start - 1, ..own };
        assert!(!earlier.is_alive() && earlier.open().unwrap().is_none());
        assert!(earlier.end().unwrap(), "a process that is gone has ended");
    }

    #[test]
    fn a_process_is_ended_and_taken_note_of() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.end().unwrap());
        assert!(!process.is_alive() && look(process.pid).is_err(), "no zombie is left");
        let _ = child.wait();
        assert!(process.end().unwrap());
    }
}
