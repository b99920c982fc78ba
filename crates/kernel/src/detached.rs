//! Deletion without waiting for the kernel's cleanup.
//!
//! A deleted link is gone, and its name free, after about a millisecond, but the request blocks for 15 to 20 ms more in
//! an RCU barrier. Likewise, closing a netfilter socket waits for a grace period, with the nf_tables lock held, while
//! objects that any program deleted are not yet freed. So a helper sends the deletion and holds the sockets, and the
//! plugin returns when the kernel notifies that the link is gone. In a program that exits after one request (see
//! [`set_short_lived`]) the helper is a child process, which init reaps; in a long-running program it is a thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use podwire_netlink::rt::{self, link, link::Link};
use podwire_netlink::sys::{self, Detached};
use podwire_netlink::{Frame, Socket};

use crate::error::{Error, Result};
use crate::host::Host;

/// The longest wait for a deletion. It usually takes a millisecond, on an overloaded node seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

static SHORT_LIVED: AtomicBool = AtomicBool::new(false);

/// Declares that this program exits after one request. Call it at the start: threads end with the program, so work that
/// outlives it needs a child process.
pub fn set_short_lived() {
    SHORT_LIVED.store(true, Ordering::Relaxed);
}

fn detach(work: &Detached<'_>) -> io::Result<()> {
    if SHORT_LIVED.load(Ordering::Relaxed) {
        sys::detach_process(work)
    } else {
        sys::detach_thread(work)
    }
}

/// Deletes `link` from `host` and returns when it is gone. `hold` is a firewall socket that deleted objects and would
/// be closed when this process exits.
pub fn delete_link(host: &mut Host, link: &Link, hold: Option<&Socket>) -> Result<()> {
    host.route.subscribe(rt::GROUP_LINK)?;
    let sender = host.run(Socket::route)??;
    let request = link::delete(link).into_bytes();
    let (report, writer) = sys::pipe().map_err(|error| Error::Other(format!("open a pipe: {error}")))?;
    let lock = hold.and_then(|_| CleanupLock::acquire());
    let work = Detached {
        request: Some((sender.as_fd(), &request)),
        report: Some(writer.as_fd()),
        hold: [hold.map(|socket| socket.as_fd()), lock.as_ref().map(|lock| lock.0.as_fd())],
    };
    if detach(&work).is_err() {
        // No process or thread available: wait here.
        return ignore_gone(host.route.request(link::delete(link)));
    }
    drop(writer);
    // The subscribed socket may overflow with notices of other links, so that a request on it gets no answer.
    let mut requests = None;
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let ready = sys::readable(&[host.route.as_fd(), report.as_fd()], left).map_err(|source| {
            podwire_netlink::Error::Io { doing: link::delete(link).doing().into(), source }
        })?;
        if ready[1] {
            return read_report(File::from(report), link);
        }
        if !ready[0] {
            let doing = link::delete(link).doing().to_string();
            return Err(podwire_netlink::Error::Timeout { doing, seconds: TIMEOUT.as_secs() }.into());
        }
        match host.route.notice(Duration::ZERO, |frame| is_deletion(frame, link.index).then_some(()))? {
            Some(()) => return Ok(()),
            // Notices may have been lost: look up the link.
            None if is_gone(host, &mut requests, link)? => return Ok(()),
            None => {}
        }
    }
}

/// Looks up `link` with a socket that has no subscription.
fn is_gone(host: &Host, requests: &mut Option<Socket>, link: &Link) -> Result<bool> {
    let socket = match requests {
        Some(socket) => socket,
        None => requests.insert(host.run(Socket::route)??),
    };
    Ok(link::find_index(socket, link.index)?.is_none())
}

/// Call this after objects were deleted from the firewall of `host`: a helper closes the socket later.
pub fn after_deleting(host: &Host) {
    hold(host, CleanupLock::acquire().as_ref());
}

/// Call this after objects were added to the firewall of `host`. While the kernel frees deleted objects, closing the
/// socket would wait for it, so a helper holds the socket; otherwise this does nothing.
pub fn after_adding(host: &Host) {
    if !CleanupLock::is_free() {
        hold(host, None);
    }
}

fn hold(host: &Host, lock: Option<&CleanupLock>) {
    if let Some(socket) = host.used_nft() {
        let hold = [Some(socket.as_fd()), lock.map(|lock| lock.0.as_fd())];
        // If this fails, the exit of this process waits for the grace period: slower, but harmless.
        let _ = detach(&Detached { request: None, report: None, hold });
    }
}

/// A lock that helpers share while the kernel frees deleted objects. Their exit releases it.
struct CleanupLock(File);

impl CleanupLock {
    const FILE: &str = "/run/podwire/cleanup.lock";

    fn open() -> io::Result<File> {
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(Self::FILE)
        };
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                podwire_fs::create_state_dir(std::path::Path::new("/run/podwire"))?;
                open()
            }
            other => other,
        }
    }

    /// Takes a share of the lock, until this value and all inherited or duplicated descriptors are closed.
    fn acquire() -> Option<CleanupLock> {
        let file = CleanupLock::open().ok()?;
        file.try_lock_shared().ok()?;
        Some(CleanupLock(file))
    }

    /// Whether no helper holds the lock; `false` if that is unknown.
    fn is_free() -> bool {
        CleanupLock::open().is_ok_and(|file| file.try_lock().is_ok())
    }
}

fn is_deletion(frame: Frame<'_>, index: u32) -> bool {
    link::is_deletion(frame) && Link::read(frame).is_some_and(|link| link.index == index)
}

/// The kernel's answer, as the helper reported it.
fn read_report(mut report: File, link: &Link) -> Result<()> {
    let mut bytes = [0; 4];
    let doing = link::delete(link).doing().to_string();
    if let Err(source) = report.read_exact(&mut bytes) {
        return Err(podwire_netlink::Error::Io { doing, source }.into());
    }
    match -i32::from_ne_bytes(bytes) {
        0 => Ok(()),
        errno => ignore_gone(Err(podwire_netlink::Error::Refused { doing, errno, note: None })),
    }
}

fn ignore_gone(result: podwire_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}
