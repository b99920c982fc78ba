use std::fs::File;
use std::io::{Read, Write};
use std::sync::mpsc::Receiver;

use super::*;

const SOON: Duration = Duration::from_secs(10);
const NEVER: Duration = Duration::from_secs(3600);

/// Reports the sum of its messages; fails when that is odd.
struct Sum {
    total: u32,
    reports: Sender<Result<u32, String>>,
    events: File,
}

impl Reconciler for Sum {
    type Message = u32;
    type Report = u32;
    type Error = String;

    fn receive(&mut self, message: u32) {
        self.total += message;
    }

    fn reconcile(&mut self) -> Result<u32, String> {
        if self.total.is_multiple_of(2) {
            Ok(self.total)
        } else {
            Err(format!("{} is odd", self.total))
        }
    }

    fn report(&mut self, outcome: Result<u32, String>, _: Duration) {
        let _ = self.reports.send(outcome);
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.events.as_fd()]
    }

    fn handle_events(&mut self, ready: &[bool]) -> Result<bool, String> {
        assert_eq!(ready, [true]);
        let mut byte = [0];
        self.events.read_exact(&mut byte).map_err(|error| error.to_string())?;
        Ok(byte == *b"y")
    }
}

fn start() -> (Handle<u32>, Receiver<Result<u32, String>>, File) {
    let (reports, reported) = mpsc::channel();
    let (events, source) = sys::pipe().unwrap();
    let sum = Sum { total: 0, reports, events: events.into() };
    (spawn("sum", NEVER, sum).unwrap(), reported, source.into())
}

#[test]
fn messages_wakers_and_events_cause_a_reconcile() {
    let (handle, reported, mut source) = start();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(0)));
    handle.send(2).unwrap();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(2)));
    handle.waker().wake();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(2)));
    source.write_all(b"ny").unwrap();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(2)));
    assert!(reported.try_recv().is_err(), "an event that needs no reconcile causes none");
}

#[test]
fn a_failure_is_retried_and_a_broken_event_source_does_not_end_the_loop() {
    let (handle, reported, source) = start();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(0)));
    drop(source);
    handle.send(1).unwrap();
    for _ in 0..2 {
        assert_eq!(reported.recv_timeout(SOON), Ok(Err("1 is odd".into())));
    }
    handle.send(1).unwrap();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(2)));
}

#[test]
fn the_thread_ends_with_its_last_handle() {
    let (handle, reported, _source) = start();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(0)));
    drop(handle.clone());
    handle.send(2).unwrap();
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(2)));
    drop(handle);
    assert_eq!(reported.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_slow_reconcile_is_resynced_less_often() {
    let (usual, millis) = (Duration::from_secs(30), Duration::from_millis);
    assert_eq!(resync_after(millis(2), usual), usual);
    assert_eq!(resync_after(millis(50), usual), Duration::from_secs(50));
    assert_eq!(resync_after(millis(9000), usual), MAX_RESYNC);
    assert_eq!(resync_after(millis(9000), Duration::from_secs(600)), Duration::from_secs(600));
}
