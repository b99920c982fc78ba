//! Leases on disk, so that a restarted daemon renews them in time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use podwire_agent_ipc::dhcp::LeaseOptions;
use podwire_agent_ipc::{pending, Owner};
use podwire_fs::FileError;
use serde::{Deserialize, Serialize};

use crate::grant::Lease;
use crate::{log, Error, Result};

/// The stored state of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The attachment.
    pub owner: Owner,
    /// The path of the pod's namespace.
    pub netns: PathBuf,
    /// The identity of that namespace.
    pub namespace: [u64; 2],
    /// The MAC address that the server knows.
    pub mac: [u8; 6],
    /// The options of the config.
    pub options: LeaseOptions,
    /// The boot during which it was written: times count from the boot.
    pub boot_id: String,
    /// The leases.
    pub leases: Vec<Lease>,
}

/// The directory of the leases, locked by one daemon.
#[derive(Debug)]
pub struct LeaseDir {
    state: PathBuf,
    boot_id: String,
    /// Held while the daemon runs.
    _lock: File,
}

impl LeaseDir {
    /// Opens and locks the directory; creates it if it is missing.
    pub fn open(state: &Path, boot_id: &str) -> Result<LeaseDir> {
        let lock = pending::lock(state)
            .map_err(FileError::at("open", state))?
            .ok_or_else(|| Error::Other(format!("another DHCP daemon uses the leases in {state:?}")))?;
        Ok(LeaseDir { state: state.to_owned(), boot_id: boot_id.to_owned(), _lock: lock })
    }

    /// The directory in which plugins record pending releases.
    pub fn released_dir(&self) -> PathBuf {
        pending::released_dir(&self.state)
    }

    /// Writes a lease, replacing an older one.
    pub fn write(&self, record: &Record) -> Result<()> {
        let (dir, name) = (pending::leases_dir(&self.state), pending::file_name(&record.owner));
        Ok(pending::write(&dir, &name, record).map_err(FileError::at("write", dir.join(name)))?)
    }

    /// Removes a lease.
    pub fn remove(&self, owner: &Owner) {
        let _ = fs::remove_file(pending::leases_dir(&self.state).join(pending::file_name(owner)));
    }

    /// The leases of this boot. Removes those of another boot and those with a pending release.
    pub fn leases(&self) -> Vec<Record> {
        pending::read_all::<Record>(&pending::leases_dir(&self.state))
            .into_iter()
            .filter_map(|(path, record)| {
                let is_released =
                    path.file_name().is_some_and(|name| self.released_dir().join(name).exists());
                match record {
                    Ok(record) if record.boot_id == self.boot_id && !is_released => Some(record),
                    Ok(record) => {
                        log::attachment(
                            "forgotten",
                            &record.owner,
                            "reason=\"of another boot, or released\"",
                        );
                        let _ = fs::remove_file(path);
                        None
                    }
                    Err(error) => {
                        log::daemon("unreadable", format!("file={path:?} error=\"{error}\""));
                        None
                    }
                }
            })
            .collect()
    }

    /// The pending releases. Each is returned once.
    pub fn take_released(&self) -> Vec<Record> {
        let take = |(path, record): (PathBuf, serde_json::Result<Record>)| {
            let _ = fs::remove_file(path);
            record.ok()
        };
        pending::read_all(&self.released_dir()).into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::{Grant, Server, Times};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    const BOOT: &str = "this boot";

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
            options: LeaseOptions {
                requested: vec![1, 3],
                route_priority: Some(50),
                ..LeaseOptions::default()
            },
            boot_id: boot.into(),
            leases: vec![Lease { grant, since: Duration::new(12, 345) }],
        }
    }

    fn in_dir(name: &str, test: impl FnOnce(&Path, LeaseDir)) {
        let state = std::env::temp_dir().join(format!("podwire-leases-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state);
        test(&state, LeaseDir::open(&state, BOOT).unwrap());
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn leases_are_stored_for_root_only() {
        in_dir("write", |state, lease_dir| {
            let one = record("c1", BOOT);
            lease_dir.write(&record("c1", "replaced")).unwrap();
            lease_dir.write(&one).unwrap();
            assert_eq!(lease_dir.leases(), std::slice::from_ref(&one));
            let file = pending::leases_dir(state).join(pending::file_name(&one.owner));
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
            lease_dir.remove(&one.owner);
            assert_eq!(lease_dir.leases(), []);
        });
    }

    #[test]
    fn leases_of_another_boot_and_unreadable_ones_are_skipped() {
        in_dir("boot", |state, lease_dir| {
            lease_dir.write(&record("old", "another boot")).unwrap();
            fs::write(pending::leases_dir(state).join("half.json"), "{\"owner\":").unwrap();
            fs::write(pending::leases_dir(state).join("torn.new"), "{").unwrap();
            assert_eq!(lease_dir.leases(), []);
            assert!(!pending::leases_dir(state).join(pending::file_name(&owner("old"))).exists());
        });
    }

    #[test]
    fn a_pending_release_is_returned_once_and_hides_the_lease() {
        in_dir("notes", |state, lease_dir| {
            let one = record("c1", BOOT);
            lease_dir.write(&one).unwrap();
            pending::release(state, &one.owner).unwrap();
            // A daemon that was busy may have written it again.
            lease_dir.write(&one).unwrap();
            assert_eq!(lease_dir.leases(), []);
            assert_eq!(lease_dir.take_released(), [one]);
            assert_eq!(lease_dir.take_released(), []);
        });
    }

    #[test]
    fn two_daemons_do_not_share_leases() {
        in_dir("lock", |state, _dir| {
            assert!(LeaseDir::open(state, BOOT).unwrap_err().to_string().contains("another DHCP daemon"));
        });
    }
}
