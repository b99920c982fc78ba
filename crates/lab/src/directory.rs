//! The directory of a lab: its state file, the logs of its machines, and `shared`, which all its machines see. A process
//! that changes the lab holds a lock on the directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use podwire_fs::FileError;

use crate::state::State;
use crate::{Error, Result};

/// The directory of all labs. A reboot removes it, like the labs.
const LABS: &str = "/run/podwire/lab";
const STATE: &str = "lab.json";

/// The names of all labs.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(LABS).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The directory of a lab.
#[derive(Debug)]
pub(crate) struct LabDirectory {
    name: String,
    path: PathBuf,
    /// A kernel lock on the directory. It ends with the process, however that ends.
    lock: Option<File>,
}

impl LabDirectory {
    /// Creates the directory if it is missing, and locks it.
    pub fn ensure(name: &str) -> Result<LabDirectory> {
        let directory = LabDirectory { name: name.into(), path: Path::new(LABS).join(name), lock: None };
        let shared = directory.shared();
        let create = || DirBuilder::new().recursive(true).mode(0o700).create(&shared);
        // Removing the last other lab removes the directory of all labs, perhaps at this moment.
        let created = create().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => create(),
            _ => Err(error),
        });
        created.map_err(FileError::at("create directory", &shared))?;
        directory.lock()
    }

    /// The directory of an existing lab.
    pub fn find(name: &str) -> Result<LabDirectory> {
        let directory = LabDirectory { name: name.into(), path: Path::new(LABS).join(name), lock: None };
        if name.is_empty() || name.contains(['/', '.']) || !directory.path.is_dir() {
            return Err(directory.unknown());
        }
        Ok(directory)
    }

    pub fn lock(self) -> Result<LabDirectory> {
        let lock = File::open(&self.path).map_err(FileError::at("open", &self.path))?;
        lock.lock().map_err(FileError::at("lock", &self.path))?;
        // Another process may have removed it while this one waited for the lock.
        if !self.path.is_dir() {
            return Err(self.unknown());
        }
        Ok(LabDirectory { lock: Some(lock), ..self })
    }

    pub fn unknown(&self) -> Error {
        Error::Unknown { name: self.name.clone(), others: names() }
    }

    /// The directory that all machines of the lab see.
    pub fn shared(&self) -> PathBuf {
        self.path.join("shared")
    }

    pub fn log(&self, machine: &str) -> PathBuf {
        self.path.join(format!("{machine}.log"))
    }

    /// The last three lines of a machine's log.
    pub fn log_tail(&self, machine: &str) -> String {
        let text = fs::read_to_string(self.log(machine)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }

    pub fn read(&self) -> Result<Option<State>> {
        let path = self.path.join(STATE);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::at("read", &path)(error).into()),
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(state) => Ok(Some(state)),
                Err(error) => Err(Error::State { path, why: error.to_string() }),
            },
        }
    }

    pub fn write(&self, state: &State) -> Result<()> {
        let path = self.path.join(STATE);
        let written = serde_json::to_vec_pretty(state).map_err(io::Error::from);
        let written = written.and_then(|bytes| podwire_fs::replace(&path, &bytes, 0o600));
        Ok(written.map_err(FileError::at("write", &path))?)
    }

    /// Removes the directory.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(FileError::at("remove", &self.path))?;
        drop(self.lock);
        // Fails while other labs or pods exist.
        if fs::remove_dir(LABS).is_ok() {
            let _ = Path::new(LABS).parent().map(fs::remove_dir);
        }
        Ok(())
    }
}
