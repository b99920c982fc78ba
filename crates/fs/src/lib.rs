//! What every crate with files needs: atomic replacement, private directories, and I/O errors that name their path.

#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{error, fmt};

/// An I/O error with the action and the path that it belongs to.
#[derive(Debug)]
pub struct FileError {
    /// The action, as an infinitive: `read`, `write`, `bind`.
    pub doing: &'static str,
    /// The file, directory or socket.
    pub path: PathBuf,
    /// The kernel's answer.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: names the action and the path.
    pub fn at(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> FileError {
        let path = path.into();
        move |source| FileError { doing, path, source }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.doing, self.path.display(), self.source)
    }
}

impl error::Error for FileError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Replaces a file in one step, so that a reader sees the old or the new content and never a part of it: writes
/// `.NAME.PID.new` beside it and renames that. The file is not flushed to disk.
///
/// A leftover temporary file of a killed process is removed first: it may have wider permissions than `mode`.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let temporary = path.with_file_name(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(mode).open(&temporary);
    let written =
        file.and_then(|mut file| file.write_all(content)).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Creates a directory of Podwire's state if it is missing. It and its parents, from the last directory `podwire` on, are
/// for their owner only (0700).
///
/// In `lib/podwire` and `run/podwire` that holds for existing directories of this user too: the kubelet creates the
/// volumes of a DaemonSet with mode 0755. Another existing directory stays as its administrator made it.
pub fn create_state_dir(path: &Path) -> io::Result<()> {
    // Directories above it belong to the system, and have the usual mode.
    let own = path.ancestors().find(|dir| dir.file_name().is_some_and(|name| name == "podwire"));
    let first = own.unwrap_or(path);
    if let Some(parent) = first.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let system = first.parent().and_then(Path::file_name);
    if own.is_some() && system.is_some_and(|name| name == "lib" || name == "run") {
        path.ancestors().take_while(|dir| dir.starts_with(first)).try_for_each(make_private)?;
    }
    Ok(())
}

/// Gives a directory of this user the mode 0700.
fn make_private(dir: &Path) -> io::Result<()> {
    let changed = || {
        let found = fs::metadata(dir)?;
        let is_private = found.permissions().mode() & 0o7777 == 0o700;
        // The owner of the process's directory in /proc is the effective user (proc(5)).
        if is_private || found.uid() != fs::metadata("/proc/self")?.uid() {
            return Ok(());
        }
        fs::set_permissions(dir, Permissions::from_mode(0o700))
    };
    match changed() {
        // Another process has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_is_private_and_its_system_parents_are_not() {
        let dir = std::env::temp_dir().join(format!("podwire-fs-state-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        create_state_dir(&dir.join("lib/podwire/dhcp")).unwrap();
        create_state_dir(&dir.join("elsewhere/state")).unwrap();
        let mode = |path: &str| fs::metadata(dir.join(path)).unwrap().permissions().mode() & 0o777;
        for private in ["lib/podwire", "lib/podwire/dhcp", "elsewhere/state"] {
            assert_eq!(mode(private), 0o700, "{private}");
        }
        for usual in ["lib", "elsewhere"] {
            assert_ne!(mode(usual) & 0o055, 0, "{usual} is private");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_existing_state_directory_of_this_user_becomes_private() {
        let dir = std::env::temp_dir().join(format!("podwire-fs-existing-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let of_another = dir.join("lib/podwire/of-another");
        for path in ["lib/podwire/dhcp", "run/podwire", "home/podwire", "elsewhere/state"] {
            fs::create_dir_all(dir.join(path)).unwrap();
        }
        fs::create_dir_all(&of_another).unwrap();
        for path in ["lib", "lib/podwire", "lib/podwire/dhcp", "lib/podwire/of-another", "run/podwire"] {
            fs::set_permissions(dir.join(path), Permissions::from_mode(0o755)).unwrap();
        }
        for path in ["home/podwire", "elsewhere/state"] {
            fs::set_permissions(dir.join(path), Permissions::from_mode(0o750)).unwrap();
        }
        // Only root can give a directory away.
        let is_given_away = std::os::unix::fs::chown(&of_another, Some(12345), None).is_ok();
        for path in
            ["lib/podwire/dhcp", "lib/podwire/of-another", "run/podwire", "home/podwire", "elsewhere/state"]
        {
            create_state_dir(&dir.join(path)).unwrap();
        }
        let mode = |path: &str| fs::metadata(dir.join(path)).unwrap().permissions().mode() & 0o7777;
        for (path, wanted) in [
            ("lib", 0o755),
            ("lib/podwire", 0o700),
            ("lib/podwire/dhcp", 0o700),
            ("lib/podwire/of-another", if is_given_away { 0o755 } else { 0o700 }),
            ("run/podwire", 0o700),
            ("home/podwire", 0o750),
            ("elsewhere/state", 0o750),
        ] {
            assert_eq!(mode(path), wanted, "{path}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn replace_leaves_the_new_content_and_no_temporary_file() {
        let dir = std::env::temp_dir().join(format!("podwire-fs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("state");
        replace(&path, b"old", 0o600).unwrap();
        replace(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_failed_replace_keeps_the_old_content() {
        let dir = std::env::temp_dir().join(format!("podwire-fs-failed-{}", std::process::id()));
        fs::create_dir_all(dir.join("target/inside")).unwrap();
        // A directory that is not empty cannot be replaced by a file.
        let error = replace(&dir.join("target"), b"new", 0o600).unwrap_err();
        let error = FileError::at("write", dir.join("target"))(error);
        assert!(error.to_string().starts_with("write /"), "{error}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
