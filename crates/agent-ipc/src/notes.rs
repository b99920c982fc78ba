//! A daemon's leases on the disk, and the notes that a plugin leaves when the daemon is not there.
//!
//! A lease is one file in `leases` of the daemon's state. A plugin that should give a lease back and does not reach the daemon moves
//! that file to `released`, at once and wholly; the daemon finds it there, when it starts or by the kernel's notice, gives the
//! address back to where it is from and removes the note. Where there is no lease there is nothing to move: a DEL that
//! comes twice leaves nothing.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

use crate::Owner;

/// The folder of leases that hold.
pub fn leases(state: &Path) -> PathBuf {
    state.join("leases")
}

/// The folder of leases that are to be given back.
pub fn released(state: &Path) -> PathBuf {
    state.join("released")
}

/// The name of an owner's file. Names of networks and containers may be too long together for a file's, so it is a hash;
/// who it is stands in the file.
pub fn file_name(owner: &Owner) -> String {
    let mut name = String::with_capacity(37);
    for byte in &Sha512::digest(owner.to_string().as_bytes())[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name + ".json"
}

/// Whose a file is: what every version of its content has.
#[derive(Deserialize)]
struct Whose {
    owner: Owner,
}

/// Notes that the lease of `owner` is to be given back, if it has one. A note of an earlier life of the same owner stays.
pub fn leave(state: &Path, owner: &Owner) -> io::Result<()> {
    let (name, folder) = (file_name(owner), released(state));
    let (mut note, mut earlier) = (folder.join(&name), 0);
    while note.exists() {
        earlier += 1;
        note = folder.join(format!("{earlier}-{name}"));
    }
    match fs::rename(leases(state).join(&name), note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Notes it for all leases of `network` but those of `valid` (container, interface).
pub fn leave_all_but(state: &Path, network: &str, valid: &[(String, String)]) -> io::Result<()> {
    let files = match fs::read_dir(leases(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for file in files {
        let Ok(text) = fs::read_to_string(file?.path()) else { continue };
        let Ok(Whose { owner }) = serde_json::from_str::<Whose>(&text) else { continue };
        let is_it =
            |(container, ifname): &(String, String)| *container == owner.container && *ifname == owner.ifname;
        if owner.network == network && !valid.iter().any(is_it) {
            leave(state, &owner)?;
        }
    }
    Ok(())
}

/// Makes the folders of a daemon's state, and takes them for one daemon at a time: for as long as the file is held. None if another
/// daemon has them.
pub fn occupy(state: &Path) -> io::Result<Option<File>> {
    for folder in [leases(state), released(state)] {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let path = state.join("lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    Ok(lock.try_lock().is_ok().then_some(lock))
}

/// The kernel's name for this life of the machine.
pub fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// Writes a file of a folder, over an older one. It appears whole, by renaming, and only root reads it. It is not flushed to the
/// disk: a machine that lost its power has lost its pods too.
pub fn write(folder: &Path, name: &str, what: &impl Serialize) -> io::Result<()> {
    let path = folder.join(name);
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec_pretty(what)?)?;
    fs::rename(&new, &path)
}

/// Whether a file is there and says something.
pub fn is_readable<T: DeserializeOwned>(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| serde_json::from_slice::<T>(&text).is_ok())
}

/// All that is in a folder, as far as it can be read.
pub fn read_all<T: DeserializeOwned>(folder: &Path) -> Vec<(PathBuf, serde_json::Result<T>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
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
    use super::*;

    fn owner(network: &str, container: &str) -> Owner {
        Owner { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    fn files(folder: PathBuf) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut all: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_note_is_the_lease_moved_and_there_is_none_without_a_lease() {
        let state = std::env::temp_dir().join(format!("podwire-notes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state);
        leave(&state, &owner("lan", "a")).unwrap();
        leave_all_but(&state, "lan", &[]).unwrap();
        assert!(!state.exists());
        fs::create_dir_all(leases(&state)).unwrap();
        fs::create_dir_all(released(&state)).unwrap();
        for one in [owner("lan", "a"), owner("lan", "b"), owner("lan", "c"), owner("wan", "a")] {
            let text = format!(r#"{{"owner": {}, "more": 1}}"#, serde_json::to_string(&one).unwrap());
            fs::write(leases(&state).join(file_name(&one)), text).unwrap();
        }
        fs::write(leases(&state).join("half.json"), "{").unwrap();
        leave(&state, &owner("lan", "a")).unwrap();
        leave(&state, &owner("lan", "a")).unwrap();
        assert_eq!(files(released(&state)), [file_name(&owner("lan", "a"))]);
        // The same container comes and goes again, before anybody has read the note: its next lease is another.
        fs::write(leases(&state).join(file_name(&owner("lan", "a"))), "{}").unwrap();
        leave(&state, &owner("lan", "a")).unwrap();
        assert_eq!(files(released(&state)).len(), 2);
        leave_all_but(&state, "lan", &[("b".into(), "eth0".into())]).unwrap();
        let mut kept = vec![file_name(&owner("lan", "b")), file_name(&owner("wan", "a")), "half.json".into()];
        kept.sort();
        assert_eq!(files(leases(&state)), kept);
        fs::remove_dir_all(&state).unwrap();
    }
}
