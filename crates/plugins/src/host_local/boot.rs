//! Releases addresses after a reboot: every address that was assigned before the boot belongs to a container that no
//! longer runs.
//!
//! The address files survive a reboot, and a runtime that lost its state sends no DEL for them. So the folder has a
//! file `podwire.boot` with the boot id of its last use. If that differs from the current boot, files that were written
//! before this boot are removed, once. docs/decisions/0014-reboot.md explains why this is safe and when it is not done.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::entry::address;

/// The file that holds the boot. Its text has blanks, so the Go plugin, which compares the content of every file with
/// container ids, never matches it.
const FILE: &str = "podwire.boot";

/// The current boot of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    id: String,
    /// The hostname. Machines may share a folder over a network.
    machine: String,
    /// The time of the boot, by the current clock.
    time: i64,
}

impl Boot {
    /// Reads the boot from `/proc`. `None` if that fails: then nothing is removed.
    pub(super) fn current(proc: &Path) -> Option<Boot> {
        let read = |path: &str| Some(fs::read_to_string(proc.join(path)).ok()?.trim().to_owned());
        let word = |text: String| (!text.is_empty() && !text.contains(char::is_whitespace)).then_some(text);
        let stat = read("stat")?;
        let time = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        let id = word(read("sys/kernel/random/boot_id")?)?;
        Some(Boot { id, machine: word(read("sys/kernel/hostname")?)?, time })
    }

    /// Removes address files of earlier boots if `folder` was last used in an earlier boot of this machine, and records
    /// this boot. The caller holds the folder's lock.
    pub(super) fn release_older(&self, folder: &Path) -> io::Result<()> {
        let recorded = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
        let mut words = recorded.split_whitespace();
        let (id, machine) = (words.nth(1), words.nth(1));
        if (id, machine) == (Some(&*self.id), Some(&*self.machine)) {
            return Ok(());
        }
        if id.is_some_and(|id| id != self.id) && machine == Some(&*self.machine) {
            self.remove_older(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(FILE))?;
        file.write_all(format!("boot {} on {}\n", self.id, self.machine).as_bytes())
    }

    fn remove_older(&self, folder: &Path) -> io::Result<()> {
        for file in fs::read_dir(folder)? {
            let file = file?;
            let is_older = || Ok::<_, io::Error>(file.metadata()?.mtime() < self.time);
            if address(&file.file_name()).is_some() && file.file_type()?.is_file() && is_older()? {
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
