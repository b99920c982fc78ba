//! Executing a plugin: standard input in, standard output out, its errors understood, and a deadline that
//! lets it clean up before it is killed.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use podwire_cni_spec::{code, json};

use crate::stop::Stop;
use crate::{conversation, Result};

/// A program that is being written cannot be executed (ETXTBSY). It is tried again after these pauses.
const BUSY_PAUSES: [u64; 6] = [10, 20, 50, 100, 300, 1000];
const ETXTBSY: i32 = 26;

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
    podwire_cni_spec::name::plugin_type(kind)?;
    let found = path.iter().map(|folder| folder.join(kind)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let folders: Vec<_> = path.iter().map(|folder| folder.display().to_string()).collect();
        let text = format!("failed to find plugin {kind:?} in path [{}]", folders.join(" "));
        podwire_cni_spec::Error::new(code::INVALID_CONFIG, text)
            .with_details("install it there, or correct CNI_PATH or the config's type")
            .into()
    })
}

impl Execution<'_> {
    /// Runs the plugin to its end and returns what it printed. A failure is the error that it printed.
    pub fn run(&self) -> Result<Vec<u8>> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(self.late("was not started: the time was up before"));
        }
        let mut child = self.spawn()?;
        let heard = match conversation::hold(&mut child, self.stdin, self.deadline) {
            Ok(heard) => heard,
            Err(error) => {
                let _ = Stop::ask(child.id()).map(|stop| stop.kill().finish());
                let _ = child.kill();
                await_end(child);
                return Err(self.failed(&error));
            }
        };
        if !heard.has_ended {
            await_end(child);
            return Err(
                self.late("did not end before its deadline, and the kernel holds it though it was killed")
            );
        }
        let status = child.wait().map_err(|error| self.failed(&error))?;
        if let Some(how) = heard.stopped {
            return Err(self.late(how));
        }
        if status.success() {
            // Only now: a failing plugin's words are in its error.
            let _ = io::stderr().write_all(&heard.stderr);
            return Ok(heard.stdout);
        }
        Err(explain(&heard.stdout, &heard.stderr, &status.to_string()).into())
    }

    fn late(&self, how: &str) -> crate::Error {
        podwire_cni_spec::Error::new(code::TRY_AGAIN, format!("{} {how}", self.file.display())).into()
    }

    fn failed(&self, error: &io::Error) -> crate::Error {
        podwire_cni_spec::Error::new(code::IO, format!("execute plugin {}: {error}", self.file.display()))
            .into()
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
}

/// Somebody has to take note of its end, whenever that comes: the kernel may keep one that was killed.
fn await_end(mut child: Child) {
    // Where no thread is to be had, whoever takes over orphans does it.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
}

/// The error that a failed plugin printed, or the best that can be said.
fn explain(stdout: &[u8], stderr: &[u8], status: &str) -> podwire_cni_spec::Error {
    let stderr = String::from_utf8_lossy(stderr).trim().to_string();
    if let Some(error) = json::parse(stdout).ok().as_ref().and_then(podwire_cni_spec::Error::from_json) {
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
    podwire_cni_spec::Error::internal(text)
}
