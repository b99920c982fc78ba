//! The reconcile loop of every daemon part.
//!
//! A [`Reconciler`] compares the whole desired state with the whole kernel state and applies the difference. [`spawn`]
//! runs it in a thread and calls it
//!
//! - after a message ([`Handle::send`]) or a [`Waker::wake`],
//! - after a kernel notification that concerns it ([`Reconciler::handle_events`]),
//! - [`RETRY`] after a failure, and
//! - after the resync interval, in case a notification was lost.
//!
//! All messages that are in the queue are delivered before one reconcile, so a burst of changes costs one reconcile.
//! The thread ends when the last [`Handle`] is dropped.
//!
//! Daemon parts that talk to a store or a process instead of the kernel use [`Backoff`].

#![forbid(unsafe_code)]

mod backoff;
mod waker;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use podwire_netlink::sys;
use tracing::warn;

pub use backoff::Backoff;
pub use waker::Waker;
use waker::Wakeups;

/// The pause between a failed reconcile and the next attempt, unless an event comes first.
pub const RETRY: Duration = Duration::from_secs(1);

/// A reconcile that takes longer is logged: requests wait for it.
const SLOW: Duration = Duration::from_secs(5);

/// A resync without a cause takes at most this part of one core: 1/1000.
const RESYNC_SHARE: u32 = 1000;
/// The longest interval between two resyncs, however long one takes.
const MAX_RESYNC: Duration = Duration::from_secs(300);

/// Something that brings the kernel to a desired state.
pub trait Reconciler: Send + 'static {
    /// What other threads send: a new desired state, or a change of it.
    type Message: Send + 'static;
    /// What a successful reconcile found and did.
    type Report;
    /// Why a reconcile failed.
    type Error: Display;

    /// Takes a message. A reconciler whose messages are whole desired states keeps the last one.
    fn receive(&mut self, message: Self::Message);

    /// Compares the desired state with the kernel and applies the difference. The loop also calls it before the first
    /// message.
    fn reconcile(&mut self) -> Result<Self::Report, Self::Error>;

    /// Publishes the outcome of a reconcile that took `took`: status, metrics, log.
    fn report(&mut self, outcome: Result<Self::Report, Self::Error>, took: Duration);

    /// When the next reconcile is due without an event, if before the resync.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// The sockets on which kernel notifications arrive. They may change with each reconcile.
    fn event_sources(&self) -> Vec<BorrowedFd<'_>>;

    /// Reads the event sources that are ready (`ready` has the order of [`event_sources`](Self::event_sources)) until
    /// they are empty. Returns whether a reconcile is needed. After an error the loop reconciles [`RETRY`] later; a
    /// source that cannot be read again must be gone from `event_sources` by then.
    fn handle_events(&mut self, ready: &[bool]) -> Result<bool, Self::Error>;
}

/// The reconciler's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reconciler's thread has ended")]
pub struct Ended;

/// Sends messages to a reconciler's thread.
#[derive(Debug)]
pub struct Handle<M> {
    messages: Sender<M>,
    waker: Waker,
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Handle<M> {
        Handle { messages: self.messages.clone(), waker: self.waker.clone() }
    }
}

impl<M> Handle<M> {
    /// Delivers a message and wakes the thread.
    pub fn send(&self, message: M) -> Result<(), Ended> {
        self.messages.send(message).map_err(|_| Ended)?;
        self.waker.wake();
        Ok(())
    }

    /// Wakes the thread without a message.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Runs a reconciler in a thread named `name`. `resync` is the interval between reconciles without a cause; it grows up
/// to 300 s so that resyncs take at most 1/1000 of a core.
pub fn spawn<R: Reconciler>(name: &str, resync: Duration, reconciler: R) -> io::Result<Handle<R::Message>> {
    let (sender, messages) = mpsc::channel();
    let (waker, wakeups) = waker::pair()?;
    let mut run = Loop { name: name.into(), reconciler, messages, wakeups, resync };
    std::thread::Builder::new().name(name.into()).spawn(move || run.run())?;
    Ok(Handle { messages: sender, waker })
}

struct Loop<R: Reconciler> {
    name: String,
    reconciler: R,
    messages: Receiver<R::Message>,
    wakeups: Wakeups,
    resync: Duration,
}

impl<R: Reconciler> Loop<R> {
    /// Returns when all handles are dropped.
    fn run(&mut self) {
        while self.receive_all().is_ok() {
            let start = Instant::now();
            let outcome = self.reconciler.reconcile();
            let took = start.elapsed();
            if took > SLOW {
                warn!(thread = self.name, ?took, "reconcile was slow");
            }
            let pause = if outcome.is_ok() { resync_after(took, self.resync) } else { RETRY };
            self.reconciler.report(outcome, took);
            self.wait(pause);
        }
    }

    fn receive_all(&mut self) -> Result<(), Ended> {
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.reconciler.receive(message),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Ended),
            }
        }
    }

    /// Returns after a wake-up, after an event that needs a reconcile, or after `pause`.
    fn wait(&mut self, pause: Duration) {
        let mut end = Instant::now() + pause;
        let mut events_failed = false;
        loop {
            let next = self.reconciler.due().filter(|_| !events_failed).map_or(end, |due| due.min(end));
            let left = next.saturating_duration_since(Instant::now());
            let mut fds = vec![self.wakeups.as_fd()];
            if !events_failed {
                fds.extend(self.reconciler.event_sources());
            }
            let ready = match sys::readable(&fds, left) {
                Ok(ready) => ready,
                Err(error) => {
                    warn!(%error, "poll for kernel notifications failed");
                    return self.wait_for_message(left.min(RETRY));
                }
            };
            if ready[0] {
                return self.wakeups.clear();
            }
            if !ready.contains(&true) {
                return;
            }
            match self.reconciler.handle_events(&ready[1..]) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    warn!(%error, "kernel notifications cannot be read");
                    events_failed = true;
                    end = end.min(Instant::now() + RETRY);
                }
            }
        }
    }

    /// The wait of a thread that cannot poll: messages still end it.
    fn wait_for_message(&mut self, pause: Duration) {
        match self.messages.recv_timeout(pause) {
            Ok(message) => self.reconciler.receive(message),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// The pause after a reconcile that took `took`. In a cluster of thousands of nodes one takes about 50 ms.
fn resync_after(took: Duration, resync: Duration) -> Duration {
    resync.max((took * RESYNC_SHARE).min(MAX_RESYNC))
}

#[cfg(test)]
mod tests;
