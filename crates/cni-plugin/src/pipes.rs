//! Writes the standard input of an executed plugin and reads its output until it ends or must be stopped.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use podwire_netlink::sys;

use crate::stop::Stop;

/// The largest capacity of a pipe.
const MAX_PIPE: usize = 1 << 20;
/// How much is read at a time.
const BUFFER: usize = 16 * 1024;
/// The longest output. A plugin that prints more would never end.
const MAX_OUTPUT: usize = 64 << 20;

/// The output of a plugin.
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// How it was stopped, if it was.
    pub(crate) stopped: Option<&'static str>,
    /// Whether it has ended. The kernel may keep a killed process for long; the caller does not wait for it.
    pub(crate) has_ended: bool,
}

/// Standard output or standard error.
struct Stream {
    pipe: Option<File>,
    bytes: Vec<u8>,
}

impl Stream {
    fn of(pipe: Option<impl Into<OwnedFd>>) -> Stream {
        Stream { pipe: pipe.map(|pipe| File::from(pipe.into())), bytes: Vec::new() }
    }

    /// The descriptor to poll; `instead` after end of file.
    fn poll_fd<'f>(&'f self, instead: BorrowedFd<'f>) -> BorrowedFd<'f> {
        self.pipe.as_ref().map_or(instead, |pipe| pipe.as_fd())
    }

    /// Reads what is available and closes the pipe at end of file. Returns whether the pipe was open.
    fn read(&mut self) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        let mut buffer = [0; BUFFER];
        match pipe.read(&mut buffer)? {
            0 => self.pipe = None,
            length => self.bytes.extend_from_slice(&buffer[..length]),
        }
        Ok(true)
    }
}

/// Standard input, and what is still to be written.
struct Input<'a> {
    pipe: Option<File>,
    left: &'a [u8],
}

impl Input<'_> {
    /// Writes as much as the pipe takes. A plugin that closes its input early is not an error.
    fn write(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let is_done = match pipe.write(self.left) {
            Ok(length) => {
                self.left = &self.left[length..];
                self.left.is_empty()
            }
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        if is_done {
            self.pipe = None;
        }
    }
}

/// Writes `input` and reads the output until the plugin ends.
pub(crate) fn communicate(child: &mut Child, input: &[u8], deadline: Option<Instant>) -> io::Result<Output> {
    let exit = sys::open_pidfd(child.id())?;
    let pipe = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    pipe.as_ref().map_or(Ok(()), |pipe| sys::set_nonblocking(pipe.as_fd()))?;
    let mut input = Input { pipe, left: input };
    let (mut out, mut err) = (Stream::of(child.stdout.take()), Stream::of(child.stderr.take()));
    let mut stop: Option<Stop> = None;
    let mut rounds_since_end = 0;
    // A pipe takes a config of the usual size at once.
    input.write();
    let has_ended = loop {
        let end = stop.as_ref().map(|stop| stop.deadline).or(deadline);
        let left = end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
        let readers = [out.poll_fd(exit.as_fd()), err.poll_fd(exit.as_fd()), exit.as_fd()];
        let (ready, can_write) = sys::ready(&readers, input.pipe.as_ref().map(|pipe| pipe.as_fd()), left)?;
        if can_write {
            input.write();
        }
        let has_ended = ready[2];
        let was_open = (ready[0] && out.read()?) | (ready[1] && err.read()?);
        // The plugin has ended and its output, at most the capacity of the pipes, was read. A process that it left behind
        // may hold the pipes open for ever and write more: that is not waited for.
        rounds_since_end += usize::from(has_ended);
        let is_drained = !was_open || (out.pipe.is_none() && err.pipe.is_none());
        if has_ended && (is_drained || rounds_since_end > MAX_PIPE / BUFFER) {
            break true;
        }
        if out.bytes.len().max(err.bytes.len()) > MAX_OUTPUT {
            let text = format!("it printed more than {} MiB and was killed", MAX_OUTPUT >> 20);
            return Err(io::Error::other(text));
        }
        if has_ended || end.is_none_or(|end| Instant::now() < end) {
            continue;
        }
        stop = match stop {
            None => Some(Stop::terminate(child.id())?),
            Some(stop) if !stop.was_killed => Some(stop.kill()),
            Some(_) => break false,
        };
    };
    let stopped = stop.map(Stop::finish);
    Ok(Output { stdout: out.bytes, stderr: err.bytes, stopped, has_ended })
}
