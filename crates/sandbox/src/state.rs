//! The state of a pod.

use std::fmt;

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being started.
    Starting,
    /// It runs.
    Ready,
    /// Its process is gone: killed, or out of memory.
    Lost,
    /// It is being stopped.
    Stopping,
    /// The process that started or stopped it died before it was done.
    Unfinished,
    /// Only its checkpoint is left.
    Stopped,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Lost => "lost",
            State::Stopping => "stopping",
            State::Unfinished => "unfinished",
            State::Stopped => "stopped",
        })
    }
}
