//! Descriptors: poll, non-blocking mode, pipes, duplicates.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::call::{check, uninterrupted};

/// Waits until a descriptor is readable or has an error. Returns one flag for each descriptor.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    ready(fds, None, timeout).map(|(readable, _)| readable)
}

/// Waits until a descriptor of `reads` is readable, `write` is writable, or one has an error. Returns one flag for each
/// descriptor of `reads`, and the flag of `write`.
pub fn ready(
    reads: &[BorrowedFd<'_>],
    write: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> io::Result<(Vec<bool>, bool)> {
    let entry = |fd: &BorrowedFd<'_>, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut polled: Vec<libc::pollfd> = reads.iter().map(|fd| entry(fd, libc::POLLIN)).collect();
    polled.extend(write.iter().map(|fd| entry(fd, libc::POLLOUT)));
    let millis = timeout.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: the pointer and the count describe `polled`, which is borrowed mutably.
    uninterrupted(|| unsafe {
        libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis).into()
    })?;
    let mut ready: Vec<bool> = polled.iter().map(|p| p.revents != 0).collect();
    let is_writable = write.is_some() && ready.pop() == Some(true);
    Ok((ready, is_writable))
}

/// Sets a descriptor to non-blocking mode.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: fcntl(2) with this command takes no further argument.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }.into())?;
    let flags = flags as i32 | libc::O_NONBLOCK;
    // SAFETY: with this command it takes a number.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }.into()).map(drop)
}

/// Opens a pipe (close-on-exec). Returns the read end and the write end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the pointer is to an array of two descriptors, borrowed mutably.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: both descriptors were just returned to us and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Duplicates a descriptor by its number, such as one that the parent process passed. The copy is close-on-exec and has
/// a number above the standard streams.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_DUPFD_CLOEXEC takes numbers only.
    let fd = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    // SAFETY: the copy was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
