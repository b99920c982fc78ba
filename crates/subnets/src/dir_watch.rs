//! Waits for changes of a file with inotify.
//!
//! It watches the directory, not the file: editors and rollouts replace files by renaming, and a watch on a file stays
//! with the old one.

use std::ffi::OsString;
use std::path::Path;

use futures::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchMask};

use podwire_fs::FileError;

use crate::error::Result;

/// A watched directory.
pub(crate) struct DirWatch {
    events: EventStream<[u8; 4096]>,
}

impl DirWatch {
    /// Starts watching a directory.
    pub(crate) fn start(path: &Path, mask: WatchMask) -> Result<DirWatch> {
        let start = || {
            let inotify = Inotify::init()?;
            inotify.watches().add(path, mask | WatchMask::ONLYDIR)?;
            inotify.into_event_stream([0; 4096])
        };
        Ok(DirWatch { events: start().map_err(FileError::at("watch", path))? })
    }

    /// Waits for a change of a file that `is_relevant` accepts. All changes until now count as one. `false` if the
    /// directory itself is gone, and with it the watch.
    pub(crate) async fn changed(&mut self, is_relevant: impl Fn(&OsString) -> bool) -> bool {
        let mut has_changed = false;
        let mut next = self.events.next().await;
        loop {
            match next {
                Some(Ok(event)) => {
                    use inotify::EventMask as Mask;
                    if event.mask.intersects(Mask::IGNORED | Mask::UNMOUNT | Mask::MOVE_SELF) {
                        return false;
                    }
                    // After an overflow of the queue, any file may have changed.
                    has_changed |= event.mask.contains(Mask::Q_OVERFLOW)
                        || event.name.is_some_and(|name| is_relevant(&name));
                }
                Some(Err(_)) | None => return false,
            }
            next = match self.events.next().now_or_never() {
                Some(more) => more,
                None if has_changed => return true,
                None => self.events.next().await,
            };
        }
    }
}
