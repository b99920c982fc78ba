//! Network namespaces, and the other namespaces of a process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::call::check;

/// Opens the network namespace of the calling thread by an ioctl on a socket. In a new process that costs a tenth of
/// opening the file under /proc. It needs CAP_NET_ADMIN in that namespace.
pub fn current_network_namespace() -> io::Result<OwnedFd> {
    const SIOCGSKNS: libc::c_ulong = 0x894c; // linux/sockios.h
    let socket = UnixDatagram::unbound()?;
    // SAFETY: this ioctl takes no argument and returns a descriptor.
    let fd = check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS as _) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The cookie of the socket's network namespace. It is unique until the next boot: a later namespace never reuses it.
/// `None` on kernels before 5.14, which have no cookies.
pub fn network_namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    const SO_NETNS_COOKIE: i32 = 71; // asm-generic/socket.h
    let (mut cookie, mut size) = (0u64, size_of::<u64>() as libc::socklen_t);
    let at = (&raw mut cookie).cast();
    // SAFETY: both pointers are to variables that are borrowed mutably, and `size` is that of `cookie`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, at, &mut size) };
    match check(result.into()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        result => result.map(|_| Some(cookie)),
    }
}

/// Moves the calling thread into a network namespace.
pub fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns(2) takes numbers only; it changes the calling thread's namespace, no memory.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Moves the calling thread into a new, empty network namespace.
pub fn new_network_namespace() -> io::Result<()> {
    // SAFETY: unshare(2) takes a number only; it changes the namespace of the calling thread, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Moves this process into the network, UTS, mount and IPC namespaces of another process; children that it starts later
/// join the PID namespace too. The process must have only one thread.
pub fn enter_namespaces_of(process: BorrowedFd<'_>) -> io::Result<()> {
    let others = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    // SAFETY: setns(2) takes numbers only; it changes namespaces, no memory.
    let result =
        unsafe { libc::setns(process.as_raw_fd(), others | libc::CLONE_NEWNET | libc::CLONE_NEWUTS) };
    check(result.into()).map(drop)
}

/// Sets the host name in the UTS namespace of this process.
pub fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}
