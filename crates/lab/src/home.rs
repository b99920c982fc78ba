//! A lab's folder: what is known of the lab is in it, whoever changes the lab holds it locked, and below `shared` is what all
//! its machines see.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::state::State;
use crate::{Error, Lab, Result, FOLDER};

const STATE: &str = "lab.json";

/// A lab's folder.
#[derive(Debug)]
pub(crate) struct Home {
    name: String,
    path: PathBuf,
    /// Of the kernel's, on the folder itself: it ends with its holder, by whatever end.
    lock: Option<File>,
}

impl Home {
    /// The folder, made if it is missing, and locked.
    pub fn ensure(name: &str) -> Result<Home> {
        let home = Home { name: name.into(), path: Path::new(FOLDER).join(name), lock: None };
        let shared = home.shared();
        let make = || DirBuilder::new().recursive(true).mode(0o700).create(&shared);
        // The end of another lab takes the folder of all labs away when it is empty, perhaps just now.
        let made = make().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => make(),
            _ => Err(error),
        });
        made.map_err(Error::file("make folder", &shared))?;
        home.lock()
    }

    /// The folder of a lab that is there.
    pub fn find(name: &str) -> Result<Home> {
        let home = Home { name: name.into(), path: Path::new(FOLDER).join(name), lock: None };
        match !name.is_empty() && !name.contains(['/', '.']) && home.path.is_dir() {
            true => Ok(home),
            false => Err(home.unknown()),
        }
    }

    pub fn lock(self) -> Result<Home> {
        let lock = File::open(&self.path).map_err(Error::file("open", &self.path))?;
        lock.lock().map_err(Error::file("lock", &self.path))?;
        // It may have been removed while this waited.
        match self.path.is_dir() {
            true => Ok(Home { lock: Some(lock), ..self }),
            false => Err(self.unknown()),
        }
    }

    pub fn unknown(&self) -> Error {
        Error::Unknown { name: self.name.clone(), others: Lab::names() }
    }

    /// What all machines of the lab see.
    pub fn shared(&self) -> PathBuf {
        self.path.join("shared")
    }

    pub fn log(&self, machine: &str) -> PathBuf {
        self.path.join(format!("{machine}.log"))
    }

    /// The end of what a machine's programs said.
    pub fn last_words(&self, machine: &str) -> String {
        let text = fs::read_to_string(self.log(machine)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }

    pub fn read(&self) -> Result<Option<State>> {
        let path = self.path.join(STATE);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", &path)(error)),
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(state) => Ok(Some(state)),
                Err(error) => Err(Error::State { path, why: error.to_string() }),
            },
        }
    }

    /// Nobody ever sees half of it.
    pub fn write(&self, state: &State) -> Result<()> {
        let (draft, path) = (self.path.join(".lab.json.new"), self.path.join(STATE));
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(&serde_json::to_vec_pretty(state)?)?;
            fs::rename(&draft, &path)
        };
        write().map_err(Error::file("write", &path))
    }

    /// The lab is no more.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(Error::file("remove", &self.path))?;
        drop(self.lock);
        // Others may have labs or pods.
        if fs::remove_dir(FOLDER).is_ok() {
            let _ = Path::new(FOLDER).parent().map(fs::remove_dir);
        }
        Ok(())
    }
}
