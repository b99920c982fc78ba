//! Deleting without waiting for the kernel's dust to settle.
//!
//! A deleted link is gone, and its name free, after about a millisecond; but whoever asked for it is kept
//! for 15 to 20 ms more in an RCU barrier. Likewise, closing a netfilter socket while anything that anybody
//! deleted from the firewall is not yet freed waits for a grace period, with the firewall's lock held. A detached
//! child does that waiting: it sends the deletion and keeps the sockets, the plugin returns when the kernel gives
//! notice that the link is gone.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink::rt::{self, link, link::Link};
use netlink::sys::{self, Detached};
use netlink::{Frame, Socket};

use crate::{Error, Host, Result};

/// Deletions take a millisecond; on a node that is busy beyond measure, seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Deletes `link` from `place` and returns when it is gone. `hold` is a firewall socket that deleted
/// something and is about to be closed by the end of this process.
pub fn delete_link(place: &mut Host, link: &Link, hold: Option<&Socket>) -> Result<()> {
    place.route.subscribe(rt::GROUP_LINK)?;
    let sender = place.run(Socket::route)??;
    let request = link::delete(link).into_bytes();
    let (report, told) = sys::pipe().map_err(|error| Error::Other(format!("make a pipe: {error}")))?;
    let work = Detached {
        request: Some((sender.as_fd(), &request)),
        report: Some(told.as_fd()),
        hold: hold.map(|socket| socket.as_fd()),
    };
    if sys::detach(&work).is_err() {
        // No more processes to be had: wait ourselves.
        return gone_is_fine(place.route.request(link::delete(link)));
    }
    drop(told);
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let ready = sys::readable(&[place.route.as_fd(), report.as_fd()], left)
            .map_err(|source| netlink::Error::Io { doing: link::delete(link).doing().into(), source })?;
        if ready[1] {
            return answer(std::fs::File::from(report), link);
        }
        if !ready[0] {
            let doing = link::delete(link).doing().to_string();
            return Err(netlink::Error::Timeout { doing, seconds: PATIENCE.as_secs() }.into());
        }
        match place.route.notice(Duration::ZERO, |frame| gone(frame, link.index).then_some(()))? {
            Some(()) => return Ok(()),
            // Notices may have been lost in a flood: the link itself knows.
            None if link::find_index(&mut place.route, link.index)?.is_none() => return Ok(()),
            None => {}
        }
    }
}

/// Lets the firewall socket of `place`, if it was used, be closed later, by nobody who is waited for.
pub fn linger(place: &Host) {
    if let Some(socket) = place.used_nft() {
        let hold: Option<BorrowedFd<'_>> = Some(socket.as_fd());
        // Without a child the end of this process waits for the grace period itself: slower, no harm.
        let _ = sys::detach(&Detached { request: None, report: None, hold });
    }
}

/// A link's own notice, not the one by which a bridge says that its port left.
fn gone(frame: Frame<'_>, index: u32) -> bool {
    frame.kind == libc::RTM_DELLINK
        && frame.body.first() == Some(&0)
        && Link::read(frame).is_some_and(|link| link.index == index)
}

/// The kernel's answer, as the child wrote it down.
fn answer(mut report: std::fs::File, link: &Link) -> Result<()> {
    let mut bytes = [0; 4];
    let doing = link::delete(link).doing().to_string();
    if let Err(source) = report.read_exact(&mut bytes) {
        return Err(netlink::Error::Io { doing, source }.into());
    }
    match -i32::from_ne_bytes(bytes) {
        0 => Ok(()),
        errno => gone_is_fine(Err(netlink::Error::Refused { doing, errno, note: None })),
    }
}

fn gone_is_fine(result: netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}
