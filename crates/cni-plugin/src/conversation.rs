//! What is said between a plugin and whoever executes it, until it ends or has to be stopped.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use podwire_netlink::sys;

use crate::stop::Stop;

/// What any pipe takes without a reader.
const LARGEST_PIPE: usize = 1 << 20;
/// How much is read of one at a time.
const BUFFER: usize = 16 * 1024;
/// Who says more than this will never end.
const LONGEST_ANSWER: usize = 64 << 20;

/// All that a plugin said.
pub(crate) struct Heard {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// That it was stopped, in words.
    pub(crate) stopped: Option<&'static str>,
    /// Whether it has ended. The kernel may keep one that was killed: its end need not be waited for.
    pub(crate) has_ended: bool,
}

/// One of a plugin's outputs.
struct Voice {
    pipe: Option<File>,
    words: Vec<u8>,
}

impl Voice {
    fn of(pipe: Option<impl Into<OwnedFd>>) -> Voice {
        Voice { pipe: pipe.map(|pipe| File::from(pipe.into())), words: Vec::new() }
    }

    /// What is to be listened to; `instead` when nothing more comes.
    fn ear<'f>(&'f self, instead: BorrowedFd<'f>) -> BorrowedFd<'f> {
        self.pipe.as_ref().map_or(instead, |pipe| pipe.as_fd())
    }

    /// Reads what is there; at its end the pipe is dropped. Says whether there was a pipe to be read.
    fn listen(&mut self) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        let mut buffer = [0; BUFFER];
        match pipe.read(&mut buffer)? {
            0 => self.pipe = None,
            length => self.words.extend_from_slice(&buffer[..length]),
        }
        Ok(true)
    }
}

/// A plugin's input, and what of it is still to be said.
struct Input<'a> {
    pipe: Option<File>,
    left: &'a [u8],
}

impl Input<'_> {
    /// Says as much as the pipe takes. A plugin that does not want to hear it need not.
    fn feed(&mut self) {
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

/// Feeds the plugin and listens to it until it ends.
pub(crate) fn hold(child: &mut Child, input: &[u8], deadline: Option<Instant>) -> io::Result<Heard> {
    let exit = sys::open_pidfd(child.id())?;
    let pipe = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    pipe.as_ref().map_or(Ok(()), |pipe| sys::set_nonblocking(pipe.as_fd()))?;
    let mut input = Input { pipe, left: input };
    let (mut out, mut err) = (Voice::of(child.stdout.take()), Voice::of(child.stderr.take()));
    let mut stop: Option<Stop> = None;
    let mut rounds_since_end = 0;
    // A pipe takes a usual config at once.
    input.feed();
    let has_ended = loop {
        let end = stop.as_ref().map(|stop| stop.until).or(deadline);
        let left = end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
        let ears = [out.ear(exit.as_fd()), err.ear(exit.as_fd()), exit.as_fd()];
        let (ready, is_hungry) = sys::ready(&ears, input.pipe.as_ref().map(|pipe| pipe.as_fd()), left)?;
        if is_hungry {
            input.feed();
        }
        let has_ended = ready[2];
        let spoke = (ready[0] && out.listen()?) | (ready[1] && err.listen()?);
        // It has ended and all that it said was heard, which is no more than pipes take. A process that it left behind may
        // hold them open for ever, and talk on: that one is not waited for.
        rounds_since_end += usize::from(has_ended);
        let is_silent = !spoke || (out.pipe.is_none() && err.pipe.is_none());
        if has_ended && (is_silent || rounds_since_end > LARGEST_PIPE / BUFFER) {
            break true;
        }
        if out.words.len().max(err.words.len()) > LONGEST_ANSWER {
            let text = format!("it has printed more than {} MiB, and was killed", LONGEST_ANSWER >> 20);
            return Err(io::Error::other(text));
        }
        if has_ended || end.is_none_or(|end| Instant::now() < end) {
            continue;
        }
        stop = match stop {
            None => Some(Stop::ask(child.id())?),
            Some(stop) if !stop.was_killed => Some(stop.kill()),
            Some(_) => break false,
        };
    };
    let stopped = stop.map(Stop::finish);
    Ok(Heard { stdout: out.words, stderr: err.words, stopped, has_ended })
}
