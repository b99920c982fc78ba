//! Processors: which one the measurements use, and processor time.
//!
//! A packet between two namespaces is sent and received in the thread that sends it, including its softirqs. So the
//! processor time of a transfer is that of its threads and of ksoftirqd, which takes over when softirqs last too long.
//! The kernel may account softirqs apart from threads (`CONFIG_IRQ_TIME_ACCOUNTING`): then those of the whole machine
//! are added. Other processes are not counted.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};

/// Columns of `/proc/stat` after the name, in hundredths of a second (USER_HZ).
const IRQ: usize = 5;
const SOFTIRQ: usize = 6;
const TICK: Duration = Duration::from_millis(10);

/// The last CPU that this program may use.
pub fn last_cpu() -> Result<usize> {
    let set = rustix::thread::sched_getaffinity(None)?;
    (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| set.is_set(*cpu)).context("no CPU")
}

/// The processor time of the calling thread.
pub fn thread_time() -> io::Result<Duration> {
    run_time("/proc/thread-self/schedstat")
}

/// The processor time of softirqs outside of the threads of this program.
pub fn kernel_time() -> io::Result<Duration> {
    let mut time = softirqs_accounted_apart(&fs::read_to_string("/proc/stat")?);
    for entry in fs::read_dir("/proc")?.flatten() {
        let process = entry.path();
        // A process may end meanwhile; ksoftirqd does not.
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        if name.starts_with("ksoftirqd/") {
            time += run_time(&process.join("schedstat").to_string_lossy())?;
        }
    }
    Ok(time)
}

/// The softirqs of the machine; none if they count as time of the threads that they interrupt. With separate accounting
/// the time of hardware interrupts is counted too, and is never 0.
fn softirqs_accounted_apart(stat: &str) -> Duration {
    let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let columns: Vec<u32> = words.map(|word| word.parse().unwrap_or(u32::MAX)).collect();
    match (columns.get(IRQ), columns.get(SOFTIRQ)) {
        (Some(1..), Some(ticks)) => TICK * *ticks,
        _ => Duration::ZERO,
    }
}

/// The first number of a schedstat file: nanoseconds on a CPU.
fn run_time(path: &str) -> io::Result<Duration> {
    let text = fs::read_to_string(path)?;
    let nanos = text.split(' ').next().and_then(|word| word.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| io::Error::other(format!("{path}: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_count_once() {
        let inside = "cpu  254997 29043 36287 53945 1316 0 575 428 0 0\ncpu0 1 2\n";
        assert_eq!(softirqs_accounted_apart(inside), Duration::ZERO);
        let apart = "cpu  254997 29043 36287 53945 1316 7 575 428 0 0\n";
        assert_eq!(softirqs_accounted_apart(apart), Duration::from_millis(5750));
    }

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let before = thread_time().unwrap();
        let end = std::time::Instant::now() + Duration::from_millis(50);
        while std::time::Instant::now() < end {}
        assert!(thread_time().unwrap() > before);
    }
}
