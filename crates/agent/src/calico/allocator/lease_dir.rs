//! Leases on the disk: what pods have, and what is to be given back.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use podwire_agent_ipc::addresses::Lease;
use podwire_agent_ipc::{pending, Owner};
use tracing::warn;

use crate::Error;

/// The folders of the leases, for one steward at a time.
pub(crate) struct Shelf {
    state: PathBuf,
    boot: String,
    /// Kept as long as the steward lives.
    _lock: File,
}

/// What is to be given back, and where that stands.
pub(crate) struct Note {
    path: PathBuf,
    pub(crate) lease: Lease,
}

impl Shelf {
    /// Opens the folders, and makes them if they are not there.
    pub(crate) fn open(state: &Path) -> Result<Shelf, Error> {
        let lock = pending::lock(state).map_err(Error::file("open", state))?.ok_or_else(|| {
            let why = "another agent keeps the addresses of this node".into();
            Error::File { doing: "take", path: state.to_owned(), why }
        })?;
        let boot = pending::boot_id().map_err(Error::file("read", "the boot's id"))?;
        Ok(Shelf { state: state.to_owned(), boot, _lock: lock })
    }

    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Where plugins leave notes.
    pub(crate) fn notes(&self) -> PathBuf {
        pending::released_dir(&self.state)
    }

    /// Writes down what an attachment has got, before it is told.
    pub(crate) fn write(&self, lease: &Lease) -> Result<(), Error> {
        let (folder, name) = (pending::leases_dir(&self.state), pending::file_name(&lease.owner));
        pending::write(&folder, &name, lease).map_err(Error::file("write lease", folder.join(name)))
    }

    /// The leases. Those of an earlier boot are over, since their pods are, and go to those that are to be given back.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>, Error> {
        let mut alive = Vec::new();
        for (path, lease) in pending::read_all::<Lease>(&pending::leases_dir(&self.state)) {
            match lease {
                Ok(lease) if lease.boot_id == self.boot => alive.push(lease),
                Ok(lease) => self.give_back(&lease.owner)?,
                Err(error) => warn!(file = %path.display(), %error, "a lease that cannot be read"),
            }
        }
        Ok(alive)
    }

    /// An attachment is gone: what it had is to be given back.
    pub(crate) fn give_back(&self, owner: &Owner) -> Result<(), Error> {
        podwire_agent_ipc::addresses::release(&self.state, owner)
            .map_err(Error::file("note a release in", self.notes()))
    }

    /// Whether an attachment has a lease.
    pub(crate) fn has(&self, owner: &Owner) -> bool {
        pending::leases_dir(&self.state).join(pending::file_name(owner)).exists()
    }

    /// What is to be given back.
    pub(crate) fn released(&self) -> Vec<Note> {
        let read = pending::read_all::<Lease>(&self.notes()).into_iter();
        read.filter_map(|(path, lease)| match lease {
            Ok(lease) => Some(Note { path, lease }),
            Err(error) => {
                warn!(file = %path.display(), %error, "a note that cannot be read");
                None
            }
        })
        .collect()
    }

    /// It was given back.
    pub(crate) fn forget(&self, note: &Note) {
        let _ = fs::remove_file(&note.path);
    }
}
