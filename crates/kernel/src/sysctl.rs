//! The knobs under /proc/sys of the thread's network namespace.

use std::fs;
use std::path::PathBuf;

use podwire_fs::FileError;
use podwire_ip::IpFamily;

use crate::Result;

fn file(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}

/// The value of `key`, written as a path: `net/ipv4/ip_forward`. The final newline is cut off.
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

/// Sets `key` to `value` unless it has it: reading is cheaper, and works where /proc/sys is read-only.
pub fn ensure(key: &str, value: &str) -> Result<()> {
    match read(key) {
        Ok(found) if found == value => Ok(()),
        _ => write(key, value),
    }
}

/// As [`ensure`], for a knob that a kernel without the feature does not have.
pub fn ensure_if_there(key: &str, value: &str) -> Result<()> {
    match ensure(key, value) {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// Sets `key` of a link that was just made: nobody has set it before. A kernel without the feature does not have it.
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
