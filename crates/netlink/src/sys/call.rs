//! Helpers for calling libc: errors from return values, retries after signals, paths as C strings.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The result of a call that returns a negative number on failure and sets errno.
pub(super) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Repeats a call that a signal interrupted (EINTR).
pub(super) fn uninterrupted(mut call: impl FnMut() -> libc::c_long) -> io::Result<libc::c_long> {
    loop {
        match check(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

/// A path as a NUL-terminated string.
pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::other("the path contains a NUL byte"))
}
