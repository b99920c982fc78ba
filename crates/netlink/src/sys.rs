//! The system calls that neither `std` nor a safe crate of our few dependencies offers. This is the only
//! file of the project with `unsafe` in it; each function is a safe wrapper that checks its own arguments.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Repeats a call that a signal interrupted.
fn uninterrupted(mut call: impl FnMut() -> libc::c_long) -> io::Result<libc::c_long> {
    loop {
        match check(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

/// A raw netlink socket, closed on exec.
pub fn netlink_socket(protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes numbers only.
    let fd = check(
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) }.into(),
    )?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Gives a netlink socket a port number of the kernel's choice, as its first send would do.
pub fn bind_netlink(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_nl is a valid value of a plain C struct.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) }.into()).map(drop)
}

/// Sets an option of level `SOL_NETLINK`.
pub fn set_netlink_option(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const value).cast(), size)
    };
    check(result.into()).map(drop)
}

/// Sets the size of a socket's send buffer, beyond what the machine's settings allow (`SO_SNDBUFFORCE`).
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to an i32 of this frame, and its size is given.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, size)
    };
    check(result.into()).map(drop)
}

/// Sends one datagram to the kernel.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `bytes`.
    let call =
        || unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) as libc::c_long };
    match uninterrupted(call)? as usize {
        sent if sent == bytes.len() => Ok(()),
        sent => Err(io::Error::other(format!("only {sent} of {} bytes were taken", bytes.len()))),
    }
}

/// Receives one datagram. One that does not fit is an error, never a cut message.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (at, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the pointer and the length describe `buffer`, which is borrowed mutably.
    let call = || unsafe { libc::recv(fd.as_raw_fd(), at.cast(), room, libc::MSG_TRUNC) as libc::c_long };
    match uninterrupted(call)? as usize {
        length if length <= room => Ok(length),
        length => Err(io::Error::other(format!("a datagram of {length} bytes"))),
    }
}

/// Waits until one of the descriptors can be read (or has an error to tell); says which.
pub fn readable(fds: &[BorrowedFd<'_>], patience: Duration) -> io::Result<Vec<bool>> {
    ready(fds, None, patience).map(|(readable, _)| readable)
}

/// Waits until one of the descriptors can be read, or the last one be written to (or has an error to tell); says which.
pub fn ready(
    reads: &[BorrowedFd<'_>],
    write: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> io::Result<(Vec<bool>, bool)> {
    let entry = |fd: &BorrowedFd<'_>, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut polled: Vec<libc::pollfd> = reads.iter().map(|fd| entry(fd, libc::POLLIN)).collect();
    polled.extend(write.iter().map(|fd| entry(fd, libc::POLLOUT)));
    let millis = patience.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: the pointer and the count describe `polled`, which is borrowed mutably.
    uninterrupted(|| unsafe {
        libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis).into()
    })?;
    let mut ready: Vec<bool> = polled.iter().map(|p| p.revents != 0).collect();
    let is_writable = write.is_some() && ready.pop() == Some(true);
    Ok((ready, is_writable))
}

/// Reading and writing at this descriptor waits for nobody.
pub fn never_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: fcntl(2) with this command takes no further argument.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }.into())?;
    let flags = flags as i32 | libc::O_NONBLOCK;
    // SAFETY: with this command it takes a number.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }.into()).map(drop)
}

/// The number of an interface in the socket's namespace, and its hardware address if that has six bytes. An answer to
/// netlink would wait for the lock of all links, these two do not.
pub fn interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, [u8; 6])> {
    // SAFETY: a request is plain data; all zeroes are one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero behind the longest name.
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let mut ask = |what: libc::c_ulong| {
        // SAFETY: the kernel reads and writes one request, which outlives the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) }.into())?;
        Ok::<_, io::Error>(request)
    };
    // SAFETY: the kernel filled in the member that belongs to the question.
    let index = unsafe { ask(libc::SIOCGIFINDEX as libc::c_ulong)?.ifr_ifru.ifru_ifindex };
    // SAFETY: as above.
    let address = unsafe { ask(libc::SIOCGIFHWADDR as libc::c_ulong)?.ifr_ifru.ifru_hwaddr.sa_data };
    let bytes = std::array::from_fn(|at| address[at] as u8);
    Ok((u32::try_from(index).unwrap_or_default(), bytes))
}

/// The network namespace that the calling thread is in, by a socket that was opened there: a tenth of what a walk through /proc
/// costs a new process. It takes the right to administer that namespace.
pub fn own_network_namespace() -> io::Result<OwnedFd> {
    const SIOCGSKNS: libc::c_ulong = 0x894c; // linux/sockios.h
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    // SAFETY: this request takes no argument, and returns a descriptor.
    let fd = check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS as _) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A number that the network namespace of the socket has and no other one, not even a later one, until the machine is
/// started anew. `None` from a kernel that does not tell (before 5.14).
pub fn network_namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    const SO_NETNS_COOKIE: i32 = 71; // asm-generic/socket.h
    let (mut cookie, mut size) = (0u64, size_of::<u64>() as libc::socklen_t);
    let at = (&raw mut cookie).cast();
    // SAFETY: both pointers are to variables that are borrowed mutably, and `size` is that of `cookie`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, at, &mut size) };
    match check(result.into()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        asked => asked.map(|_| Some(cookie)),
    }
}

/// Moves the calling thread into a network namespace.
pub fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: setns(2) takes numbers only; it changes the calling thread's namespace, no memory.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Gives the calling thread a new, empty network namespace.
pub fn new_network_namespace() -> io::Result<()> {
    // SAFETY: unshare(2) takes a number only; a thread's network namespace is no memory of ours.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Binds `source` (a namespace file) over the existing file `target`.
pub fn bind_mount(source: &Path, target: &Path) -> io::Result<()> {
    let (source, target) = (path(source)?, path(target)?);
    // SAFETY: both are NUL-ended strings that live through the call; type and data may be null for MS_BIND.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null())
    };
    check(result.into()).map(drop)
}

/// Gives the calling thread (and those that it starts) mounts of its own: what is mounted from now on is seen
/// by nobody else and ends with them.
pub fn private_mounts() -> io::Result<()> {
    // SAFETY: unshare(2) takes a number only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    // SAFETY: the target is a NUL-ended constant; source, type and data may be null for a change of propagation.
    let result = unsafe {
        let (null, data) = (std::ptr::null(), std::ptr::null());
        libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, data)
    };
    check(result.into()).map(drop)
}

/// Mounts an empty file system in memory over the folder `target`.
pub fn mount_memory(target: &Path) -> io::Result<()> {
    let target = path(target)?;
    let (kind, data) = (c"tmpfs".as_ptr(), std::ptr::null());
    // SAFETY: source, target and type are NUL-ended strings that live through the call; data may be null.
    check(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, data) }.into()).map(drop)
}

/// A socket for ICMP echoes (IPv6 if `v6`); the standard library's UDP socket can send and receive on it.
pub fn icmp_socket(v6: bool) -> io::Result<OwnedFd> {
    let (family, protocol) =
        if v6 { (libc::AF_INET6, libc::IPPROTO_ICMPV6) } else { (libc::AF_INET, libc::IPPROTO_ICMP) };
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Datagrams of this socket (of IPv6 if `v6`) are never cut into pieces, nor held back for what is remembered
/// of the way: only what the first link cannot carry is refused.
pub fn never_fragment(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let (level, option, value) = match v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
        false => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
    };
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    check(result.into()).map(drop)
}

/// Calls whoever listens at a socket of this machine. One who never takes a call has a queue before his door that is full at
/// some time: then `patience` is how long it may take, as it is for whatever is said to him.
pub fn connect_local(
    to: &std::os::unix::net::SocketAddr,
    patience: Duration,
) -> io::Result<std::os::unix::net::UnixStream> {
    // SAFETY: an all-zero sockaddr_un is a valid value of a plain C struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = match (to.as_pathname(), to.as_abstract_name()) {
        (Some(path), _) => [path.as_os_str().as_bytes(), b"\0"].concat(),
        (None, Some(name)) => [&b"\0"[..], name].concat(),
        (None, None) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "an address without a name")),
    };
    address.sun_path.iter_mut().zip(&name).for_each(|(to, from)| *to = *from as libc::c_char);
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    let stream = std::os::unix::net::UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    stream.set_write_timeout(Some(patience))?;
    // An abstract name ends with the address.
    let size = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t;
    // SAFETY: the pointer is to `address`, which lives through the call; a name that the standard library took fits into it.
    uninterrupted(|| unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), size).into() })?;
    Ok(stream)
}

/// The largest packet that, as far as this host knows, gets to where the socket is connected.
pub fn path_mtu(fd: BorrowedFd<'_>, v6: bool) -> io::Result<u32> {
    let (level, option) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let (mut value, mut size) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: both pointers are to variables that are borrowed mutably, and `size` is that of `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut size) };
    check(result.into()).map(|_| value.max(0) as u32)
}

/// Takes a mount away; it goes when its last user does.
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = path(target)?;
    // SAFETY: the string is NUL-ended and lives through the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// The number of the file system's type (`f_type` of statfs(2)).
pub fn file_system_type(of: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: an all-zero statfs is a valid value of a plain C struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `stat`, which is borrowed mutably.
    check(unsafe { libc::fstatfs(of.as_raw_fd(), &mut stat) }.into())?;
    Ok(stat.f_type as i64)
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length describe `bytes`, which is borrowed mutably.
    uninterrupted(|| unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) as libc::c_long })?;
    Ok(bytes)
}

/// Ends the process at once: nothing is flushed, nothing dropped, no handler of an end is called.
pub fn end(status: u8) -> ! {
    // SAFETY: _exit(2) takes a number and does not return.
    unsafe { libc::_exit(status.into()) }
}

/// The effective user id.
pub fn user_id() -> u32 {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// A descriptor that can be read when the process has ended.
pub fn process_descriptor(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes numbers only.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(process as i32), 0) })?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A program that is to be started in namespaces of its own, as the first process of a pod.
#[derive(Debug)]
pub struct Birth<'a> {
    /// What it is called with, its own name first.
    pub args: &'a [&'a str],
    /// Whether it gets a network and a host name of its own. Its mounts, processes and System V objects always are.
    pub own_network: bool,
    /// Its standard input.
    pub stdin: BorrowedFd<'a>,
    /// Its standard output.
    pub stdout: BorrowedFd<'a>,
}

/// All that the child needs, prepared by the parent.
struct Prepared {
    args: *const *const libc::c_char,
    stdin: i32,
    stdout: i32,
    errno: i32,
}

/// Starts this program anew, in namespaces of its own: with these two streams and no other descriptor of the caller,
/// no variable of its environment, in a session of its own. Returns its number as the caller sees it.
pub fn spawn_apart(birth: &Birth<'_>) -> io::Result<u32> {
    let args: Vec<CString> = birth
        .args
        .iter()
        .map(|arg| CString::new(*arg))
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    let pointers: Vec<_> = args.iter().map(|arg| arg.as_ptr()).chain([std::ptr::null()]).collect();
    // Copies whose numbers no standard stream has: else one could be put over the other.
    let (stdin, stdout) = (inherited(birth.stdin.as_raw_fd())?, inherited(birth.stdout.as_raw_fd())?);
    let mut prepared =
        Prepared { args: pointers.as_ptr(), stdin: stdin.as_raw_fd(), stdout: stdout.as_raw_fd(), errno: 0 };
    let apart = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    let network = if birth.own_network { libc::CLONE_NEWNET | libc::CLONE_NEWUTS } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | apart | network;
    let mut stack = vec![0u128; 2048];
    // SAFETY: an all-zero sigset_t is storage that sigfillset fills; the pointers are to values that live through the
    // calls. The child shares this memory, runs on `stack` (whose end is aligned to 16 bytes) and touches `prepared`
    // and what it points to, while the kernel keeps this thread stopped until the child has executed a program or
    // ended (CLONE_VFORK). No handler of a signal runs meanwhile in either, since all are blocked.
    let child = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let child = check(libc::clone(born, top, flags, (&raw mut prepared).cast()).into());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        child? as i32
    };
    match prepared.errno {
        0 => Ok(child as u32),
        errno => {
            // SAFETY: waitpid(2) with a null status takes numbers only; the child is ours and has ended.
            let _ = uninterrupted(|| unsafe { libc::waitpid(child, std::ptr::null_mut(), 0).into() });
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// The child of [`spawn_apart`]: only plain system calls, no allocation, no lock.
extern "C" fn born(prepared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the pointer is to the parent's `Prepared`, which waits and does not touch it. Plain system calls on
    // numbers and NUL-ended strings follow; _exit never returns.
    unsafe {
        let prepared = &mut *prepared.cast::<Prepared>();
        let no_variables: [*const libc::c_char; 1] = [std::ptr::null()];
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        libc::dup2(prepared.stdin, 0);
        libc::dup2(prepared.stdout, 1);
        libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR), 2);
        libc::syscall(libc::SYS_close_range, 3, i32::MAX, 0);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::execve(c"/proc/self/exe".as_ptr(), prepared.args, no_variables.as_ptr());
        prepared.errno = *libc::__errno_location();
        libc::_exit(127)
    }
}

/// Waits, as the first process of a pod, for a word that it is over (SIGTERM or SIGINT). Until then it is what keeps the
/// pod's namespaces, without any descriptor; children that it is given are reaped by the kernel.
pub fn rest() -> io::Result<()> {
    // SAFETY: plain system calls on numbers and constants; `set` is storage that sigemptyset fills, and the pointers are
    // to values that live through the calls. Nobody in this process uses the descriptors 0 to 2 any more.
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

/// Sends a signal to the process behind a descriptor: never to another one that got its number since.
pub fn signal_process(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (fd, no_details) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: pidfd_send_signal(2) takes numbers, and a null pointer for no details.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_details, 0) }).map(drop)
}

/// Takes note of the end of a process that this one started; no error if another did.
pub fn reap(process: BorrowedFd<'_>) {
    // SAFETY: an all-zero siginfo_t is a valid value of a plain C struct; the pointer is to it.
    unsafe {
        let mut told: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(
            libc::P_PIDFD,
            process.as_raw_fd() as libc::id_t,
            &raw mut told,
            libc::WEXITED | libc::WNOHANG,
        );
    }
}

/// Moves this process, which must have one thread only, into the network, host name, mounts and System V objects of
/// another one; children that it starts from now on are among that one's processes.
pub fn enter_namespaces_of(process: BorrowedFd<'_>) -> io::Result<()> {
    let apart = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    // SAFETY: setns(2) takes numbers only; it changes namespaces, no memory.
    let result = unsafe { libc::setns(process.as_raw_fd(), apart | libc::CLONE_NEWNET | libc::CLONE_NEWUTS) };
    check(result.into()).map(drop)
}

/// Sets the name of the host, of this process's namespace.
pub fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

/// What is mounted in this mount namespace from now on is seen by nobody else; what others unmount goes here too.
pub fn follow_mounts() -> io::Result<()> {
    let null = std::ptr::null();
    // SAFETY: the target is a NUL-ended constant; source, type and data may be null for a change of propagation.
    let result =
        unsafe { libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_SLAVE, std::ptr::null()) };
    check(result.into()).map(drop)
}

/// Mounts a file system that has no device, such as `proc` or `sysfs`, over the folder `target`.
pub fn mount_virtual(kind: &str, target: &Path) -> io::Result<()> {
    let (kind, target) = (path(Path::new(kind))?, path(target)?);
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: source, target and type are NUL-ended strings that live through the call; data may be null.
    let result =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    check(result.into()).map(drop)
}

/// What is carried out aside while the caller goes on: a request is sent if there is one, how it went is told, and
/// the sockets are held until the kernel has put its house in order.
#[derive(Debug)]
pub struct Detached<'a> {
    /// The datagram to send, and the socket for it. The answer's error number is written to `report`.
    pub request: Option<(BorrowedFd<'a>, &'a [u8])>,
    /// Written four bytes: the kernel's (negative) error number or 0.
    pub report: Option<BorrowedFd<'a>>,
    /// Kept open until the end, besides the above.
    pub hold: [Option<BorrowedFd<'a>>; 2],
}

/// Has `work` carried out by a child process that outlives the caller and is waited for by nobody: for a program that
/// ends soon, so that init reaps the child. It has no standard streams, no other descriptors and no signals of the
/// caller's terminal.
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

/// Has `work` carried out by a thread: for a program that lives long, which would have to wait for its children. The
/// thread has duplicates of the descriptors, so the caller may close its own.
pub fn detach_thread(work: &Detached<'_>) -> io::Result<()> {
    let own = |fd: Option<BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
    let (socket, bytes) =
        (own(work.request.map(|(fd, _)| fd))?, work.request.map_or(&[][..], |(_, bytes)| bytes));
    let (report, bytes) = (own(work.report)?, bytes.to_vec());
    let held = [own(work.hold[0])?, own(work.hold[1])?];
    let raw = |fd: &Option<OwnedFd>| fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
    std::thread::Builder::new().stack_size(32 << 10).name("podwire-dust".into()).spawn(move || {
        carry_out(raw(&socket), &bytes, raw(&report));
        drop((socket, report, held));
    })?;
    Ok(())
}

fn detached_child(socket: i32, bytes: &[u8], report: i32, kept: &[i32; 4]) -> ! {
    // SAFETY: plain system calls on numbers.
    unsafe {
        libc::setsid();
        // Whoever reads the plugin's output waits for its end: leave nothing open but what is needed.
        let mut from = 0;
        for &fd in kept.iter().filter(|fd| **fd >= 0) {
            if fd > from {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = from.max(fd + 1);
        }
        libc::syscall(libc::SYS_close_range, from, i32::MAX, 0);
    }
    carry_out(socket, bytes, report);
    // SAFETY: it never returns.
    unsafe { libc::_exit(0) }
}

/// Only plain system calls, no allocation, no lock: it may run in a child of a threaded program.
fn carry_out(socket: i32, bytes: &[u8], report: i32) {
    // SAFETY: the descriptors are the caller's, -1 is none; the buffers are `bytes` and ones on this stack.
    unsafe {
        if socket >= 0 {
            // Whoever hears nothing does not know that it is done.
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
        // nf_tables frees what was deleted after an RCU grace period, and closing a netfilter socket before
        // that waits with the table lock held. Wait for grace periods here, with nothing held.
        for _ in 0..2 {
            libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0);
        }
    }
}

/// A TAP device that is to be made.
#[derive(Clone, Debug, Default)]
pub struct TapBirth<'a> {
    /// Its name, at most 15 bytes; no device may have it.
    pub name: &'a str,
    /// Several programs, or threads of one, may each have a queue of it.
    pub multi_queue: bool,
    /// The user that may open it without privileges.
    pub owner: Option<u32>,
    /// The group that may.
    pub group: Option<u32>,
    /// The security context (SELinux) that it is to have, which is that of whoever makes it.
    pub label: Option<&'a str>,
}

/// What failed while a TAP device was made.
pub type TapFailure = (&'static str, io::Error);

/// The steps in which a TAP device is made, in order.
const TAP_STEPS: [&str; 6] = [
    "take on the security context",
    "open /dev/net/tun",
    "make the device (TUNSETIFF)",
    "give it to its owner (TUNSETOWNER)",
    "give it to its group (TUNSETGROUP)",
    "let it stay (TUNSETPERSIST)",
];

/// Makes a TAP device in the calling thread's namespace that stays when its descriptor is closed. rtnetlink cannot
/// make one.
pub fn create_tap(tap: &TapBirth<'_>) -> Result<(), TapFailure> {
    let invalid = |text: &'static str| (TAP_STEPS[2], io::Error::new(io::ErrorKind::InvalidInput, text));
    // SAFETY: an all-zero ifreq is a valid value of a plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if tap.name.is_empty() || tap.name.len() >= libc::IFNAMSIZ || tap.name.contains('\0') {
        return Err(invalid("no name of a device"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(tap.name.bytes()) {
        *to = from as libc::c_char;
    }
    // Frames without a header of the driver's; an opener may ask for one. IFF_TUN_EXCL: never somebody else's.
    let queues = if tap.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | IFF_TUN_EXCL | queues;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let label = tap.label.map(CString::new).transpose().map_err(|_| invalid("a NUL byte in a context"))?;
    let steps = TapSteps { request, owner: tap.owner, group: tap.group, label };
    let (step, errno) = match steps.label {
        // The context of a thread among others cannot be changed, and may be one from which there is no way back.
        Some(_) => in_a_child(&steps).map_err(|error| ("start a process", error))?,
        None => steps.take(),
    };
    match errno {
        0 => Ok(()),
        errno => Err((
            TAP_STEPS.get(step).copied().unwrap_or("make the device"),
            io::Error::from_raw_os_error(errno),
        )),
    }
}

const IFF_TUN_EXCL: libc::c_int = 0x8000; // linux/if_tun.h

/// Everything that is needed to make a TAP device with plain system calls.
struct TapSteps {
    request: libc::ifreq,
    owner: Option<u32>,
    group: Option<u32>,
    label: Option<CString>,
}

impl TapSteps {
    /// Takes the steps; (the last one taken, its error number or 0). Neither allocates nor locks.
    fn take(&self) -> (usize, i32) {
        // SAFETY: plain system calls on NUL-ended strings, numbers and `request`, which live through the calls; each
        // descriptor was just opened here and is closed once.
        unsafe {
            let errno = || *libc::__errno_location();
            if let Some(label) = &self.label {
                let file =
                    libc::open(c"/proc/thread-self/attr/current".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                let bytes = label.as_bytes();
                if file < 0 || libc::write(file, bytes.as_ptr().cast(), bytes.len()) < 0 {
                    return (0, errno());
                }
                libc::close(file);
            }
            let tun = libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if tun < 0 {
                return (1, errno());
            }
            let numbers = [
                (3, libc::TUNSETOWNER, self.owner),
                (4, libc::TUNSETGROUP, self.group),
                (5, libc::TUNSETPERSIST, Some(1)),
            ];
            let mut outcome = (2, 0);
            if libc::ioctl(tun, libc::TUNSETIFF as _, &raw const self.request) < 0 {
                outcome.1 = errno();
            }
            for (step, call, value) in numbers {
                if let (0, Some(value)) = (outcome.1, value) {
                    outcome.0 = step;
                    if libc::ioctl(tun, call as _, libc::c_ulong::from(value)) < 0 {
                        outcome.1 = errno();
                    }
                }
            }
            libc::close(tun);
            outcome
        }
    }
}

/// Takes the steps in a process of their own, which ends with them.
fn in_a_child(steps: &TapSteps) -> io::Result<(usize, i32)> {
    let (read, write) = pipe()?;
    // SAFETY: the system call itself instead of fork(3), which would touch locks of the caller's threads. The child
    // has a copy of the memory, makes plain system calls on values prepared before, and ends with _exit: no
    // allocation, no lock, no destructor runs in it.
    let child = match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })? {
        0 => {
            let (step, errno) = steps.take();
            let words = [step as i32, errno];
            // SAFETY: the pointer and the length describe `words`; _exit never returns.
            unsafe {
                libc::write(write.as_raw_fd(), words.as_ptr().cast(), size_of_val(&words));
                libc::_exit(0)
            }
        }
        child => child as i32,
    };
    drop(write);
    let mut words = [0i32; 2];
    // SAFETY: the pointer and the length describe `words`, which is borrowed mutably.
    let told = uninterrupted(|| unsafe {
        libc::read(read.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) as libc::c_long
    });
    // SAFETY: waitpid(2) with a null status takes numbers only; the child is ours.
    let _ = uninterrupted(|| unsafe { libc::waitpid(child, std::ptr::null_mut(), 0).into() });
    match told? as usize {
        8 => Ok((words[0] as usize, words[1])),
        _ => Err(io::Error::other("the process that was to make the device ended early")),
    }
}

/// A pipe, closed on exec: (to read from, to write to).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the pointer is to an array of two descriptors, borrowed mutably.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: both descriptors were just returned to us and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// What came over a [`packet_socket`], and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// How many bytes.
    pub length: usize,
    /// The hardware address of the sender, if it has six bytes.
    pub from: Option<[u8; 6]>,
    /// Whether this machine sent it itself.
    pub own: bool,
}

/// A socket below IP on one link of the current namespace: it gets the IPv4 packets that are UDP datagrams to `port`
/// and no later fragments, from the IP header on, and nothing else, since the kernel picks them.
pub fn packet_socket(link: u32, port: u16) -> io::Result<OwnedFd> {
    // Without a protocol it hears nothing before the filter is in its place.
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut code = datagrams_to(port);
    let program = libc::sock_fprog { len: code.len() as libc::c_ushort, filter: code.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (option, value) = (libc::SO_ATTACH_FILTER, (&raw const program).cast());
    // SAFETY: the program's pointer and length describe `code`; both live through the call, which copies them.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
    check(result.into())?;
    let (address, size) = link_address(link, [0; 6]);
    // SAFETY: the pointer and the length describe `address`, which lives through the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) }.into())?;
    Ok(socket)
}

/// A filter (linux/filter.h) over packets that begin with their IP header.
fn datagrams_to(port: u16) -> [libc::sock_filter; 9] {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load_byte, load_half) = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, libc::BPF_H | libc::BPF_LD);
    [
        code(load_byte, 0, 0, 9), // the protocol
        code(libc::BPF_JMP | libc::BPF_JEQ, 0, 6, libc::IPPROTO_UDP as u32),
        code(load_half | libc::BPF_ABS, 0, 0, 6), // where in the whole a fragment belongs
        code(libc::BPF_JMP | libc::BPF_JSET, 4, 0, 0x1fff),
        code(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0), // the length of the IP header
        code(load_half | libc::BPF_IND, 0, 0, 2),                   // the port, behind it
        code(libc::BPF_JMP | libc::BPF_JEQ, 0, 1, u32::from(port)),
        code(libc::BPF_RET, 0, 0, u32::MAX), // all of it
        code(libc::BPF_RET, 0, 0, 0),        // nothing
    ]
}

/// `struct sockaddr_ll` for IPv4 on a link.
fn link_address(link: u32, to: [u8; 6]) -> (libc::sockaddr_ll, libc::socklen_t) {
    // SAFETY: an all-zero sockaddr_ll is a valid value of a plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = link as i32;
    address.sll_halen = 6;
    address.sll_addr[..6].copy_from_slice(&to);
    (address, size_of::<libc::sockaddr_ll>() as libc::socklen_t)
}

/// Sends an IPv4 packet over a link to a hardware address.
pub fn send_packet(socket: BorrowedFd<'_>, link: u32, to: [u8; 6], packet: &[u8]) -> io::Result<()> {
    let (address, size) = link_address(link, to);
    // SAFETY: the pointers and lengths describe `packet` and `address`, which live through the call.
    let call = || unsafe {
        let (at, length) = (packet.as_ptr().cast(), packet.len());
        libc::sendto(socket.as_raw_fd(), at, length, 0, (&raw const address).cast(), size) as libc::c_long
    };
    uninterrupted(call).map(drop)
}

/// Receives a packet, if there is one. One that does not fit is cut.
pub fn receive_packet(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Caught>> {
    let (mut address, mut size) = link_address(0, [0; 6]);
    let (at, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the pointers and lengths describe `buffer` and `address`, both borrowed mutably.
    let call = || unsafe {
        let from = (&raw mut address).cast();
        libc::recvfrom(socket.as_raw_fd(), at.cast(), room, 0, from, &raw mut size) as libc::c_long
    };
    match uninterrupted(call) {
        Ok(length) => {
            let mut from = [0; 6];
            from.copy_from_slice(&address.sll_addr[..6]);
            Ok(Some(Caught {
                length: length as usize,
                from: (address.sll_halen == 6).then_some(from),
                own: address.sll_pkttype == libc::PACKET_OUTGOING,
            }))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts a program with no signal blocked: else it would have those blocked that this thread has.
pub fn spawn_unblocked(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    let unblock = || {
        // SAFETY: an all-zero sigset_t is storage that sigemptyset fills; the pointers are to it, and the old mask is not asked for.
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

/// A descriptor that can be read when one of these signals has come; they do nothing else any more to the calling
/// thread and those that it starts.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is storage that sigemptyset fills; the pointers are to it, borrowed mutably.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            check(libc::sigaddset(&raw mut set, signal).into())?;
        }
        set
    };
    // SAFETY: the pointer is to `set`; the old mask is not asked for.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: the pointer is to `set`, which lives through the call.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A descriptor that can be read when a file was moved into `folder` or written there.
pub fn watch_folder(folder: &Path) -> io::Result<OwnedFd> {
    let watch = watch_nothing()?;
    add_watch(watch.as_fd(), folder, libc::IN_MOVED_TO | libc::IN_CLOSE_WRITE)?;
    Ok(watch)
}

/// A descriptor for watches over files (inotify); reading it does not block.
pub fn watch_nothing() -> io::Result<OwnedFd> {
    // SAFETY: inotify_init1(2) takes numbers only.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Watches whatever happens to a folder and to what is in it. To say it again changes nothing.
pub fn watch_all(watch: BorrowedFd<'_>, folder: &Path) -> io::Result<()> {
    let within = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO;
    let changed = libc::IN_CLOSE_WRITE | libc::IN_ATTRIB | libc::IN_DELETE_SELF | libc::IN_MOVE_SELF;
    add_watch(watch, folder, within | changed | libc::IN_ONLYDIR)
}

fn add_watch(watch: BorrowedFd<'_>, folder: &Path, mask: u32) -> io::Result<()> {
    let folder = path(folder)?;
    // SAFETY: the string is NUL-ended and lives through the call.
    check(unsafe { libc::inotify_add_watch(watch.as_raw_fd(), folder.as_ptr(), mask) }.into()).map(drop)
}

/// A copy of a descriptor that whoever started this process passed on under a number.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_DUPFD_CLOEXEC takes numbers only.
    let fd = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    // SAFETY: the copy was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The time since the boot, with the time that the machine slept.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to `time`, borrowed mutably; this clock is there on every kernel.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

fn path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::other("a path with a NUL byte in it"))
}

/// The memory of a program that lives for a millisecond. (One that lives longer soon has the system's.)
///
/// musl's allocator maps and unmaps pages all the time, which was a quarter of a plugin's life. This one hands
/// out pieces of one block and takes back only the piece that it handed out last; what does not fit any more
/// comes from the system as ever.
#[derive(Debug)]
pub struct Arena {
    /// Where the next piece begins.
    used: AtomicUsize,
    /// How far pieces ever reached: behind it the block is as the kernel gave it, all zero and not yet touched.
    touched: AtomicUsize,
}

const ARENA_SIZE: usize = 1 << 20;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; ARENA_SIZE]>);

// SAFETY: the block is only ever reached through pieces that `Arena` hands out, each to one owner.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; ARENA_SIZE]));

impl Arena {
    /// For `#[global_allocator]`. A program may have one.
    pub const fn new() -> Arena {
        Arena { used: AtomicUsize::new(0), touched: AtomicUsize::new(0) }
    }

    /// Where a pointer lies in the block, if it does.
    fn offset(pointer: *const u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(BLOCK.0.get() as usize);
        (offset < ARENA_SIZE).then_some(offset)
    }

    fn set(&self, from: usize, to: usize) -> bool {
        // Whoever gets a piece sees all that its former owner did with it, also one of another thread.
        self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A piece of the block, and how much of it, from its beginning on, may have been written to before.
    fn piece(&self, layout: Layout) -> Option<(*mut u8, usize)> {
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let start = used.next_multiple_of(layout.align());
            let end = start.saturating_add(layout.size());
            if end > ARENA_SIZE || layout.align() > 4096 {
                return None;
            }
            if self.set(used, end) {
                let touched = self.touched.fetch_max(end, Ordering::Relaxed);
                let pointer = BLOCK.0.get().cast::<u8>().wrapping_add(start);
                return Some((pointer, touched.saturating_sub(start).min(layout.size())));
            }
        }
    }
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

// SAFETY: a piece is handed out once, by whoever moved `used` over it, is aligned and as long as asked for; it is
// handed out again only after `dealloc` gave back the last piece. All other memory is the system allocator's.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.piece(layout) {
            Some((pointer, _)) => pointer,
            // SAFETY: the caller's promises about the layout are the system's conditions.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.piece(layout) {
            Some((pointer, written)) => {
                // SAFETY: the piece is ours and at least so long. Writing zeroes to pages that nobody has touched
                // would only make the kernel fetch them: receive buffers are large and mostly stay empty.
                unsafe { pointer.write_bytes(0, written) };
                pointer
            }
            // SAFETY: the caller's promises about the layout are the system's conditions.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match Arena::offset(pointer) {
            Some(start) => drop(self.set(start + layout.size(), start)),
            // SAFETY: it is not ours, so the system handed it out, with this layout.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match Arena::offset(pointer) {
            // The last piece grows and shrinks where it is.
            Some(start) if start + size <= ARENA_SIZE && self.set(start + layout.size(), start + size) => {
                self.touched.fetch_max(start + size, Ordering::Relaxed);
                pointer
            }
            Some(_) if size <= layout.size() => pointer,
            Some(_) => {
                // SAFETY: the size is not zero and does not overflow with this alignment, as the caller promised;
                // old and new piece do not overlap, and the shorter length is copied.
                unsafe {
                    let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                    if !new.is_null() {
                        std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                    }
                    new
                }
            }
            // SAFETY: it is not ours, so the system handed it out, with this layout.
            None => unsafe { System.realloc(pointer, layout, size) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_hands_out_aligned_pieces_that_keep_their_bytes() {
        let arena = Arena::new();
        let small = Layout::from_size_align(3, 1).unwrap();
        let large = Layout::from_size_align(ARENA_SIZE, 8).unwrap();
        // SAFETY: pieces are written inside their bounds and given back with their layouts.
        unsafe {
            let a = arena.alloc(small);
            a.copy_from(b"abc".as_ptr(), 3);
            let b = arena.alloc(Layout::from_size_align(64, 64).unwrap());
            assert_eq!(b as usize % 64, 0);
            let grown = arena.realloc(a, small, 300);
            assert_ne!(grown, a);
            assert_eq!(std::slice::from_raw_parts(grown, 3), b"abc");
            let in_place = arena.realloc(grown, Layout::from_size_align(300, 1).unwrap(), 400);
            assert_eq!(in_place, grown);
            arena.dealloc(in_place, Layout::from_size_align(400, 1).unwrap());
            assert_eq!(arena.alloc(small), grown);
            let again = arena.alloc(Layout::from_size_align(100, 1).unwrap());
            again.write_bytes(7, 100);
            arena.dealloc(again, Layout::from_size_align(100, 1).unwrap());
            let zeroed = arena.alloc_zeroed(Layout::from_size_align(1000, 1).unwrap());
            assert!(std::slice::from_raw_parts(zeroed, 1000).iter().all(|byte| *byte == 0));
            let outside = arena.alloc(large);
            assert!(Arena::offset(outside).is_none());
            arena.dealloc(outside, large);
        }
    }
}
