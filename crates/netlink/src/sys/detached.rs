//! Work that outlives the caller: a child process or a thread sends one request and holds sockets open until the kernel
//! has freed deleted objects.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::call::check;

/// Work for [`detach_process`] or [`detach_thread`]: send a request if there is one, report its result, and hold the
/// sockets until the kernel has freed what was deleted.
#[derive(Debug)]
pub struct Detached<'a> {
    /// The socket and the datagram to send. The errno of the answer is written to `report`.
    pub request: Option<(BorrowedFd<'a>, &'a [u8])>,
    /// Receives four bytes: the kernel's negative errno, or 0.
    pub report: Option<BorrowedFd<'a>>,
    /// More descriptors that stay open until the end.
    pub hold: [Option<BorrowedFd<'a>>; 2],
}

/// Runs `work` in a child process that outlives the caller: for a program that exits soon, so that init reaps the
/// child. The child has its own session, no standard streams and no other descriptors.
pub fn detach_process(work: &Detached<'_>) -> io::Result<()> {
    let raw = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd());
    let (socket, bytes) = work.request.map_or((-1, &[][..]), |(fd, bytes)| (fd.as_raw_fd(), bytes));
    let mut kept = [socket, raw(work.report), raw(work.hold[0]), raw(work.hold[1])];
    kept.sort_unstable();
    // SAFETY: everything is prepared before the fork, since the child of a threaded program may do nothing but plain
    // system calls: it runs `detached_child` only, which makes them on values prepared here and ends with _exit. No
    // allocation, no lock, no destructor runs in it.
    match check(unsafe { libc::fork() }.into())? {
        0 => detached_child(socket, bytes, raw(work.report), &kept),
        _ => Ok(()),
    }
}

/// Runs `work` in a thread: for a long-running program, which would have to reap a child. The thread has duplicates of
/// the descriptors, so the caller may close its own.
pub fn detach_thread(work: &Detached<'_>) -> io::Result<()> {
    let own = |fd: Option<BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
    let (socket, bytes) =
        (own(work.request.map(|(fd, _)| fd))?, work.request.map_or(&[][..], |(_, bytes)| bytes));
    let (report, bytes) = (own(work.report)?, bytes.to_vec());
    let held = [own(work.hold[0])?, own(work.hold[1])?];
    let raw = |fd: &Option<OwnedFd>| fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
    std::thread::Builder::new().stack_size(32 << 10).name("podwire-cleanup".into()).spawn(move || {
        run(raw(&socket), &bytes, raw(&report));
        drop((socket, report, held));
    })?;
    Ok(())
}

fn detached_child(socket: i32, bytes: &[u8], report: i32, kept: &[i32; 4]) -> ! {
    // SAFETY: plain system calls on numbers.
    unsafe {
        libc::setsid();
        // A reader of the plugin's output waits until every copy of the stream is closed: close all others.
        let mut from = 0;
        for &fd in kept.iter().filter(|fd| **fd >= 0) {
            if fd > from {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = from.max(fd + 1);
        }
        libc::syscall(libc::SYS_close_range, from, i32::MAX, 0);
    }
    run(socket, bytes, report);
    // SAFETY: _exit(2) takes a number and does not return.
    unsafe { libc::_exit(0) }
}

/// Only plain system calls, no allocation, no lock: it may run in the child of a threaded program.
fn run(socket: i32, bytes: &[u8], report: i32) {
    // SAFETY: the descriptors belong to the caller (-1 means none); the buffers are `bytes` and arrays on this stack.
    unsafe {
        if socket >= 0 {
            // Without an answer the result is unknown: report EIO.
            let mut errno: i32 = -libc::EIO;
            if libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0) >= 0 {
                let mut answer = [0u8; 256];
                let length = libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0);
                if length >= 20 {
                    errno = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
                }
            }
            if report >= 0 {
                libc::write(report, (&raw const errno).cast(), 4);
            }
        }
        // nf_tables frees deleted objects after an RCU grace period. Closing a netfilter socket before that waits
        // with the nf_tables lock held, so wait for grace periods here, without a lock.
        for _ in 0..2 {
            libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0);
        }
    }
}
