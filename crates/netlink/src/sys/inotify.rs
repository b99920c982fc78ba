//! inotify: notices of changes in directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::call::{c_path, check};

/// Opens an inotify descriptor that becomes readable when a file is moved into `dir`, or closed there after writing.
pub fn watch_written_files(dir: &Path) -> io::Result<OwnedFd> {
    let watch = open_inotify()?;
    add_watch(watch.as_fd(), dir, libc::IN_MOVED_TO | libc::IN_CLOSE_WRITE)?;
    Ok(watch)
}

/// Opens a non-blocking inotify descriptor without watches.
pub fn open_inotify() -> io::Result<OwnedFd> {
    // SAFETY: inotify_init1(2) takes numbers only.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Adds a watch for every change of a directory and its entries. Repeating it has no effect.
pub fn watch_directory(watch: BorrowedFd<'_>, dir: &Path) -> io::Result<()> {
    let within = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO;
    let changed = libc::IN_CLOSE_WRITE | libc::IN_ATTRIB | libc::IN_DELETE_SELF | libc::IN_MOVE_SELF;
    add_watch(watch, dir, within | changed | libc::IN_ONLYDIR)
}

fn add_watch(watch: BorrowedFd<'_>, dir: &Path, mask: u32) -> io::Result<()> {
    let dir = c_path(dir)?;
    // SAFETY: the string is NUL-ended and lives through the call.
    check(unsafe { libc::inotify_add_watch(watch.as_raw_fd(), dir.as_ptr(), mask) }.into()).map(drop)
}
