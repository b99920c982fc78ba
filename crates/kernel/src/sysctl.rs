//! sysctls under /proc/sys, of the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

use podwire_fs::FileError;
use podwire_ip::IpFamily;

use crate::error::{Error, Result};

fn file(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}

/// The value of `key`, which is a path such as `net/ipv4/ip_forward`, without the final newline.
pub fn read(key: &str) -> Result<String> {
    let path = file(key);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_string()),
        Err(source) => Err(FileError { doing: "read sysctl", path, source }.into()),
    }
}

/// Sets `key` to `value`.
pub fn write(key: &str, value: &str) -> Result<()> {
    let path = file(key);
    fs::write(&path, value).map_err(|source| FileError { doing: "write sysctl", path, source }.into())
}

/// Sets `key` to `value` unless it has that value: reading is cheaper, and works if /proc/sys is read-only.
pub fn ensure(key: &str, value: &str) -> Result<()> {
    match read(key) {
        Ok(found) if found == value => Ok(()),
        _ => write(key, value),
    }
}

/// As [`ensure`], but succeeds if the kernel lacks the sysctl.
pub fn ensure_if_there(key: &str, value: &str) -> Result<()> {
    match ensure(key, value) {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// As [`ensure_if_there`], but does nothing where /proc/sys is read-only, as in a container. Returns whether the value
/// changed. For settings that are only a second line of defence.
pub fn ensure_if_writable(key: &str, value: &str) -> Result<bool> {
    match read(key) {
        Ok(found) if found == value => return Ok(false),
        Err(error) if error.is_gone() => return Ok(false),
        _ => {}
    }
    match write(key, value) {
        Err(Error::File(error)) if is_read_only(&error.source) => Ok(false),
        other => other.map(|()| true),
    }
}

/// EROFS is the answer of a read-only mount, EACCES that of AppArmor and SELinux.
fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// As [`ensure`]. In a container, where /proc/sys is read-only, it writes to the node's directory, if that is mounted at
/// `/host/proc/sys`.
pub fn ensure_on_node(key: &str, value: &str) -> Result<()> {
    match ensure(key, value) {
        Err(Error::File(error)) if is_read_only(&error.source) => {
            let path = PathBuf::from("/host/proc/sys").join(key);
            fs::write(&path, value).map_err(|source| FileError { doing: "write sysctl", path, source }.into())
        }
        other => other,
    }
}

/// As [`write`], but succeeds if the kernel lacks the sysctl. For new links, whose value need not be read first.
pub fn set_if_there(key: &str, value: &str) -> Result<()> {
    match write(key, value) {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// Enables forwarding for these families.
pub fn enable_forwarding(families: &[IpFamily]) -> Result<()> {
    families.iter().try_for_each(|family| match family {
        IpFamily::V4 => ensure("net/ipv4/ip_forward", "1"),
        IpFamily::V6 => ensure("net/ipv6/conf/all/forwarding", "1"),
    })
}
