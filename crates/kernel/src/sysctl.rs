//! sysctls under /proc/sys, of the calling thread's network namespace.

use std::fs;
use std::path::PathBuf;

use podwire_fs::FileError;
use podwire_ip::IpFamily;

use crate::error::Result;

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
