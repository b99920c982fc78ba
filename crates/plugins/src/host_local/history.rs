//! Who had an address before, and when it was given back: what `cooldown` and `sticky` go by.
//!
//! One file in the network's folder, `podwire.history`, to which a line is added for each event:
//! `10.1.0.5 given shop/web-0/eth0` and `10.1.0.5 released 1760000000`. For each address the last lines count. It is
//! written anew, without the lines that do not matter any more, when most of them do not. Nothing is lost but comfort if
//! it is: the address files say what is taken.
//!
//! The Go plugin reads every file of the folder and compares its content with a container's id, which has no blanks.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const FILE: &str = "podwire.history";
const UNFINISHED: &str = "podwire.history.new";
/// How many lines that do not matter are borne before the file is written anew.
const SLACK: usize = 64;
/// Hardly a line is shorter, in bytes.
const SHORT_LINE: usize = 24;
/// How many addresses are remembered: an IPv6 range never comes round, and there is a new pod name every minute.
const MOST: usize = 16_384;

/// What is remembered of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Past {
    /// Where the pod's name stands in the text.
    pod: Option<Range<usize>>,
    released: Option<u64>,
    /// Where its last line begins: later ones are newer.
    line: usize,
}

/// All that is remembered of a network's addresses. The caller holds the folder's lock.
#[derive(Debug)]
pub(super) struct History {
    folder: PathBuf,
    /// The file, and what is new.
    text: String,
    /// Where the news begin.
    news: usize,
    lines: usize,
    past: HashMap<IpAddr, Past>,
}

impl History {
    /// Reads the file; one that is missing is empty, and lines that make no sense are not there.
    pub(super) fn read(folder: &Path) -> io::Result<History> {
        let bytes = match fs::read(folder.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        // Whoever wrote what is no text did not write it for us.
        let text = String::from_utf8(bytes).unwrap_or_default();
        // Made once for all: growing it in steps would take longer than reading the lines.
        let past = HashMap::with_capacity(text.len() / SHORT_LINE);
        let mut history = History { folder: folder.to_owned(), news: text.len(), text, lines: 0, past };
        history.learn(0);
        Ok(history)
    }

    /// Reads the lines of the text from there on.
    fn learn(&mut self, from: usize) {
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

    fn tell(&mut self, line: &str) {
        // The file may have been cut off in the middle of a line.
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        let from = self.text.len();
        self.text.push_str(line);
        self.text.push('\n');
        self.learn(from);
    }

    fn pod(&self, past: &Past) -> Option<&str> {
        self.text.get(past.pod.clone()?)
    }

    /// The addresses that `pod` had, the last one first.
    pub(super) fn addresses_of(&self, pod: &str) -> Vec<IpAddr> {
        let had = self.past.iter().filter(|(_, past)| self.pod(past) == Some(pod));
        let mut had: Vec<(usize, IpAddr)> = had.map(|(ip, past)| (past.line, *ip)).collect();
        had.sort_unstable();
        had.into_iter().rev().map(|(_, ip)| ip).collect()
    }

    /// Whether the last to have `ip` was another than `pod`.
    pub(super) fn is_anothers(&self, ip: IpAddr, pod: Option<&str>) -> bool {
        self.past.get(&ip).and_then(|past| self.pod(past)).is_some_and(|last| Some(last) != pod)
    }

    /// Whether `ip` was given back less than `cooldown` seconds before `now`. A time that has not come yet was told by a
    /// clock that was wrong, then or now: it does not count.
    pub(super) fn is_cooling(&self, ip: IpAddr, now: u64, cooldown: u64) -> bool {
        let released = self.past.get(&ip).and_then(|past| past.released);
        released.is_some_and(|released| released <= now && now - released < cooldown)
    }

    /// The addresses that were given back less than `cooldown` seconds before `now`.
    pub(super) fn cooling(&self, now: u64, cooldown: u64) -> impl Iterator<Item = IpAddr> + '_ {
        self.past.keys().copied().filter(move |ip| self.is_cooling(*ip, now, cooldown))
    }

    /// `pod` has `ip` now, in place of `others` that it had.
    pub(super) fn give(&mut self, ip: IpAddr, pod: &str, others: &[IpAddr]) {
        let is_known = |past: &Past| self.pod(past) == Some(pod) && past.released.is_none();
        if !self.past.get(&ip).is_some_and(is_known) {
            self.tell(&format!("{ip} given {pod}"));
        }
        others.iter().filter(|other| **other != ip).for_each(|other| self.tell(&format!("{other} given -")));
    }

    /// Writes down what is new. `matters` says whether an address is worth remembering, by when it was released.
    pub(super) fn save(mut self, matters: impl Fn(Option<u64>) -> bool) -> io::Result<()> {
        let live = |past: &Past| past.pod.is_some() || matters(past.released);
        let count = self.past.values().filter(|past| live(past)).count();
        if self.lines > 2 * count + SLACK || count > MOST + SLACK {
            self.past.retain(|_, past| live(past));
            return self.write_anew();
        }
        append(&self.folder, &self.text[self.news..])
    }

    fn write_anew(self) -> io::Result<()> {
        let mut all: Vec<(&IpAddr, &Past)> = self.past.iter().collect();
        all.sort_unstable_by_key(|(_, past)| past.line);
        let mut text = String::new();
        for (ip, past) in &all[all.len().saturating_sub(MOST)..] {
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

/// Notes that addresses were given back, without a look at the rest.
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
