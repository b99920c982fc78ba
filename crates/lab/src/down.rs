//! Removing a lab, also one that was only partly created.

use podwire_fs::FileError;

use crate::directory::LabDirectory;
use crate::{Lab, Result};

impl Lab {
    /// Removes the lab of this name, however much of it exists.
    pub fn remove(name: &str) -> Result<()> {
        let directory = LabDirectory::find(name)?.lock()?;
        match directory.read()? {
            Some(state) => Lab { directory, state }.down(),
            // Its creation was interrupted before any process started.
            None => directory.remove(),
        }
    }

    /// Removes the lab: everything on a machine ends with the process that holds the machine, and a namespace ends with
    /// its last process.
    pub fn down(self) -> Result<()> {
        let Lab { directory, state } = self;
        let end = |(name, process): (&String, &podwire_sandbox::Process)| {
            let failed = FileError::at("end the process of", name);
            match process.end() {
                Ok(true) => Ok(()),
                Ok(false) => Err(failed(std::io::Error::other("it does not end"))),
                Err(error) => Err(failed(error)),
            }
        };
        let ended: Vec<Result<(), FileError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = state.machines.iter().map(|one| scope.spawn(move || end(one))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(()))).collect()
        });
        // Every process got its signal. After a failure the directory stays for another attempt.
        ended.into_iter().collect::<Result<Vec<()>, FileError>>()?;
        directory.remove()
    }
}
