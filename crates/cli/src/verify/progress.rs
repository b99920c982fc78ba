//! The progress of a verification: one line on a terminal, which its end clears.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use podwire_verify::Progress;

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_millis(200);

/// A line on standard error. Without a terminal there is none.
#[derive(Default)]
pub(crate) struct ProgressLine {
    /// When the last line was written.
    last: Mutex<Option<Instant>>,
}

impl ProgressLine {
    /// Shows the progress, unless it was shown a moment ago.
    pub(crate) fn show(&self, now: Progress) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut terminal = std::io::stderr();
        if !terminal.is_terminal() || last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        let _ = write!(terminal, "\r{}\x1b[K", line(now));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        let shown = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        if shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(Progress { done, failed, all }: Progress) -> String {
    let failed = if failed > 0 { format!(", {failed} without the expected answer") } else { String::new() };
    format!("{done} of {all} probes{failed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_failures_only_if_there_are_some() {
        assert_eq!(line(Progress { done: 8, failed: 0, all: 96 }), "8 of 96 probes");
        let some = line(Progress { done: 9, failed: 1, all: 96 });
        assert_eq!(some, "9 of 96 probes, 1 without the expected answer");
    }
}
