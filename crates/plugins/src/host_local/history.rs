//! The history of addresses, for `cooldown` and `sticky`: which pod had an address, and when it was released.
//!
//! One file in the network's folder, `podwire.history`, gets a line for each event: `10.1.0.5 given shop/web-0/eth0`
//! and `10.1.0.5 released 1760000000`. The last lines of an address count. When most lines are outdated, the file is
//! rewritten without them. If the file is lost, only `cooldown` and `sticky` are affected: the address files define
//! what is assigned.
//!
//! The Go plugin reads every file of the folder and compares its content with container ids, which have no blanks.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const FILE: &str = "podwire.history";
const UNFINISHED: &str = "podwire.history.new";
/// How many outdated lines to allow before the file is rewritten.
const SLACK: usize = 64;
/// The length of a short line in bytes, to estimate the number of lines.
const SHORT_LINE: usize = 24;
/// The maximum number of addresses to keep: an IPv6 range never wraps around, and pods get new names all the time.
const MAX_ADDRESSES: usize = 16_384;

/// The history of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Past {
    /// The pod's name, as a range of the text.
    pod: Option<Range<usize>>,
    released: Option<u64>,
    /// The offset of its last line: larger ones are newer.
    line: usize,
}

/// The history of a network's addresses. The caller holds the folder's lock.
#[derive(Debug)]
pub(super) struct History {
    folder: PathBuf,
    /// The file's text, followed by new lines.
    text: String,
    /// The offset of the first new line.
    saved: usize,
    lines: usize,
    past: HashMap<IpAddr, Past>,
}

impl History {
    /// Reads the file. A missing file counts as empty; invalid lines are skipped.
    pub(super) fn read(folder: &Path) -> io::Result<History> {
        let bytes = match fs::read(folder.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let text = String::from_utf8(bytes).unwrap_or_default();
        // Allocated at once: growing it in steps would take longer than reading the lines.
        let past = HashMap::with_capacity(text.len() / SHORT_LINE);
        let mut history = History { folder: folder.to_owned(), saved: text.len(), text, lines: 0, past };
        history.parse_from(0);
        Ok(history)
    }

    /// Parses the lines of the text from this offset on.
    fn parse_from(&mut self, from: usize) {
        let mut line = from;
        for text in self.text[from..].split_inclusive('\n') {
            let mut words = text.trim_end().split(' ');
            if let (Some(Ok(ip)), Some(event), Some(word), None) =
                (words.next().map(str::parse::<IpAddr>), words.next(), words.next(), words.next())
            {
                let past = self.past.entry(ip).or_default();
                past.line = line;
                let word_at = line + text.trim_end().len() - word.len();
                match event {
                    "given" if word == "-" => (past.pod, past.released) = (None, None),
                    "given" => (past.pod, past.released) = (Some(word_at..word_at + word.len()), None),
                    "released" => past.released = word.parse().ok(),
                    _ => {}
                }
            }
            self.lines += 1;
            line += text.len();
        }
    }

    fn add_line(&mut self, line: &str) {
        // The file may be truncated in the middle of a line.
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        let from = self.text.len();
        self.text.push_str(line);
        self.text.push('\n');
        self.parse_from(from);
    }

    fn pod(&self, past: &Past) -> Option<&str> {
        self.text.get(past.pod.clone()?)
    }

    /// The addresses that `pod` had, the latest first.
    pub(super) fn addresses_of(&self, pod: &str) -> Vec<IpAddr> {
        let had = self.past.iter().filter(|(_, past)| self.pod(past) == Some(pod));
        let mut had: Vec<(usize, IpAddr)> = had.map(|(ip, past)| (past.line, *ip)).collect();
        had.sort_unstable();
        had.into_iter().rev().map(|(_, ip)| ip).collect()
    }

    /// Whether another pod than `pod` was the last to have `ip`.
    pub(super) fn belonged_to_another(&self, ip: IpAddr, pod: Option<&str>) -> bool {
        self.past.get(&ip).and_then(|past| self.pod(past)).is_some_and(|last| Some(last) != pod)
    }

    /// Whether `ip` was released less than `cooldown` seconds before `now`. A time in the future is ignored: the clock
    /// was wrong, then or now.
    pub(super) fn is_cooling(&self, ip: IpAddr, now: u64, cooldown: u64) -> bool {
        let released = self.past.get(&ip).and_then(|past| past.released);
        released.is_some_and(|released| released <= now && now - released < cooldown)
    }

    /// The addresses that were released less than `cooldown` seconds before `now`.
    pub(super) fn cooling(&self, now: u64, cooldown: u64) -> impl Iterator<Item = IpAddr> + '_ {
        self.past.keys().copied().filter(move |ip| self.is_cooling(*ip, now, cooldown))
    }

    /// Records that `pod` has `ip` now instead of `others`.
    pub(super) fn assign(&mut self, ip: IpAddr, pod: &str, others: &[IpAddr]) {
        let is_known = |past: &Past| self.pod(past) == Some(pod) && past.released.is_none();
        if !self.past.get(&ip).is_some_and(is_known) {
            self.add_line(&format!("{ip} given {pod}"));
        }
        others
            .iter()
            .filter(|other| **other != ip)
            .for_each(|other| self.add_line(&format!("{other} given -")));
    }

    /// Saves new lines. `is_cooling` tells by the time of release whether an address without a pod must be kept.
    pub(super) fn save(mut self, is_cooling: impl Fn(Option<u64>) -> bool) -> io::Result<()> {
        let is_current = |past: &Past| past.pod.is_some() || is_cooling(past.released);
        let count = self.past.values().filter(|past| is_current(past)).count();
        if self.lines > 2 * count + SLACK || count > MAX_ADDRESSES + SLACK {
            self.past.retain(|_, past| is_current(past));
            return self.rewrite();
        }
        append(&self.folder, &self.text[self.saved..])
    }

    fn rewrite(self) -> io::Result<()> {
        let mut all: Vec<(&IpAddr, &Past)> = self.past.iter().collect();
        all.sort_unstable_by_key(|(_, past)| past.line);
        let mut text = String::new();
        for (ip, past) in &all[all.len().saturating_sub(MAX_ADDRESSES)..] {
            if let Some(pod) = self.pod(past) {
                text += &format!("{ip} given {pod}\n");
            }
            if let Some(released) = past.released {
                text += &format!("{ip} released {released}\n");
            }
        }
        let unfinished = self.folder.join(UNFINISHED);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        fs::rename(unfinished, self.folder.join(FILE))
    }
}

/// Records the release of addresses, without reading the file.
pub(super) fn release(folder: &Path, ips: &[IpAddr], now: u64) -> io::Result<()> {
    let lines: String = ips.iter().map(|ip| format!("{ip} released {now}\n")).collect();
    append(folder, &lines)
}

fn append(folder: &Path, lines: &str) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(folder.join(FILE))?.write_all(lines.as_bytes())
}
