//! Signals: signalfd, waiting for termination, signal masks of children.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::call::check;

/// Waits for SIGTERM or SIGINT. The first process of a pod calls it: it keeps the pod's namespaces alive and closes all
/// descriptors. The kernel reaps the orphans that it inherits.
pub fn wait_for_termination() -> io::Result<()> {
    // SAFETY: plain system calls on numbers and constants; `set` is storage that sigemptyset fills, and the pointers
    // are to values that live through the calls. This process no longer uses the descriptors 0 to 2.
    unsafe {
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR).into())? as i32;
        for stream in 0..3 {
            check(libc::dup2(null, stream).into())?;
        }
        libc::syscall(libc::SYS_close_range, 3, i32::MAX, 0);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        let (mut set, mut signal): (libc::sigset_t, libc::c_int) = (std::mem::zeroed(), 0);
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        while libc::sigwait(&raw const set, &raw mut signal) != 0 {}
    }
    Ok(())
}

/// Starts a program with an empty signal mask. A child otherwise inherits the mask of the calling thread.
pub fn spawn_unblocked(command: &mut Command) -> io::Result<Child> {
    let unblock = || {
        // SAFETY: an all-zero sigset_t is storage that sigemptyset fills; the pointers are to it, and
        // a null pointer means that the old mask is not returned.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            check(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()).into())
                .map(drop)
        }
    };
    // SAFETY: between fork and exec `unblock` makes plain system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(unblock) }.spawn()
}

/// Opens a signalfd for these signals and blocks their default action in the calling thread and the threads that it
/// starts later.
pub fn open_signalfd(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is storage that sigemptyset fills; the pointers are to it, borrowed mutably.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            check(libc::sigaddset(&raw mut set, signal).into())?;
        }
        set
    };
    // SAFETY: the pointer is to `set`; a null pointer means that the old mask is not returned.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: the pointer is to `set`, which lives through the call.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
