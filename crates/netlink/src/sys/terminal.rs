//! The width of a terminal.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::call::check;

/// The columns of the terminal behind a descriptor; `None` if it is no terminal or its width is unknown.
pub fn terminal_columns(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: this ioctl(2) writes one `winsize`; the pointer is to `size`, borrowed mutably.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    check(asked.into()).ok().map(|_| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
