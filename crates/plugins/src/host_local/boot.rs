//! Releases addresses after a reboot: every address that was assigned before the boot belongs to a container that no
//! longer runs.
//!
//! The address files survive a reboot, and a runtime that lost its state sends no DEL for them. So the network's
//! directory has a file `podwire.boot` with the boot id of its last use. If that differs from the current boot id, the
//! first call of this boot removes the address files that were written before the boot, and records the new boot id.
//! docs/decisions/0014-reboot.md explains why this is safe and when it is not done.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::entry::address;

/// The name of the file: `boot <id> on <hostname>`. Go's host-local compares the content of every file with a container
/// id. A container id has no blanks, so this file never matches.
const FILE: &str = "podwire.boot";

/// The current boot of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    id: String,
    /// The hostname. Several machines may share a directory, for example over NFS.
    machine: String,
    /// The time of the boot, by the current clock.
    time: i64,
}

impl Boot {
    /// Reads the current boot from `/proc`. `None` if that fails: then no address is released.
    pub(super) fn current(proc: &Path) -> Option<Boot> {
        let read = |path: &str| Some(fs::read_to_string(proc.join(path)).ok()?.trim().to_owned());
        let word = |text: String| (!text.is_empty() && !text.contains(char::is_whitespace)).then_some(text);
        let stat = read("stat")?;
        let time = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        let id = word(read("sys/kernel/random/boot_id")?)?;
        Some(Boot { id, machine: word(read("sys/kernel/hostname")?)?, time })
    }

    /// Removes the address files of earlier boots if the directory was last used in an earlier boot of this machine,
    /// and records this boot. The caller holds the directory's lock. After an error, the next CNI call must try again.
    pub(super) fn release_entries_of_earlier_boots(&self, directory: &Path) -> io::Result<()> {
        let recorded = fs::read_to_string(directory.join(FILE)).unwrap_or_default();
        let mut words = recorded.split_whitespace();
        let (id, machine) = (words.nth(1), words.nth(1));
        if (id, machine) == (Some(&*self.id), Some(&*self.machine)) {
            return Ok(());
        }
        if id.is_some_and(|id| id != self.id) && machine == Some(&*self.machine) {
            self.remove_earlier_files(directory)?;
        }
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(directory.join(FILE))?;
        file.write_all(format!("boot {} on {}\n", self.id, self.machine).as_bytes())
    }

    fn remove_earlier_files(&self, directory: &Path) -> io::Result<()> {
        for file in fs::read_dir(directory)? {
            let file = file?;
            let is_earlier = || Ok::<_, io::Error>(file.metadata()?.mtime() < self.time);
            if address(&file.file_name()).is_some() && file.file_type()?.is_file() && is_earlier()? {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_is_read_from_proc() {
        let boot = Boot::current(Path::new("/proc")).unwrap();
        assert_eq!(boot.id.len(), 36, "{boot:?}");
        assert!(boot.time > 1_000_000_000, "{boot:?}");
        assert_eq!(Boot::current(Path::new("/nowhere")), None);
    }
}
