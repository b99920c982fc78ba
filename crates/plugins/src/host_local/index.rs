//! An index from attachments to addresses, so that ADD and DEL need not read thousands of files.
//!
//! The files in a network's directory are named after addresses, but ADD and DEL look up by attachment. The index of a
//! directory is in `/run/podwire/host-local/<device>-<inode>/`, with the device and inode numbers of the directory:
//! - `snapshot`: a line for each address that was assigned at the last scan of the directory, sorted by the hash of its
//!   attachment. All lines have the same length, for a binary search;
//! - `<hash>`: a file for each attachment that got addresses since then, with the attachment and its addresses;
//! - `token`: the modification time of the network's directory after the last change by this plugin.
//!
//! The index is up to date if the directory still has the modification time in `token`. Go's host-local may share the
//! directory and does not maintain the index. But the kernel changes the modification time of a directory whenever a
//! file is created or removed in it. After each of its changes, this plugin sets the time to a value that no other
//! program sets, and writes it to `token`. A different time means that another program changed the directory, or that
//! this plugin died before it wrote `token`. Then the next call scans the directory and rebuilds the index.
//!
//! All entries of the index are hints. An entry may be outdated; the address file is authoritative.

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
/// The number of hexadecimal digits of an attachment's hash.
const HASH: usize = 32;
/// The length of a line of the snapshot: hash, blank, address as 32 hexadecimal digits, line feed.
const LINE: usize = HASH + 1 + 32 + 1;

/// The index of one network's directory. The caller holds the directory's lock.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    token: File,
}

impl Index {
    /// The index of the directory with this metadata, created if it is missing. `None` if that fails: then every call
    /// scans the directory, with the same outcome.
    pub(super) fn open(root: &Path, directory: &Metadata) -> Option<Index> {
        let path = root.join(format!("{}-{}", directory.dev(), directory.ino()));
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

    /// Whether no file was created or removed in the directory since [`Index::mark_valid`].
    pub(super) fn is_up_to_date(&self, directory: &Metadata) -> bool {
        let mut buffer = [0; 64];
        let read = self.token.read_at(&mut buffer, 0).unwrap_or(0);
        buffer[..read] == *token(directory).as_bytes()
    }

    /// The addresses that the attachment may have, including those of entries that name only its container.
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

    /// Removes the file of an attachment that has no address any more.
    pub(super) fn remove(&self, owner: &AttachmentId) {
        // If this fails, the hint is outdated, and the address file shows that.
        let _ = fs::remove_file(self.path.join(hash(&owner.content())));
    }

    /// Makes the index invalid until [`Index::mark_valid`].
    pub(super) fn invalidate(&self) -> io::Result<()> {
        self.token.set_len(0)
    }

    /// Replaces the index with these entries, all of the directory. It is not valid before [`Index::mark_valid`].
    pub(super) fn rebuild(&self, entries: &[Entry]) -> io::Result<()> {
        self.invalidate()?;
        Snapshot::write(&self.path.join("snapshot"), entries)?;
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            if file.file_name().len() == HASH {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// Marks the index as valid for the directory's current content. If it fails, the next call scans.
    pub(super) fn mark_valid(&self, directory: &File) -> io::Result<()> {
        // Two seconds ago: the kernel cannot set the same time for a later change by another program, even on a
        // filesystem that stores whole seconds. The random nanoseconds distinguish two changes by this plugin.
        let noise = RandomState::new().build_hasher().finish() % 1_000_000_000;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time =
            UNIX_EPOCH + Duration::new(now.as_secs().saturating_sub(2), 0) + Duration::from_nanos(noise);
        directory.set_times(FileTimes::new().set_modified(time))?;
        // Read it back: the filesystem may have rounded it.
        self.token.write_all_at(token(&directory.metadata()?).as_bytes(), 0)
    }
}

/// The content of `token`. It always has the same length, so that it can be overwritten in place.
fn token(directory: &Metadata) -> String {
    format!("{FORMAT} {:020}.{:09}\n", directory.mtime(), directory.mtime_nsec())
}

/// The first 128 bits of a SHA-256, in hexadecimal.
fn hash(content: &str) -> String {
    let digest = Sha256::digest(content);
    let half = digest.iter().take(HASH / 2).fold(0u128, |half, byte| half << 8 | u128::from(*byte));
    format!("{half:032x}")
}

/// The address as a number: an IPv4 address as an IPv4-mapped IPv6 address. Go prints mapped addresses as IPv4, so no
/// address file has the name of one.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The file `snapshot`.
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
