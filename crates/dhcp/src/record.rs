//! Leases on the disk: whoever starts the daemon again finds them, and renews at the right time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use podwire_agent_ipc::dhcp::LeaseOptions;
use podwire_agent_ipc::{pending, Owner};
use serde::{Deserialize, Serialize};

use crate::grant::Held;
use crate::{journal, Error, Result};

/// What has to be known of an attachment to go on with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose it is.
    pub owner: Owner,
    /// Where the pod's namespace is.
    pub netns: PathBuf,
    /// Which it is.
    pub namespace: [u64; 2],
    /// The hardware address under which the server knows the interface.
    pub mac: [u8; 6],
    /// What the config says.
    pub wish: LeaseOptions,
    /// In which life of the machine it was written: times are counted from its beginning.
    pub boot: String,
    /// The leases.
    pub held: Vec<Held>,
}

/// The folders of the leases, for one daemon at a time.
#[derive(Debug)]
pub struct Shelf {
    state: PathBuf,
    boot: String,
    /// Kept as long as the daemon lives.
    _lock: File,
}

impl Shelf {
    /// Opens the folders, and makes them if they are not there.
    pub fn open(state: &Path) -> Result<Shelf> {
        let lock = pending::lock(state)
            .map_err(Error::file("open", state))?
            .ok_or_else(|| Error::Other(format!("another DHCP daemon keeps the leases in {state:?}")))?;
        let boot = pending::boot_id().map_err(Error::file("read", "the boot's id"))?;
        Ok(Shelf { state: state.to_owned(), boot, _lock: lock })
    }

    /// The name of this life of the machine.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// The folder in which plugins leave notes.
    pub fn notes(&self) -> PathBuf {
        pending::released_dir(&self.state)
    }

    /// Writes a lease, over an older one.
    pub fn write(&self, record: &Record) -> Result<()> {
        let (folder, name) = (pending::leases_dir(&self.state), pending::file_name(&record.owner));
        pending::write(&folder, &name, record).map_err(Error::file("write lease", folder.join(name)))
    }

    /// Forgets a lease.
    pub fn remove(&self, owner: &Owner) {
        let _ = fs::remove_file(pending::leases_dir(&self.state).join(pending::file_name(owner)));
    }

    /// The leases of this boot. Others, and those of an owner of whom there is a note, are removed.
    pub fn leases(&self) -> Vec<Record> {
        let folder = pending::leases_dir(&self.state);
        pending::read_all::<Record>(&folder)
            .into_iter()
            .filter_map(|(path, record)| {
                let noted = path.file_name().is_some_and(|name| self.notes().join(name).exists());
                match record {
                    Ok(record) if record.boot == self.boot && !noted => Some(record),
                    Ok(record) => {
                        journal::note(
                            "forgotten",
                            &record.owner,
                            "reason=\"of an earlier boot, or released\"",
                        );
                        let _ = fs::remove_file(path);
                        None
                    }
                    Err(error) => {
                        journal::say("unreadable", format!("file={path:?} error=\"{error}\""));
                        None
                    }
                }
            })
            .collect()
    }

    /// The leases that plugins noted to be given back. Each is returned once.
    pub fn take_notes(&self) -> Vec<Record> {
        let take = |(path, record): (PathBuf, serde_json::Result<Record>)| {
            let _ = fs::remove_file(path);
            record.ok()
        };
        pending::read_all(&self.notes()).into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::{Grant, Server, Times};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn owner(container: &str) -> Owner {
        Owner { network: "lan".into(), container: container.into(), ifname: "eth0".into() }
    }

    fn record(container: &str, boot: &str) -> Record {
        let grant = Grant {
            address: "10.0.0.9/24".parse().unwrap(),
            gateway: Some([10, 0, 0, 1].into()),
            routes: Vec::new(),
            nameservers: Vec::new(),
            domain: String::new(),
            search: Vec::new(),
            mtu: Some(1400),
            server: Server { id: vec![10, 0, 0, 1], mac: Some([2; 6]) },
            times: Times { renew: 60, rebind: 100, end: 120 },
        };
        Record {
            owner: owner(container),
            netns: "/run/netns/blue".into(),
            namespace: [4, 4026531840],
            mac: [2, 0, 0, 0, 0, 7],
            wish: LeaseOptions { requested: vec![1, 3], route_priority: Some(50), ..LeaseOptions::default() },
            boot: boot.into(),
            held: vec![Held { grant, since: Duration::new(12, 345) }],
        }
    }

    fn in_folder(name: &str, test: impl FnOnce(&Path, Shelf)) {
        let state = std::env::temp_dir().join(format!("podwire-shelf-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state);
        test(&state, Shelf::open(&state).unwrap());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn leases_are_read_as_they_were_written_and_by_root_only() {
        in_folder("write", |state, shelf| {
            let one = record("c1", shelf.boot());
            shelf.write(&record("c1", "replaced")).unwrap();
            shelf.write(&one).unwrap();
            assert_eq!(shelf.leases(), std::slice::from_ref(&one));
            let file = pending::leases_dir(state).join(pending::file_name(&one.owner));
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
            shelf.remove(&one.owner);
            assert_eq!(shelf.leases(), []);
        });
    }

    #[test]
    fn what_is_of_another_boot_or_broken_is_not_taken_up() {
        in_folder("boot", |state, shelf| {
            shelf.write(&record("old", "another boot")).unwrap();
            fs::write(pending::leases_dir(state).join("half.json"), "{\"owner\":").unwrap();
            fs::write(pending::leases_dir(state).join("torn.new"), "{").unwrap();
            assert_eq!(shelf.leases(), []);
            assert!(!pending::leases_dir(state).join(pending::file_name(&owner("old"))).exists());
        });
    }

    #[test]
    fn a_note_counts_once_and_more_than_a_lease() {
        in_folder("notes", |state, shelf| {
            let one = record("c1", shelf.boot());
            shelf.write(&one).unwrap();
            pending::release(state, &one.owner).unwrap();
            // A daemon that was busy may have written it again.
            shelf.write(&one).unwrap();
            assert_eq!(shelf.leases(), []);
            assert_eq!(shelf.take_notes(), [one]);
            assert_eq!(shelf.take_notes(), []);
        });
    }

    #[test]
    fn two_daemons_do_not_share_leases() {
        in_folder("lock", |state, _shelf| {
            assert!(Shelf::open(state).unwrap_err().to_string().contains("another DHCP daemon"));
        });
    }
}
