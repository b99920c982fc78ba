//! Errors of this crate. Each is a reason why packets take the normal path.

use std::error::Error as StdError;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the fast path cannot be used. Packets take the normal path then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no eBPF, or the process may not use it.
    #[error("load the eBPF maps: {}; needed are Linux 5.14 and CAP_BPF with CAP_NET_ADMIN", causes(.0.as_ref()))]
    Load(Box<dyn StdError + Send + Sync>),
    /// The kernel rejects a program.
    #[error("load the eBPF program {program}: {}; needed are Linux 5.14 and CAP_BPF with CAP_NET_ADMIN", causes(.source.as_ref()))]
    Verify {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A map cannot be read or written.
    #[error("eBPF map: {0}")]
    Map(String),
    /// A sysctl that makes conntrack accept gaps between packets cannot be set.
    #[error("{0}: the fast path needs this sysctl of Linux 5.14, so that conntrack accepts packets after others that it has not seen")]
    Sysctl(podwire_kernel::Error),
    /// A request to the kernel failed.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A request to the kernel failed.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A device has filters of another program.
    #[error("another program has filters on its device, which must see every packet")]
    OtherFilters,
    /// The thread cannot be started or has ended.
    #[error("the thread of the fast path: {0}")]
    Thread(String),
}

/// The error with its causes: aya's errors name only the step that failed.
fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    // The log of the verifier has hundreds of lines. The first belongs to the error; the last ones say what is wrong.
    const STATISTICS: [&str; 3] = ["processed ", "stack depth ", "verification time "];
    let is_statistics = |line: &&str| STATISTICS.iter().any(|start| line.starts_with(start));
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !is_statistics(line));
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first} … {last}"),
        None => first.to_owned(),
    }
}
