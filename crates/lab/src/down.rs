//! Ending a lab: whatever of it is left goes.

use crate::home::Home;
use crate::{Error, Lab, Result};

impl Lab {
    /// Ends the lab of this name, however much of it is there.
    pub fn remove(name: &str) -> Result<()> {
        let home = Home::find(name)?.lock()?;
        match home.read() {
            Ok(Some(state)) => Lab { home, state }.down(),
            // Whoever was to make it died before anything lived.
            Ok(None) => home.remove(),
            Err(error) => Err(error),
        }
    }

    /// Ends it: everything on a machine ends with the process that holds the machine, and all namespaces with their last
    /// process.
    pub fn down(self) -> Result<()> {
        let Lab { home, state } = self;
        let end = |(name, process): (&String, &podwire_sandbox::Process)| {
            let ended = process.end().map_err(Error::file("end the process of", name));
            let stuck = || Error::file("end the process of", name)(std::io::Error::other("it does not end"));
            ended.and_then(|ended| if ended { Ok(()) } else { Err(stuck()) })
        };
        let ended: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = state.machines.iter().map(|one| scope.spawn(move || end(one))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(()))).collect()
        });
        // All were asked to end; the first that does not is told, and the folder stays for the next try.
        ended.into_iter().collect::<Result<Vec<()>>>()?;
        home.remove()
    }
}
