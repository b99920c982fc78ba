//! BIRD's control socket: a command is a line; an answer is lines with a number before each, the last of them with a blank behind it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{named, readable, Sessions, STARTING};
use crate::{Error, Result};

/// A connection to BIRD.
pub(super) struct Control {
    stream: UnixStream,
    path: String,
    buffer: Vec<u8>,
}

/// A line of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    code: u16,
    is_last: bool,
    text: String,
}

impl Line {
    /// `0001 BIRD 2.0.12 ready.` or `1002-name Proto…`; a line that begins with a blank has the number of the one before.
    fn parse(line: &str, before: u16) -> Option<Line> {
        if let Some(text) = line.strip_prefix([' ', '+']) {
            return Some(Line { code: before, is_last: false, text: text.into() });
        }
        let (code, rest) = line.split_at_checked(4)?;
        let (mark, text) = rest.split_at_checked(1).unwrap_or((" ", ""));
        Some(Line { code: code.parse().ok()?, is_last: mark == " ", text: text.into() })
    }
}

impl Control {
    pub(super) fn open(path: &Path) -> Result<Control> {
        let stream = UnixStream::connect(path).map_err(Error::file("connect to", path))?;
        let mut control = Control { stream, path: named(path), buffer: Vec::new() };
        control.answer()?;
        Ok(control)
    }

    /// Reads the config again. Sessions that are the same in it stay up.
    pub(super) fn configure(&mut self) -> Result<()> {
        let lines = self.ask("configure")?;
        match lines.last() {
            Some(line) if line.code < 1000 => Ok(()),
            _ => Err(self.refused(&lines)),
        }
    }

    /// How the sessions are.
    pub(super) fn sessions(&mut self) -> Result<Sessions> {
        let lines = self.ask("show protocols")?;
        Ok(lines.iter().filter(|line| line.code == 1002).filter_map(|line| session(&line.text)).collect())
    }

    fn ask(&mut self, command: &str) -> Result<Vec<Line>> {
        self.stream
            .write_all(format!("{command}\n").as_bytes())
            .map_err(Error::file("write to", &self.path))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let line = self.line()?;
            let before = lines.last().map_or(0, |line| line.code);
            let parsed = Line::parse(&line, before);
            lines.extend(parsed);
            if lines.last().is_some_and(|line| line.is_last) {
                return Ok(lines);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let fail = Error::file("read from", &self.path);
            if !readable(&self.stream, STARTING).map_err(&fail)? {
                return Err(fail(std::io::ErrorKind::TimedOut.into()));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk).map_err(&fail)? {
                0 => return Err(fail(std::io::ErrorKind::UnexpectedEof.into())),
                length => self.buffer.extend(&chunk[..length]),
            }
        }
    }

    fn refused(&self, lines: &[Line]) -> Error {
        let words: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        Error::Bird { what: format!("({})", self.path), why: words.join(" ") }
    }
}

/// `mesh_10_0_0_2 BGP --- up 2026-11-16 Established`: BGP's only.
fn session(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (name, kind) = (words.next()?, words.next()?);
    // Table, state, since: a time or a date.
    let rest: Vec<&str> = words.skip(3).collect();
    (kind == "BGP").then(|| (name.to_owned(), rest.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let line = |code, is_last, text: &str| Some(Line { code, is_last, text: text.into() });
        assert_eq!(Line::parse("0001 BIRD 2.0.12 ready.", 0), line(1, true, "BIRD 2.0.12 ready."));
        assert_eq!(Line::parse("2002-Name Proto", 0), line(2002, false, "Name Proto"));
        assert_eq!(Line::parse(" device1", 1002), line(1002, false, "device1"));
        assert_eq!(Line::parse("0000 ", 0), line(0, true, ""));
        assert_eq!(Line::parse("", 0), None);
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
