//! Waiting for a change of a folder of networks, or of the plugins that they name.
//!
//! The kernel tells of every change (inotify): files that are made, written, renamed in from another folder, linked,
//! removed. A folder that is not there is awaited in the nearest one that is. What the kernel does not tell of, such as a
//! symbolic link somewhere on the way that leads elsewhere now, is found by looking every five seconds, as kubelet does.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use podwire_netlink::sys;

use crate::{Catalogue, Error, Result};

/// How long a change may stay unnoticed of which the kernel does not tell.
const LONGEST: Duration = Duration::from_secs(5);

/// Watches over folders.
#[derive(Debug)]
pub struct Watch {
    notices: File,
}

impl Watch {
    /// Watches whatever `catalogue` depends on, and reads it again: nothing that happened before is missed.
    pub fn over(catalogue: &mut Catalogue<'_>) -> Result<Watch> {
        let failed = Error::file("watch", catalogue.folder().path());
        let watch = Watch { notices: sys::open_inotify().map_err(failed)?.into() };
        watch.aim(catalogue);
        catalogue.refresh();
        Ok(watch)
    }

    /// Waits for a notice, at most `patience` and never longer than five seconds, and reads the networks again. Returns
    /// whether they changed. What STATUS says may be another even if they did not.
    pub fn next(&mut self, catalogue: &mut Catalogue<'_>, patience: Duration) -> Result<bool> {
        let failed = |error| Error::file("watch", catalogue.folder().path())(error);
        sys::readable(&[self.as_fd()], patience.min(LONGEST)).map_err(failed)?;
        self.drain().map_err(failed)?;
        // In this order: what comes between the two is told of by a notice.
        self.aim(catalogue);
        Ok(catalogue.refresh())
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut notices = [0; 4096];
        loop {
            match self.notices.read(&mut notices) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A folder that was made anew is another one, and one that is watched already stays so.
    fn aim(&self, catalogue: &Catalogue<'_>) {
        for folder in catalogue.places() {
            // Where none can be had there is still the look every five seconds.
            let _ = ancestors(&folder).any(|place| sys::watch_directory(self.as_fd(), place).is_ok());
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

fn ancestors(folder: &Path) -> impl Iterator<Item = &Path> {
    folder.ancestors().map(|place| if place.as_os_str().is_empty() { Path::new(".") } else { place })
}
