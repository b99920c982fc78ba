//! Stopping a plugin whose time is up, and with it whomever it has called: an IPAM plugin that went on alone could take an
//! address when nobody is left to give it back.

use std::fs::read_to_string;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use podwire_netlink::sys;

/// How long a plugin that was told to stop may clean up.
const GRACE: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A plugin that was told to stop.
#[derive(Debug)]
pub(crate) struct Stop {
    plugin: u32,
    /// It, and its descendants of then.
    family: Vec<OwnedFd>,
    /// Until when it may take.
    pub(crate) until: Instant,
    /// Whether it was not only asked.
    pub(crate) was_killed: bool,
    how: &'static str,
}

impl Stop {
    /// Asks the plugin of this number to end, and its descendants.
    pub(crate) fn ask(plugin: u32) -> io::Result<Stop> {
        let mut family = vec![sys::open_pidfd(plugin)?];
        family.extend(descendants(plugin));
        let how = "did not end before its deadline and was stopped";
        let stop = Stop { plugin, family, until: Instant::now() + GRACE, was_killed: false, how };
        stop.signal(SIGTERM);
        Ok(stop)
    }

    /// They were asked for long enough.
    pub(crate) fn kill(mut self) -> Stop {
        // It may have called others since.
        self.family.extend(descendants(self.plugin));
        self.signal(SIGKILL);
        let how = "did not end before its deadline, nor when asked to, and was killed";
        Stop { until: Instant::now() + GRACE, was_killed: true, how, ..self }
    }

    /// The plugin has ended. Nobody whom it called acts any more from now on. Says in words what was done.
    pub(crate) fn finish(self) -> &'static str {
        self.signal(SIGKILL);
        let end = Instant::now() + GRACE;
        for process in &self.family {
            let _ = sys::readable(&[process.as_fd()], end.saturating_duration_since(Instant::now()));
        }
        self.how
    }

    /// Who has ended cannot be signalled, and need not be.
    fn signal(&self, signal: i32) {
        for process in &self.family {
            let _ = sys::signal_process(process.as_fd(), signal);
        }
    }
}

/// The processes that this one has started, those that they have, and so on.
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
    // It may have ended since, and its number be another's.
    let open = |(process, of): (u32, u32)| {
        let descriptor = sys::open_pidfd(process).ok()?;
        (parent(process) == Some(of)).then_some(descriptor)
    };
    found.into_iter().filter_map(open).collect()
}

/// The second field behind its name, which may have blanks and brackets in it.
fn parent(process: u32) -> Option<u32> {
    let stat = read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
