//! Executing a plugin: standard input in, standard output out, its errors understood, and a deadline that
//! lets it clean up before it is killed.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cni::{code, json};
use netlink::sys;

use crate::stop::Stop;
use crate::Result;

/// A program that is being written cannot be executed (ETXTBSY). It is tried again after these pauses.
const BUSY_PAUSES: [u64; 6] = [10, 20, 50, 100, 300, 1000];
const ETXTBSY: i32 = 26;
/// What a pipe takes without a reader.
const PIPE: usize = 64 * 1024;
/// What any takes.
const LARGEST_PIPE: usize = 1 << 20;
/// How much is read of one at a time.
const BUFFER: usize = 16 * 1024;
/// Who says more than this will never end.
const LONGEST_ANSWER: usize = 64 << 20;

/// One execution of a plugin.
#[derive(Clone, Debug)]
pub struct Execution<'a> {
    /// The plugin's file.
    pub file: &'a Path,
    /// Variables on top of this process's own; later ones win.
    pub env: Vec<(&'static str, OsString)>,
    /// What it reads.
    pub stdin: &'a [u8],
    /// When its patience ends; `None` waits for ever.
    pub deadline: Option<Instant>,
}

/// The file of plugin type `kind`: the first in `path`, as runtimes look for it.
pub fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf> {
    cni::name::plugin_type(kind)?;
    let found = path.iter().map(|folder| folder.join(kind)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let folders: Vec<_> = path.iter().map(|folder| folder.display().to_string()).collect();
        let text = format!("failed to find plugin {kind:?} in path [{}]", folders.join(" "));
        cni::Error::new(code::INVALID_CONFIG, text)
            .with_details("install it there, or correct CNI_PATH or the config's type")
            .into()
    })
}

impl Execution<'_> {
    /// Runs the plugin to its end and returns what it printed. A failure is the error that it printed.
    pub fn run(&self) -> Result<Vec<u8>> {
        let mut child = self.spawn()?;
        let ended = self.converse(&mut child).map_err(|error| self.failed(&error));
        let (stdout, stderr, late) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        let status = child.wait().map_err(|error| self.failed(&error))?;
        if let Some(late) = late {
            return Err(cni::Error::new(code::TRY_AGAIN, format!("{} {late}", self.file.display())).into());
        }
        if status.success() {
            // Only now: a failing plugin's words are in its error.
            let _ = io::stderr().write_all(&stderr);
            return Ok(stdout);
        }
        Err(explain(&stdout, &stderr, &status.to_string()).into())
    }

    fn failed(&self, error: &io::Error) -> crate::Error {
        cni::Error::new(code::IO, format!("execute plugin {}: {error}", self.file.display())).into()
    }

    fn spawn(&self) -> Result<Child> {
        let mut pauses = BUSY_PAUSES.iter();
        loop {
            let child = std::process::Command::new(self.file)
                .envs(self.env.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            match (child, pauses.next()) {
                (Err(error), Some(pause)) if error.raw_os_error() == Some(ETXTBSY) => {
                    std::thread::sleep(Duration::from_millis(*pause));
                }
                (child, _) => return child.map_err(|error| self.failed(&error)),
            }
        }
    }

    /// Feeds it and listens to it until it ends. The last of the three says so if it had to be stopped.
    fn converse(&self, child: &mut Child) -> io::Result<(Vec<u8>, Vec<u8>, Option<&'static str>)> {
        let exit = sys::process_descriptor(child.id())?;
        let mut stdin = child.stdin.take();
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let input = self.stdin;
        std::thread::scope(|scope| {
            // A pipe takes a usual config at once; only a long one needs a writer of its own.
            let mut feed = move || drop(stdin.take().map(|mut pipe| pipe.write_all(input)));
            match input.len() < PIPE {
                true => feed(),
                false => drop(scope.spawn(feed)),
            }
            let mut stop: Option<Stop> = None;
            let mut rounds_since_end = 0;
            loop {
                let end = stop.as_ref().map(|stop| stop.until).or(self.deadline);
                let left = end
                    .map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
                let fds: Vec<_> =
                    [out.as_ref().map(|o| o.as_fd()), err.as_ref().map(|e| e.as_fd()), Some(exit.as_fd())]
                        .into_iter()
                        .map(|fd| fd.unwrap_or(exit.as_fd()))
                        .collect();
                let ready = sys::readable(&fds, left)?;
                let spoke = (out.is_some() && ready[0]) || (err.is_some() && ready[1]);
                if ready[0] {
                    drain(&mut out, &mut stdout)?;
                }
                if ready[1] {
                    drain(&mut err, &mut stderr)?;
                }
                // It has ended and all that it said was heard, which is no more than pipes take. A process that it left
                // behind may hold them open for ever, and talk on: that one is not waited for.
                rounds_since_end += usize::from(ready[2]);
                let is_silent = !spoke || (out.is_none() && err.is_none());
                if ready[2] && (is_silent || rounds_since_end > LARGEST_PIPE / BUFFER) {
                    return Ok((stdout, stderr, stop.map(Stop::finish)));
                }
                if stdout.len().max(stderr.len()) > LONGEST_ANSWER {
                    let text =
                        format!("it has printed more than {} MiB, and was killed", LONGEST_ANSWER >> 20);
                    // Now: somebody may still be feeding it.
                    let _ = child.kill();
                    return Err(io::Error::other(text));
                }
                if ready[2] || end.is_none_or(|end| Instant::now() < end) {
                    continue;
                }
                stop = Some(stop.map_or_else(|| Stop::ask(child.id()), |stop| Ok(stop.kill()))?);
            }
        })
    }
}

/// Reads what is there; at its end the pipe is dropped.
fn drain<R: Read>(pipe: &mut Option<R>, into: &mut Vec<u8>) -> io::Result<()> {
    let Some(reader) = pipe else { return Ok(()) };
    let mut buffer = [0; BUFFER];
    match reader.read(&mut buffer)? {
        0 => *pipe = None,
        length => into.extend_from_slice(&buffer[..length]),
    }
    Ok(())
}

/// The error that a failed plugin printed, or the best that can be said.
fn explain(stdout: &[u8], stderr: &[u8], status: &str) -> cni::Error {
    let stderr = String::from_utf8_lossy(stderr).trim().to_string();
    if let Some(error) = json::parse(stdout).ok().as_ref().and_then(cni::Error::from_json) {
        return error;
    }
    let stdout = String::from_utf8_lossy(stdout).trim().to_string();
    let text = match (stdout.is_empty(), stderr.is_empty()) {
        (true, true) => format!("netplugin failed with no error message: {status}"),
        (true, false) => format!("netplugin failed: {stderr:?}: {status}"),
        (false, _) => {
            format!("netplugin failed but error parsing its diagnostic message {stdout:?}: {status}")
        }
    };
    cni::Error::internal(text)
}
