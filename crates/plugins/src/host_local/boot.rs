//! After a reboot: every address that was given before it belongs to a container that is dead.
//!
//! The pods' interfaces died with the kernel; the files are on the disk, and without a DEL, which nobody sends for a
//! container that a new runtime does not remember, they would stay for ever. So the folder has a note of the boot in
//! which it was last used, `podwire.boot`. When that is not this boot, what was written before this boot is swept,
//! once. Why it is safe, and where it is not done, is told in docs/decisions/0014-reboot.md.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::entry::address;

/// The file with the note. Its text has a blank in it, and so is no container's id for the Go plugin, which compares the
/// content of every file with those.
const NOTE: &str = "podwire.boot";

/// The boot that the node is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    id: String,
    /// A folder may be shared by machines over a network, each with boots of its own.
    machine: String,
    /// When it began, by the clock as it is now.
    began: i64,
}

impl Boot {
    /// What the kernel says in `/proc`. None if it says nothing: then nothing is swept.
    pub(super) fn current(proc: &Path) -> Option<Boot> {
        let read = |path: &str| Some(fs::read_to_string(proc.join(path)).ok()?.trim().to_owned());
        let word = |text: String| (!text.is_empty() && !text.contains(char::is_whitespace)).then_some(text);
        let stat = read("stat")?;
        let began = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        let id = word(read("sys/kernel/random/boot_id")?)?;
        Some(Boot { id, machine: word(read("sys/kernel/hostname")?)?, began })
    }

    /// Sweeps `folder`, if it was last used in an earlier boot of this machine, and notes this one. The caller holds the
    /// folder's lock.
    pub(super) fn sweep(&self, folder: &Path) -> io::Result<()> {
        let noted = fs::read_to_string(folder.join(NOTE)).unwrap_or_default();
        let mut words = noted.split_whitespace();
        let (id, machine) = (words.nth(1), words.nth(1));
        if (id, machine) == (Some(&*self.id), Some(&*self.machine)) {
            return Ok(());
        }
        if id.is_some_and(|id| id != self.id) && machine == Some(&*self.machine) {
            self.remove_older(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut note = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(NOTE))?;
        note.write_all(format!("boot {} on {}\n", self.id, self.machine).as_bytes())
    }

    fn remove_older(&self, folder: &Path) -> io::Result<()> {
        for file in fs::read_dir(folder)? {
            let file = file?;
            let older = || Ok::<_, io::Error>(file.metadata()?.mtime() < self.began);
            if address(&file.file_name()).is_some() && file.file_type()?.is_file() && older()? {
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
    fn a_kernel_tells_its_boot() {
        let boot = Boot::current(Path::new("/proc")).unwrap();
        assert_eq!(boot.id.len(), 36, "{boot:?}");
        assert!(boot.began > 1_000_000_000, "{boot:?}");
        assert_eq!(Boot::current(Path::new("/nowhere")), None);
    }
}
