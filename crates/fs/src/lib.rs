//! What every crate with files needs: atomic replacement, private directories, and I/O errors that name their path.

#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
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
/// for their owner only (0700), whatever the umask allows. An existing directory stays as it is.
pub fn create_state_dir(path: &Path) -> io::Result<()> {
    // Directories above it belong to the system, and have the usual mode.
    let own = path.ancestors().find(|dir| dir.file_name().is_some_and(|name| name == "podwire"));
    if let Some(parent) = own.unwrap_or(path).parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        fs::set_permissions(dir.join("lib/podwire"), fs::Permissions::from_mode(0o755)).unwrap();
        create_state_dir(&dir.join("lib/podwire/dhcp")).unwrap();
        assert_eq!(mode("lib/podwire"), 0o755, "an existing directory is changed");
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
