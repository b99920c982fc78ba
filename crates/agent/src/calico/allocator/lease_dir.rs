//! The state directory: leases, and pending releases.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use podwire_agent_ipc::addresses::{self, Lease};
use podwire_agent_ipc::{pending, Owner};
use tracing::warn;

use super::error::Error;

/// The directory, locked for one allocator at a time.
pub(super) struct LeaseDir {
    state_dir: PathBuf,
    boot_id: String,
    /// Held until the allocator ends.
    _lock: File,
}

/// A lease that the store has to release, and its file.
pub(super) struct PendingRelease {
    path: PathBuf,
    pub(super) lease: Lease,
}

impl LeaseDir {
    /// Opens the directory, and creates it if it does not exist.
    pub(super) fn open(state_dir: &Path) -> Result<LeaseDir, Error> {
        let lock = pending::lock(state_dir).map_err(Error::file("open", state_dir))?.ok_or_else(|| {
            let why = "another agent holds the addresses of this node".into();
            Error::File { doing: "lock", path: state_dir.to_owned(), why }
        })?;
        let boot_id = pending::boot_id().map_err(Error::file("read", "/proc/sys/kernel/random/boot_id"))?;
        Ok(LeaseDir { state_dir: state_dir.to_owned(), boot_id, _lock: lock })
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The id of the directory, which is created with its first use.
    pub(super) fn id(&self) -> Result<String, Error> {
        let path = self.state_dir.join("id");
        let known = fs::read_to_string(&path).unwrap_or_default().trim_end().to_owned();
        if !known.is_empty() {
            return Ok(known);
        }
        let source = "/proc/sys/kernel/random/uuid";
        let id = fs::read_to_string(source).map_err(Error::file("read", source))?;
        podwire_fs::replace(&path, id.as_bytes(), 0o600).map_err(Error::file("write", path))?;
        Ok(id.trim_end().to_owned())
    }

    fn releases(&self) -> PathBuf {
        pending::released_dir(&self.state_dir)
    }

    /// Writes a lease. Call it before the plugin gets the addresses.
    pub(super) fn write(&self, lease: &Lease) -> Result<(), Error> {
        let (dir, name) = (pending::leases_dir(&self.state_dir), pending::file_name(&lease.owner));
        pending::write(&dir, &name, lease).map_err(Error::file("write lease", dir.join(name)))
    }

    /// Reads all leases. Those of an earlier boot become pending releases, because their pods are gone.
    pub(super) fn leases(&self) -> Result<Vec<Lease>, Error> {
        let mut current = Vec::new();
        for (path, lease) in pending::read_all::<Lease>(&pending::leases_dir(&self.state_dir)) {
            match lease {
                Ok(lease) if lease.boot_id == self.boot_id => current.push(lease),
                Ok(lease) => self.release(&lease.owner)?,
                Err(error) => warn!(file = %path.display(), %error, "lease cannot be read"),
            }
        }
        Ok(current)
    }

    /// Turns the lease of an attachment into a pending release.
    pub(super) fn release(&self, owner: &Owner) -> Result<(), Error> {
        addresses::release(&self.state_dir, owner)
            .map_err(Error::file("write a pending release to", self.releases()))
    }

    /// Whether an attachment has a lease.
    pub(super) fn has(&self, owner: &Owner) -> bool {
        pending::leases_dir(&self.state_dir).join(pending::file_name(owner)).exists()
    }

    /// All pending releases.
    pub(super) fn pending_releases(&self) -> Vec<PendingRelease> {
        let files = pending::read_all::<Lease>(&self.releases()).into_iter();
        files
            .filter_map(|(path, lease)| match lease {
                Ok(lease) => Some(PendingRelease { path, lease }),
                Err(error) => {
                    warn!(file = %path.display(), %error, "pending release cannot be read");
                    None
                }
            })
            .collect()
    }

    /// Deletes a pending release that the store has.
    pub(super) fn finish(&self, release: &PendingRelease) {
        let _ = fs::remove_file(&release.path);
    }
}
