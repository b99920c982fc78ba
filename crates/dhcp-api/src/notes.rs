//! The daemon's leases on the disk, and the notes that a plugin leaves when the daemon is not there.
//!
//! A lease is one file in `leases`. A plugin that should give a lease back and does not reach the daemon moves that file
//! to `released`, at once and wholly; the daemon finds it there, when it starts or by the kernel's notice, gives the
//! address back to the DHCP server and removes the note. Where there is no lease there is nothing to move: a DEL that
//! comes twice leaves nothing.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha512};

use crate::Owner;

/// Where both folders are.
pub const STATE: &str = "/var/lib/podwire/dhcp";

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

/// Notes that the lease of `owner` is to be given back, if it has one.
pub fn leave(state: &Path, owner: &Owner) -> io::Result<()> {
    let name = file_name(owner);
    match fs::rename(leases(state).join(&name), released(state).join(&name)) {
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
        leave_all_but(&state, "lan", &[("b".into(), "eth0".into())]).unwrap();
        let mut kept = vec![file_name(&owner("lan", "b")), file_name(&owner("wan", "a")), "half.json".into()];
        kept.sort();
        assert_eq!(files(leases(&state)), kept);
        fs::remove_dir_all(&state).unwrap();
    }
}
