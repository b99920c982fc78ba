//! Deleting without waiting for the kernel's dust to settle.
//!
//! A deleted link is gone, and its name free, after about a millisecond; but whoever asked for it is kept
//! for 15 to 20 ms more in an RCU barrier. Likewise, closing a netfilter socket while anything that anybody
//! deleted from the firewall is not yet freed waits for a grace period, with the firewall's lock held. Somebody
//! else does that waiting: sends the deletion and keeps the sockets, while the plugin returns when the kernel gives
//! notice that the link is gone. In a program that ends with its one request (see [`this_program_ends_soon`]) that is a
//! child process, which init reaps; in one that lives on, a thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use podwire_netlink::rt::{self, link, link::Link};
use podwire_netlink::sys::{self, Detached};
use podwire_netlink::{Frame, Socket};

use crate::{Error, Host, Result};

/// Deletions take a millisecond; on a node that is busy beyond measure, seconds.
const PATIENCE: Duration = Duration::from_secs(30);

static ENDS_SOON: AtomicBool = AtomicBool::new(false);

/// To be said at the start of a program that serves one request and ends: its threads end with it, so what is to
/// outlive it must be done by a child.
pub fn this_program_ends_soon() {
    ENDS_SOON.store(true, Ordering::Relaxed);
}

fn detach(work: &Detached<'_>) -> io::Result<()> {
    match ENDS_SOON.load(Ordering::Relaxed) {
        true => sys::detach_process(work),
        false => sys::detach_thread(work),
    }
}

/// Deletes `link` from `place` and returns when it is gone. `hold` is a firewall socket that deleted
/// something and is about to be closed by the end of this process.
pub fn delete_link(place: &mut Host, link: &Link, hold: Option<&Socket>) -> Result<()> {
    place.route.subscribe(rt::GROUP_LINK)?;
    let sender = place.run(Socket::route)??;
    let request = link::delete(link).into_bytes();
    let (report, told) = sys::pipe().map_err(|error| Error::Other(format!("make a pipe: {error}")))?;
    let dust = hold.and_then(|_| Dust::raise());
    let work = Detached {
        request: Some((sender.as_fd(), &request)),
        report: Some(told.as_fd()),
        hold: [hold.map(|socket| socket.as_fd()), dust.as_ref().map(|dust| dust.0.as_fd())],
    };
    if detach(&work).is_err() {
        // No more processes or threads to be had: wait ourselves.
        return gone_is_fine(place.route.request(link::delete(link)));
    }
    drop(told);
    // The socket that hears of everybody's links may be flooded: whoever asks over it may get no answer.
    let mut quiet = None;
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let ready = sys::readable(&[place.route.as_fd(), report.as_fd()], left).map_err(|source| {
            podwire_netlink::Error::Io { doing: link::delete(link).doing().into(), source }
        })?;
        if ready[1] {
            return answer(File::from(report), link);
        }
        if !ready[0] {
            let doing = link::delete(link).doing().to_string();
            return Err(podwire_netlink::Error::Timeout { doing, seconds: PATIENCE.as_secs() }.into());
        }
        match place.route.notice(Duration::ZERO, |frame| gone(frame, link.index).then_some(()))? {
            Some(()) => return Ok(()),
            // Notices may have been lost in the flood: the link itself knows.
            None if is_gone(place, &mut quiet, link)? => return Ok(()),
            None => {}
        }
    }
}

/// Asks for `link` over a socket that hears answers only.
fn is_gone(place: &Host, quiet: &mut Option<Socket>, link: &Link) -> Result<bool> {
    let socket = match quiet {
        Some(socket) => socket,
        None => quiet.insert(place.run(Socket::route)??),
    };
    Ok(link::find_index(socket, link.index)?.is_none())
}

/// To be called when something was deleted from the firewall of `place`: its socket is closed later, by nobody
/// who is waited for.
pub fn after_deleting(place: &Host) {
    hold(place, Dust::raise().as_ref());
}

/// To be called when something was added to the firewall of `place`: while the dust of a deletion is in the air,
/// closing the socket would wait for it to settle, so it is left to somebody else. Else it is closed as any other.
pub fn after_adding(place: &Host) {
    if !Dust::has_settled() {
        hold(place, None);
    }
}

fn hold(place: &Host, dust: Option<&Dust>) {
    if let Some(socket) = place.used_nft() {
        let hold = [Some(socket.as_fd()), dust.map(|dust| dust.0.as_fd())];
        // Without that the end of this process waits for the grace period itself: slower, no harm.
        let _ = detach(&Detached { request: None, report: None, hold });
    }
}

/// A lock that those share who wait for the kernel to free what was deleted. It is let go by their end.
struct Dust(File);

impl Dust {
    const FILE: &str = "/run/podwire/dust";

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
                std::fs::create_dir_all("/run/podwire")?;
                open()
            }
            other => other,
        }
    }

    /// Says that dust is in the air for as long as the value, or a descriptor that was inherited or duplicated from it, lives.
    fn raise() -> Option<Dust> {
        let file = Dust::open().ok()?;
        file.try_lock_shared().ok()?;
        Some(Dust(file))
    }

    /// Whether nobody waits. If that cannot be told, somebody may.
    fn has_settled() -> bool {
        Dust::open().is_ok_and(|file| file.try_lock().is_ok())
    }
}

/// A link's own notice, not the one by which a bridge says that its port left.
fn gone(frame: Frame<'_>, index: u32) -> bool {
    frame.kind == libc::RTM_DELLINK
        && frame.body.first() == Some(&0)
        && Link::read(frame).is_some_and(|link| link.index == index)
}

/// The kernel's answer, as the child wrote it down.
fn answer(mut report: File, link: &Link) -> Result<()> {
    let mut bytes = [0; 4];
    let doing = link::delete(link).doing().to_string();
    if let Err(source) = report.read_exact(&mut bytes) {
        return Err(podwire_netlink::Error::Io { doing, source }.into());
    }
    match -i32::from_ne_bytes(bytes) {
        0 => Ok(()),
        errno => gone_is_fine(Err(podwire_netlink::Error::Refused { doing, errno, note: None })),
    }
}

fn gone_is_fine(result: podwire_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}
