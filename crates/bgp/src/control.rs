//! BIRD's control socket. A command is a line. A reply is several lines with a code before each; a blank follows the
//! code of the last one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_fs::FileError;
use podwire_netlink::sys;

use crate::error::{Error, Result};

/// The time BIRD has to send the next part of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to BIRD.
pub(crate) struct Control {
    stream: UnixStream,
    path: PathBuf,
    buffer: Vec<u8>,
}

/// A line of a reply.
#[derive(Debug, PartialEq, Eq)]
struct ReplyLine {
    code: u16,
    is_last: bool,
    text: String,
}

impl ReplyLine {
    /// Parses `0001 BIRD 2.0.12 ready.` or `1002-name Proto…`. A line that begins with a blank has the code of the
    /// previous line.
    fn parse(line: &str, before: u16) -> Option<ReplyLine> {
        if let Some(text) = line.strip_prefix([' ', '+']) {
            return Some(ReplyLine { code: before, is_last: false, text: text.into() });
        }
        let (code, rest) = line.split_at_checked(4)?;
        let (mark, text) = rest.split_at_checked(1).unwrap_or((" ", ""));
        Some(ReplyLine { code: code.parse().ok()?, is_last: mark == " ", text: text.into() })
    }
}

impl Control {
    pub(crate) fn open(path: &Path) -> Result<Control> {
        let stream = UnixStream::connect(path).map_err(FileError::at("connect to", path))?;
        let mut control = Control { stream, path: path.to_owned(), buffer: Vec::new() };
        // The greeting.
        control.read_reply()?;
        Ok(control)
    }

    /// Makes BIRD read its configuration again. Sessions that did not change stay up.
    pub(crate) fn configure(&mut self) -> Result<()> {
        let lines = self.request("configure")?;
        match lines.last() {
            Some(line) if line.code < 1000 => Ok(()),
            _ => Err(self.rejected(&lines)),
        }
    }

    /// The state of each BGP session, by name.
    pub(crate) fn sessions(&mut self) -> Result<BTreeMap<String, String>> {
        let lines = self.request("show protocols")?;
        Ok(lines.iter().filter(|line| line.code == 1002).filter_map(|line| session(&line.text)).collect())
    }

    fn request(&mut self, command: &str) -> Result<Vec<ReplyLine>> {
        let line = format!("{command}\n");
        self.stream.write_all(line.as_bytes()).map_err(FileError::at("write to", &self.path))?;
        self.read_reply()
    }

    fn read_reply(&mut self) -> Result<Vec<ReplyLine>> {
        let mut lines: Vec<ReplyLine> = Vec::new();
        loop {
            let line = self.read_line()?;
            let before = lines.last().map_or(0, |line| line.code);
            let parsed = ReplyLine::parse(&line, before);
            lines.extend(parsed);
            if lines.last().is_some_and(|line| line.is_last) {
                return Ok(lines);
            }
        }
    }

    fn read_line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.read_more().map_err(FileError::at("read from", &self.path))?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        if !sys::readable(&[self.stream.as_fd()], REPLY_TIMEOUT)?.contains(&true) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.buffer.extend(&chunk[..length]);
                Ok(())
            }
        }
    }

    fn rejected(&self, lines: &[ReplyLine]) -> Error {
        let words: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        Error::Bird { what: format!("({})", self.path.display()), why: words.join(" ") }
    }
}

/// The name and state in `mesh_10_0_0_2 BGP --- up 2026-11-16 Established`; `None` for other protocols.
fn session(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (name, kind) = (words.next()?, words.next()?);
    // The columns before it: table, state, time or date of the last change.
    let rest: Vec<&str> = words.skip(3).collect();
    (kind == "BGP").then(|| (name.to_owned(), rest.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_and_sessions_are_parsed() {
        let line = |code, is_last, text: &str| Some(ReplyLine { code, is_last, text: text.into() });
        assert_eq!(ReplyLine::parse("0001 BIRD 2.0.12 ready.", 0), line(1, true, "BIRD 2.0.12 ready."));
        assert_eq!(ReplyLine::parse("2002-Name Proto", 0), line(2002, false, "Name Proto"));
        assert_eq!(ReplyLine::parse(" device1", 1002), line(1002, false, "device1"));
        assert_eq!(ReplyLine::parse("0000 ", 0), line(0, true, ""));
        assert_eq!(ReplyLine::parse("", 0), None);
        assert_eq!(
            session("mesh_10_0_0_2 BGP        ---        up     12:00:00.123  Established   "),
            Some(("mesh_10_0_0_2".into(), "Established".into()))
        );
        assert_eq!(
            session("tor BGP --- start 12:00:00.123 Active Socket: Connection refused"),
            Some(("tor".into(), "Active Socket: Connection refused".into()))
        );
        assert_eq!(session("device1 Device --- up 12:00:00.123"), None);
    }
}
