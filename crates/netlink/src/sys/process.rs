//! Processes: start in new namespaces, pidfds, exit.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::call::{check, uninterrupted};
use super::fd::duplicate;

/// Exits at once, without flushing buffers, running destructors or calling atexit handlers.
pub fn exit_immediately(status: u8) -> ! {
    // SAFETY: _exit(2) takes a number and does not return.
    unsafe { libc::_exit(status.into()) }
}

/// Opens a pidfd. It becomes readable when the process has exited.
pub fn open_pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes numbers only.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(process as i32), 0) })?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// How [`spawn_in_new_namespaces`] starts a program as the first process of a pod.
#[derive(Debug)]
pub struct IsolatedProcess<'a> {
    /// The program to execute.
    pub program: &'a Path,
    /// The arguments, starting with the program's name.
    pub args: &'a [&'a str],
    /// Whether it gets new network and UTS namespaces. It always gets new mount, PID and IPC namespaces.
    pub new_network: bool,
    /// Its standard input.
    pub stdin: BorrowedFd<'a>,
    /// Its standard output.
    pub stdout: BorrowedFd<'a>,
}

/// Everything that the child needs. The parent prepares it, because the child must not allocate.
struct Prepared {
    program: *const libc::c_char,
    args: *const *const libc::c_char,
    stdin: i32,
    stdout: i32,
    errno: i32,
}

/// Executes a program in new namespaces and a new session, with these two streams, no other descriptor of the
/// caller and an empty environment. Returns its PID in the caller's PID namespace.
pub fn spawn_in_new_namespaces(spec: &IsolatedProcess<'_>) -> io::Result<u32> {
    let args: Vec<CString> =
        spec.args.iter().map(|arg| CString::new(*arg)).collect::<Result<_, _>>().map_err(io::Error::other)?;
    let program = CString::new(spec.program.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let pointers: Vec<_> = args.iter().map(|arg| arg.as_ptr()).chain([std::ptr::null()]).collect();
    // Copies with numbers above the standard streams: dup2 in the child must not overwrite one with the other.
    let (stdin, stdout) = (duplicate(spec.stdin.as_raw_fd())?, duplicate(spec.stdout.as_raw_fd())?);
    let mut prepared = Prepared {
        program: program.as_ptr(),
        args: pointers.as_ptr(),
        stdin: stdin.as_raw_fd(),
        stdout: stdout.as_raw_fd(),
        errno: 0,
    };
    let always = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    let network = if spec.new_network { libc::CLONE_NEWNET | libc::CLONE_NEWUTS } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | always | network;
    let mut stack = vec![0u128; 2048];
    // SAFETY: an all-zero sigset_t is storage that sigfillset fills; the pointers are to values that live through the
    // calls. The child shares this memory, runs on `stack` (whose end is aligned to 16 bytes) and touches `prepared`
    // and what it points to, while the kernel keeps this thread stopped until the child has executed a program or
    // ended (CLONE_VFORK). All signals are blocked meanwhile, so no signal handler runs in either.
    let child = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let child = check(libc::clone(child_main, top, flags, (&raw mut prepared).cast()).into());
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

/// Runs in the child of [`spawn_in_new_namespaces`]: only plain system calls, no allocation, no lock.
extern "C" fn child_main(prepared: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the pointer is to the parent's `Prepared`, which waits and does not touch it. Plain system calls on
    // numbers and NUL-terminated strings follow; _exit never returns.
    unsafe {
        let prepared = &mut *prepared.cast::<Prepared>();
        let empty_environment: [*const libc::c_char; 1] = [std::ptr::null()];
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        libc::dup2(prepared.stdin, 0);
        libc::dup2(prepared.stdout, 1);
        libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR), 2);
        libc::syscall(libc::SYS_close_range, 3, i32::MAX, 0);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::execve(prepared.program, prepared.args, empty_environment.as_ptr());
        prepared.errno = *libc::__errno_location();
        libc::_exit(127)
    }
}

/// Sends a signal to the process of a pidfd. It never reaches another process that reuses the PID.
pub fn signal_process(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (fd, no_info) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: pidfd_send_signal(2) takes numbers, and a null pointer for no siginfo.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, 0) }).map(drop)
}

/// Reaps an exited child, if the process of this pidfd is one.
pub fn reap(process: BorrowedFd<'_>) {
    // SAFETY: an all-zero siginfo_t is a valid value of a plain C struct; the pointer is to it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(
            libc::P_PIDFD,
            process.as_raw_fd() as libc::id_t,
            &raw mut info,
            libc::WEXITED | libc::WNOHANG,
        );
    }
}
