//! An index from attachments to addresses, so that DEL need not read ten thousand files.
//!
//! The files in a network's folder are named after addresses, and DEL looks up by attachment. The index is in
//! `/run/podwire/host-local/<device>-<inode of the folder>/`:
//! - `snapshot`: a line for each address that was assigned when the whole folder was last read, sorted by the hash of
//!   its attachment, all lines of equal length;
//! - a file for each attachment since then, named by that hash: the attachment, then its addresses;
//! - `token`: the folder's modification time after the last change by this plugin.
//!
//! Other plugins share the folder and do not maintain the index. But the kernel changes a folder's modification time
//! whenever a file is created or removed in it, and this plugin sets it after each of its changes to a value that no
//! other program sets. If it equals `token`, no other program changed the folder. If it differs, or a plugin died half
//! way, the folder is read again.
//!
//! All entries are hints. An entry may outlive its address; the address file is authoritative.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, FileTimes, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::entry::{AttachmentId, Entry};

/// The first word of a token. An index of another format is rebuilt.
const FORMAT: &str = "1";
/// Hexadecimal digits of an owner's hash, and of an address.
const HASH: usize = 32;
/// A line of the snapshot: hash, blank, address, line feed.
const LINE: usize = HASH + 1 + 32 + 1;

/// The index of one network's folder. The caller holds the folder's lock.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    token: File,
}

impl Index {
    /// The index of the folder with this metadata, created if it is missing. `None` if that fails: then every call
    /// reads the whole folder, with the same outcome.
    pub(super) fn open(root: &Path, folder: &Metadata) -> Option<Index> {
        let path = root.join(format!("{}-{}", folder.dev(), folder.ino()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let token = match options.open(path.join("token")) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(&path).ok()?;
                options.create(true).open(path.join("token")).ok()?
            }
            other => other.ok()?,
        };
        Some(Index { path, token })
    }

    /// Whether the folder is unchanged since [`Index::seal`].
    pub(super) fn is_fresh(&self, folder: &Metadata) -> bool {
        let mut buffer = [0; 64];
        let read = self.token.read_at(&mut buffer, 0).unwrap_or(0);
        buffer[..read] == *token(folder).as_bytes()
    }

    /// The addresses that the attachment may have, by its interface or by an entry without an interface.
    pub(super) fn find(&self, owner: &AttachmentId) -> io::Result<Vec<IpAddr>> {
        let mut ips = self.recorded(owner)?;
        let snapshot = Snapshot::open(&self.path.join("snapshot"))?;
        for content in [&owner.content(), &owner.container] {
            snapshot.find(&hash(content), &mut ips)?;
        }
        ips.sort_unstable();
        ips.dedup();
        Ok(ips)
    }

    fn recorded(&self, owner: &AttachmentId) -> io::Result<Vec<IpAddr>> {
        match fs::read_to_string(self.path.join(hash(&owner.content()))) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(text) => Ok(text.lines().skip(1).filter_map(|line| line.parse().ok()).collect()),
        }
    }

    /// Records all addresses of an attachment.
    pub(super) fn record(&self, owner: &AttachmentId, ips: &[IpAddr]) -> io::Result<()> {
        let mut text = format!("{} {}\n", owner.container, owner.ifname);
        for ip in ips {
            text.push_str(&format!("{ip}\n"));
        }
        let file = self.path.join(hash(&owner.content()));
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?
            .write_all(text.as_bytes())
    }

    /// Removes an attachment that has no address.
    pub(super) fn forget(&self, owner: &AttachmentId) {
        // If this fails, the outdated hint is detected when it is used.
        let _ = fs::remove_file(self.path.join(hash(&owner.content())));
    }

    /// Replaces the index by the entries of the folder. It is not valid before [`Index::seal`].
    pub(super) fn rebuild(&self, entries: &[Entry]) -> io::Result<()> {
        self.token.set_len(0)?;
        Snapshot::write(&self.path.join("snapshot"), entries)?;
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            if file.file_name().len() == HASH {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// Marks the index as valid for the folder's current state. If it fails, the next call reads the folder.
    pub(super) fn seal(&self, folder: &File) -> io::Result<()> {
        // Two seconds ago: a concurrent change cannot get the same time, not even on a filesystem with a resolution of
        // seconds. The nanoseconds distinguish two changes by this plugin.
        let noise = RandomState::new().build_hasher().finish() % 1_000_000_000;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time =
            UNIX_EPOCH + Duration::new(now.as_secs().saturating_sub(2), 0) + Duration::from_nanos(noise);
        folder.set_times(FileTimes::new().set_modified(time))?;
        // The filesystem may have rounded it.
        self.token.write_all_at(token(&folder.metadata()?).as_bytes(), 0)
    }
}

/// The token's text, always of the same length, so that it can be overwritten.
fn token(folder: &Metadata) -> String {
    format!("{FORMAT} {:020}.{:09}\n", folder.mtime(), folder.mtime_nsec())
}

/// Half of a SHA-256, in hexadecimal.
fn hash(content: &str) -> String {
    let digest = Sha256::digest(content);
    let half = digest.iter().take(HASH / 2).fold(0u128, |half, byte| half << 8 | u128::from(*byte));
    format!("{half:032x}")
}

/// The address as a number: IPv4 as mapped IPv6, which no file is named after.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The sorted list, with binary search.
struct Snapshot {
    file: File,
    lines: u64,
}

impl Snapshot {
    fn open(path: &Path) -> io::Result<Snapshot> {
        let file = File::open(path)?;
        let lines = file.metadata()?.len() / LINE as u64;
        Ok(Snapshot { file, lines })
    }

    fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
        let line = |entry: &Entry| Some((hash(&entry.holder.content()?), number(entry.ip)));
        let mut lines: Vec<(String, u128)> = entries.iter().filter_map(line).collect();
        lines.sort_unstable();
        let mut text = String::with_capacity(lines.len() * LINE);
        for (hash, ip) in lines {
            text.push_str(&format!("{hash} {ip:032x}\n"));
        }
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?
            .write_all(text.as_bytes())
    }

    fn find(&self, hash: &str, ips: &mut Vec<IpAddr>) -> io::Result<()> {
        let (mut low, mut high) = (0, self.lines);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.line(middle)?[..HASH] < *hash.as_bytes() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        for index in low..self.lines {
            let line = self.line(index)?;
            if line[..HASH] != *hash.as_bytes() {
                break;
            }
            let number = std::str::from_utf8(&line[HASH + 1..LINE - 1]).ok();
            let number = number.and_then(|text| u128::from_str_radix(text, 16).ok());
            let broken = || io::Error::new(ErrorKind::InvalidData, "not a line of a snapshot");
            ips.push(IpAddr::from(Ipv6Addr::from_bits(number.ok_or_else(broken)?)).to_canonical());
        }
        Ok(())
    }

    fn line(&self, index: u64) -> io::Result<[u8; LINE]> {
        let mut line = [0; LINE];
        self.file.read_exact_at(&mut line, index * LINE as u64)?;
        Ok(line)
    }
}
