//! Stops a plugin at its deadline, together with the processes that it started: an IPAM plugin that continued alone could
//! allocate an address that no process releases.

use std::fs::read_to_string;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use podwire_netlink::sys;

/// How long a plugin may clean up after SIGTERM, and how long the kernel may take after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A plugin that is being stopped.
#[derive(Debug)]
pub(crate) struct Stop {
    plugin: u32,
    /// The plugin and its descendants.
    processes: Vec<OwnedFd>,
    /// When the next, harder step is due.
    pub(crate) deadline: Instant,
    /// Whether SIGKILL was sent.
    pub(crate) was_killed: bool,
    /// What was done, for the error text.
    outcome: &'static str,
}

impl Stop {
    /// Sends SIGTERM to the plugin with this PID and to its descendants.
    pub(crate) fn terminate(plugin: u32) -> io::Result<Stop> {
        let mut processes = vec![sys::open_pidfd(plugin)?];
        processes.extend(descendants(plugin));
        let outcome = "did not end before its deadline and was stopped";
        let stop = Stop { plugin, processes, deadline: Instant::now() + GRACE, was_killed: false, outcome };
        stop.signal(SIGTERM);
        Ok(stop)
    }

    /// Sends SIGKILL after the grace period.
    pub(crate) fn kill(mut self) -> Stop {
        // The plugin may have started more processes since.
        self.processes.extend(descendants(self.plugin));
        self.signal(SIGKILL);
        let outcome = "did not end before its deadline, ignored SIGTERM and was killed";
        Stop { deadline: Instant::now() + GRACE, was_killed: true, outcome, ..self }
    }

    /// The plugin has ended: kills its remaining descendants and waits for them. Returns what was done.
    pub(crate) fn finish(self) -> &'static str {
        self.signal(SIGKILL);
        let end = Instant::now() + GRACE;
        for process in &self.processes {
            let _ = sys::readable(&[process.as_fd()], end.saturating_duration_since(Instant::now()));
        }
        self.outcome
    }

    /// A process that has ended cannot be signalled; that is fine.
    fn signal(&self, signal: i32) {
        for process in &self.processes {
            let _ = sys::signal_process(process.as_fd(), signal);
        }
    }
}

/// The children of a process, their children, and so on.
fn descendants(ancestor: u32) -> Vec<OwnedFd> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<(u32, u32)> = numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|process| Some((process, parent(process)?)))
        .collect();
    let mut found: Vec<(u32, u32)> = Vec::new();
    let (mut of, mut asked) = (ancestor, 0);
    loop {
        found.extend(all.iter().filter(|(_, parent)| *parent == of));
        let Some((next, _)) = found.get(asked) else { break };
        (of, asked) = (*next, asked + 1);
    }
    // The process may have ended since, and its PID may have been reused.
    let open = |(process, of): (u32, u32)| {
        let descriptor = sys::open_pidfd(process).ok()?;
        (parent(process) == Some(of)).then_some(descriptor)
    };
    found.into_iter().filter_map(open).collect()
}

/// The parent PID: the second field after the process name, which may contain spaces and parentheses.
fn parent(process: u32) -> Option<u32> {
    let stat = read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
