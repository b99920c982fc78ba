//! Watches the runtime's directory of network configs: a conflist may be added before ours, and ours may be deleted.
//! Each change wakes the route reconciler, whose report makes the daemon write the conflist again.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use podwire_netlink::sys;
use podwire_reconcile::Waker;
use tracing::warn;

/// The timeout of one wait. A timeout has no effect.
const POLL: Duration = Duration::from_secs(3600);

/// Wakes `waker` at each change of the conflist's directory, from a new thread.
pub(crate) fn start(conflist: &Path, waker: Waker) {
    let dir = conflist.parent().unwrap_or(Path::new("/")).to_owned();
    let thread = std::thread::Builder::new().name("conflist-watch".into());
    let started = thread.spawn(move || {
        // A resync finds the changes too, only later.
        if let Err(error) = watch(&dir, &waker) {
            warn!(dir = %dir.display(), %error, "directory cannot be watched; changes are found at the next resync");
        }
    });
    drop(started);
}

fn watch(dir: &Path, waker: &Waker) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut events = File::from(sys::open_inotify()?);
    sys::watch_directory(events.as_fd(), dir)?;
    loop {
        if sys::readable(&[events.as_fd()], POLL)? == [true] {
            while events.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
            waker.wake();
        }
    }
}
