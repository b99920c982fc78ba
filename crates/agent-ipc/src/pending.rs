//! A daemon's state directory: its leases, and the pending releases that plugins record while it is not running.
//!
//! A lease is one file in `leases`. A plugin that cannot reach the daemon moves the file to `released` (rename(2), so it is
//! atomic). The daemon finds it there at its start or through inotify, releases the address and removes the file. Without a
//! lease there is nothing to move: a repeated DEL records nothing.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

use crate::{Owner, ValidAttachment};

/// The directory of the leases.
pub fn leases_dir(state: &Path) -> PathBuf {
    state.join("leases")
}

/// The directory of the pending releases.
pub fn released_dir(state: &Path) -> PathBuf {
    state.join("released")
}

/// The name of an owner's file. Network and container names together may exceed the limit of a file name, so it is a hash; the
/// file itself contains the owner.
pub fn file_name(owner: &Owner) -> String {
    let mut name = String::with_capacity(37);
    for byte in &Sha512::digest(owner.to_string().as_bytes())[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name + ".json"
}

/// The part that every kind of file has.
#[derive(Deserialize)]
struct Owned {
    owner: Owner,
}

/// Records that the lease of `owner` is to be released, if it has one. A pending release of an earlier attachment with the
/// same owner stays.
pub fn release(state: &Path, owner: &Owner) -> io::Result<()> {
    let (name, dir) = (file_name(owner), released_dir(state));
    let (mut file, mut earlier) = (dir.join(&name), 0);
    while file.exists() {
        earlier += 1;
        file = dir.join(format!("{earlier}-{name}"));
    }
    match fs::rename(leases_dir(state).join(&name), file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Records it for all leases of `network` except those of valid attachments.
pub fn release_all_except(state: &Path, network: &str, valid: &[ValidAttachment]) -> io::Result<()> {
    let files = match fs::read_dir(leases_dir(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for file in files {
        let Ok(text) = fs::read_to_string(file?.path()) else { continue };
        let Ok(Owned { owner }) = serde_json::from_str::<Owned>(&text) else { continue };
        let is_owner =
            |one: &ValidAttachment| one.container_id == owner.container && one.ifname == owner.ifname;
        if owner.network == network && !valid.iter().any(is_owner) {
            release(state, &owner)?;
        }
    }
    Ok(())
}

/// Creates a daemon's state directory and locks it until the returned file is closed. `None` if another daemon has the lock.
pub fn lock(state: &Path) -> io::Result<Option<File>> {
    for dir in [leases_dir(state), released_dir(state)] {
        podwire_fs::create_state_dir(&dir)?;
    }
    let path = state.join("lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    Ok(lock.try_lock().is_ok().then_some(lock))
}

/// The kernel's id of the current boot. Leases of another boot are stale: their pods are gone.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// Writes or replaces a file in one step; only root can read it. It is not flushed to disk: after a power loss the pods are
/// gone too.
pub fn write(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    podwire_fs::replace(&dir.join(name), &serde_json::to_vec_pretty(content)?, 0o600)
}

/// Whether the file exists and can be decoded.
pub fn is_readable<T: DeserializeOwned>(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| serde_json::from_slice::<T>(&text).is_ok())
}

/// All files of a directory, each decoded. A file that cannot be read is skipped.
pub fn read_all<T: DeserializeOwned>(dir: &Path) -> Vec<(PathBuf, serde_json::Result<T>)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.filter(|path| path.extension().is_some_and(|end| end == "json"));
    files
        .filter_map(|path| {
            let text = fs::read(&path).ok()?;
            Some((path, serde_json::from_slice(&text)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn owner(network: &str, container: &str) -> Owner {
        Owner::new(network, container, "eth0")
    }

    fn files(dir: PathBuf) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut all: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_release_moves_the_lease_and_does_nothing_without_one() {
        let state = std::env::temp_dir().join(format!("podwire-pending-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state);
        release(&state, &owner("lan", "a")).unwrap();
        release_all_except(&state, "lan", &[]).unwrap();
        assert!(!state.exists());
        fs::create_dir_all(leases_dir(&state)).unwrap();
        fs::create_dir_all(released_dir(&state)).unwrap();
        for one in [owner("lan", "a"), owner("lan", "b"), owner("lan", "c"), owner("wan", "a")] {
            let text = format!(r#"{{"owner": {}, "more": 1}}"#, serde_json::to_string(&one).unwrap());
            fs::write(leases_dir(&state).join(file_name(&one)), text).unwrap();
        }
        fs::write(leases_dir(&state).join("half.json"), "{").unwrap();
        release(&state, &owner("lan", "a")).unwrap();
        release(&state, &owner("lan", "a")).unwrap();
        assert_eq!(files(released_dir(&state)), [file_name(&owner("lan", "a"))]);
        // The same container is attached and detached again before the daemon reads the file: its next lease is another.
        fs::write(leases_dir(&state).join(file_name(&owner("lan", "a"))), "{}").unwrap();
        release(&state, &owner("lan", "a")).unwrap();
        assert_eq!(files(released_dir(&state)).len(), 2);
        let valid = ValidAttachment { container_id: "b".into(), ifname: "eth0".into() };
        release_all_except(&state, "lan", &[valid]).unwrap();
        let mut kept = vec![file_name(&owner("lan", "b")), file_name(&owner("wan", "a")), "half.json".into()];
        kept.sort();
        assert_eq!(files(leases_dir(&state)), kept);
        fs::remove_dir_all(&state).unwrap();
    }

    /// The kubelet creates the volume of a DaemonSet with mode 0755.
    #[test]
    fn the_directory_of_a_daemon_is_private() {
        let dir = std::env::temp_dir().join(format!("podwire-private-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let state = dir.join("lib/podwire/addresses");
        fs::create_dir_all(&state).unwrap();
        for path in [&dir.join("lib/podwire"), &state] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let _lock = lock(&state).unwrap().unwrap();
        for path in [dir.join("lib/podwire"), state.clone(), leases_dir(&state), released_dir(&state)] {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{}", path.display());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
