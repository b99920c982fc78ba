//! Mounts and mount namespaces.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use super::call::{c_path, check};

/// Bind-mounts `source` (a namespace file) over the existing file `target`.
pub fn bind_mount(source: &Path, target: &Path) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    // SAFETY: both are NUL-terminated strings that live through the call; type and data may be null for MS_BIND.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null())
    };
    check(result.into()).map(drop)
}

/// Moves the calling thread, and the threads that it starts, into a new mount namespace with private propagation: later
/// mounts are invisible to other processes and end with these threads.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: unshare(2) takes a number only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    // SAFETY: the target is a NUL-terminated constant; source, type and data may be null for a change of propagation.
    let result = unsafe {
        let (null, data) = (std::ptr::null(), std::ptr::null());
        libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, data)
    };
    check(result.into()).map(drop)
}

/// Mounts an empty tmpfs over the directory `target`.
pub fn mount_tmpfs(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    let (kind, data) = (c"tmpfs".as_ptr(), std::ptr::null());
    // SAFETY: source, target and type are NUL-terminated strings that live through the call; data may be null.
    check(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, data) }.into()).map(drop)
}

/// Makes all mounts of this mount namespace slaves: mounts made here stay here, and mounts and unmounts elsewhere
/// propagate to here.
pub fn make_mounts_slave() -> io::Result<()> {
    let null = std::ptr::null();
    // SAFETY: the target is a NUL-terminated constant; source, type and data may be null for a change of propagation.
    let result =
        unsafe { libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_SLAVE, std::ptr::null()) };
    check(result.into()).map(drop)
}

/// Mounts a file system that has no device, such as `proc` or `sysfs`, over the directory `target`.
pub fn mount_virtual(kind: &str, target: &Path) -> io::Result<()> {
    let (kind, target) = (c_path(Path::new(kind))?, c_path(target)?);
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: source, target and type are NUL-terminated strings that live through the call; data may be null.
    let result =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    check(result.into()).map(drop)
}

/// Detaches a mount. The kernel frees it when its last user is gone (MNT_DETACH).
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: the string is NUL-terminated and lives through the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// The magic number of a descriptor's file system (`f_type` of statfs(2)).
pub fn file_system_type(of: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: an all-zero statfs is a valid value of a plain C struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to `stat`, which is borrowed mutably.
    check(unsafe { libc::fstatfs(of.as_raw_fd(), &mut stat) }.into())?;
    Ok(stat.f_type as i64)
}
