//! Hearing of whatever happens in the folder of the runtime's networks: another list that was put before ours, or ours that
//! was taken away. Whoever owns the kernel's side is called, compares, and the announcement is made anew.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use podwire_netlink::sys;
use tracing::warn;

/// Nothing is missed without it.
const LONG: Duration = Duration::from_secs(3600);

/// Rings the bell at each change of the folder that `list` is in, from a thread of its own, until nobody hears the bell.
pub(crate) fn watch(list: &Path, bell: File) {
    let folder = list.parent().unwrap_or(Path::new("/")).to_owned();
    let thread = std::thread::Builder::new().name("rivals".into());
    let started = thread.spawn(move || {
        // All is compared every while in any case.
        if let Err(error) = listen(&folder, bell) {
            warn!(folder = %folder.display(), %error, "changes of this folder are not heard of at once");
        }
    });
    drop(started);
}

fn listen(folder: &Path, mut bell: File) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut notices = File::from(sys::open_inotify()?);
    sys::watch_directory(notices.as_fd(), folder)?;
    loop {
        if sys::readable(&[notices.as_fd()], LONG)? != [true] {
            continue;
        }
        while notices.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
        if bell.write_all(b"!").is_err() {
            return Ok(());
        }
    }
}
