//! Waits for changes of a directory of networks, or of their plugins.
//!
//! inotify reports files that are created, written, renamed from another directory, linked or removed. For a missing directory
//! the nearest existing parent is watched. What inotify does not report, such as a changed symbolic link in the path, is found
//! by reading every five seconds, as kubelet does.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use podwire_netlink::sys;

use crate::{Catalogue, Error, Result};

/// The interval of reads without an inotify event.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Watches the directories of a catalogue.
#[derive(Debug)]
pub struct Watch {
    events: File,
}

impl Watch {
    /// Watches the directories of `catalogue` and reads it again, so that no earlier change is missed.
    pub fn new(catalogue: &mut Catalogue<'_>) -> Result<Watch> {
        let failed = Error::file("watch", catalogue.folder().path());
        let watch = Watch { events: sys::open_inotify().map_err(failed)?.into() };
        watch.add_watches(catalogue);
        catalogue.refresh();
        Ok(watch)
    }

    /// Waits for an event, at most `timeout` and never longer than five seconds, and reads the networks again. Returns whether
    /// they changed. The answer of STATUS may change even if they did not.
    pub fn next(&mut self, catalogue: &mut Catalogue<'_>, timeout: Duration) -> Result<bool> {
        let failed = |error| Error::file("watch", catalogue.folder().path())(error);
        sys::readable(&[self.as_fd()], timeout.min(MAX_WAIT)).map_err(failed)?;
        self.drain().map_err(failed)?;
        // In this order: a change in between causes another event.
        self.add_watches(catalogue);
        Ok(catalogue.refresh())
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.events.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A directory that was created again needs a new watch; adding an existing watch changes nothing.
    fn add_watches(&self, catalogue: &Catalogue<'_>) {
        for folder in catalogue.watched_dirs() {
            // Without a watch there is still the read every five seconds.
            let _ = ancestors(&folder).any(|place| sys::watch_directory(self.as_fd(), place).is_ok());
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn ancestors(folder: &Path) -> impl Iterator<Item = &Path> {
    folder.ancestors().map(|place| if place.as_os_str().is_empty() { Path::new(".") } else { place })
}
