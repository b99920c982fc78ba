//! TAP devices, which rtnetlink cannot create.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use super::call::{check, uninterrupted};
use super::fd::pipe;

/// The settings of a new TAP device.
#[derive(Clone, Debug, Default)]
pub struct TapSpec<'a> {
    /// Its name: at most 15 bytes, and not in use.
    pub name: &'a str,
    /// Whether several programs or threads may each open a queue.
    pub multi_queue: bool,
    /// The UID that may open it without privileges.
    pub owner: Option<u32>,
    /// The GID that may open it without privileges.
    pub group: Option<u32>,
    /// The SELinux context of the device. It is the context of the process that creates it.
    pub label: Option<&'a str>,
}

/// The step of the creation that failed, and its error.
pub type TapFailure = (&'static str, io::Error);

/// The steps of the creation, in order.
const TAP_STEPS: [&str; 6] = [
    "set the SELinux context",
    "open /dev/net/tun",
    "create the device (TUNSETIFF)",
    "set its owner (TUNSETOWNER)",
    "set its group (TUNSETGROUP)",
    "make it persistent (TUNSETPERSIST)",
];

/// Creates a persistent TAP device in the calling thread's network namespace.
pub fn create_tap(tap: &TapSpec<'_>) -> Result<(), TapFailure> {
    let invalid = |text: &'static str| (TAP_STEPS[2], io::Error::new(io::ErrorKind::InvalidInput, text));
    // SAFETY: an all-zero ifreq is a valid value of a plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if tap.name.is_empty() || tap.name.len() >= libc::IFNAMSIZ || tap.name.contains('\0') {
        return Err(invalid("invalid device name"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(tap.name.bytes()) {
        *to = from as libc::c_char;
    }
    // IFF_NO_PI: frames without the driver's header. IFF_TUN_EXCL: fail if the device exists.
    let queues = if tap.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | IFF_TUN_EXCL | queues;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let label =
        tap.label.map(CString::new).transpose().map_err(|_| invalid("the context contains a NUL byte"))?;
    let steps = TapSteps { request, owner: tap.owner, group: tap.group, label };
    let (step, errno) = match steps.label {
        // A thread of a threaded process cannot change its context, and the change may be irreversible.
        Some(_) => run_in_child(&steps).map_err(|error| ("start a process", error))?,
        None => steps.run(),
    };
    match errno {
        0 => Ok(()),
        errno => Err((
            TAP_STEPS.get(step).copied().unwrap_or("create the device"),
            io::Error::from_raw_os_error(errno),
        )),
    }
}

const IFF_TUN_EXCL: libc::c_int = 0x8000; // linux/if_tun.h

/// The prepared arguments of the system calls.
struct TapSteps {
    request: libc::ifreq,
    owner: Option<u32>,
    group: Option<u32>,
    label: Option<CString>,
}

impl TapSteps {
    /// Runs the steps. Returns the index of the last step and its errno or 0. Neither allocates nor locks.
    fn run(&self) -> (usize, i32) {
        // SAFETY: plain system calls on NUL-terminated strings, numbers and `request`, which live through the calls;
        // each descriptor was just opened here and is closed once.
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

/// Runs the steps in a child process, which then exits.
fn run_in_child(steps: &TapSteps) -> io::Result<(usize, i32)> {
    let (reader, writer) = pipe()?;
    // SAFETY: the system call itself instead of fork(3), which touches locks of the caller's threads. The child
    // has a copy of the memory, makes plain system calls on values prepared before, and ends with _exit: no
    // allocation, no lock, no destructor runs in it.
    let child = match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })? {
        0 => {
            let (step, errno) = steps.run();
            let words = [step as i32, errno];
            // SAFETY: the pointer and the length describe `words`; _exit never returns.
            unsafe {
                libc::write(writer.as_raw_fd(), words.as_ptr().cast(), size_of_val(&words));
                libc::_exit(0)
            }
        }
        child => child as i32,
    };
    drop(writer);
    let mut words = [0i32; 2];
    // SAFETY: the pointer and the length describe `words`, which is borrowed mutably.
    let read = uninterrupted(|| unsafe {
        libc::read(reader.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) as libc::c_long
    });
    // SAFETY: waitpid(2) with a null status takes numbers only; the child is ours.
    let _ = uninterrupted(|| unsafe { libc::waitpid(child, std::ptr::null_mut(), 0).into() });
    match read? as usize {
        8 => Ok((words[0] as usize, words[1])),
        _ => Err(io::Error::other("the process that creates the device exited early")),
    }
}
