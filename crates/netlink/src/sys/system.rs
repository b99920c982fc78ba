//! Random bytes, the user id, the limit of open files and the boot clock.

use std::io;
use std::time::Duration;

use super::call::uninterrupted;

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length describe `bytes`, which is borrowed mutably.
    uninterrupted(|| unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) as libc::c_long })?;
    Ok(bytes)
}

/// The effective user id.
pub fn user_id() -> u32 {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The number of files that this process may have open (the soft limit of `RLIMIT_NOFILE`).
pub fn max_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to `limit`, borrowed mutably.
    uninterrupted(|| unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) as libc::c_long })?;
    Ok(limit.rlim_cur)
}

/// The time since boot, including suspend.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to `time`, borrowed mutably; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}
