//! Waiting for a file to change, without looking at it again and again.
//!
//! The folder is watched, not the file: editors and rollouts replace files by renaming, and a watch on a file goes with
//! the old one.

use std::ffi::OsString;
use std::path::Path;

use futures::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchMask};

use crate::{Error, Result};

/// A folder whose changes are told.
pub(crate) struct Folder {
    events: EventStream<[u8; 4096]>,
}

impl Folder {
    /// Listens to a folder.
    pub(crate) fn watch(path: &Path, mask: WatchMask) -> Result<Folder> {
        let listen = || {
            let inotify = Inotify::init()?;
            inotify.watches().add(path, mask | WatchMask::ONLYDIR)?;
            inotify.into_event_stream([0; 4096])
        };
        Ok(Folder { events: listen().map_err(Error::file("watch", path))? })
    }

    /// Waits until something happens to a file that `concerns` says yes to. Everything that has happened until now
    /// counts as one. `false` if the folder itself is gone, and with it the watch.
    pub(crate) async fn change(&mut self, concerns: impl Fn(&OsString) -> bool) -> bool {
        let mut concerned = false;
        let mut next = self.events.next().await;
        loop {
            match next {
                Some(Ok(event)) => {
                    use inotify::EventMask as Mask;
                    if event.mask.intersects(Mask::IGNORED | Mask::UNMOUNT | Mask::MOVE_SELF) {
                        return false;
                    }
                    // Too much happened to tell it all: whatever it was, look.
                    concerned |= event.mask.contains(Mask::Q_OVERFLOW)
                        || event.name.is_some_and(|name| concerns(&name));
                }
                Some(Err(_)) | None => return false,
            }
            next = match self.events.next().now_or_never() {
                Some(more) => more,
                None if concerned => return true,
                None => self.events.next().await,
            };
        }
    }
}
