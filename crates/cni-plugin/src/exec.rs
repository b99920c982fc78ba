//! Executes a plugin: writes its standard input, reads its result or error, and stops it at the deadline with time to clean
//! up.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use podwire_cni_spec::suggestion::nearest;
use podwire_cni_spec::{code, json};

use crate::stop::Stop;
use crate::{pipes, Result};

/// The pauses, in milliseconds, before a program that is being written (ETXTBSY) is executed again.
const BUSY_PAUSES: [u64; 6] = [10, 20, 50, 100, 300, 1000];
const ETXTBSY: i32 = 26;

/// One execution of a plugin.
#[derive(Clone, Debug)]
pub struct Execution<'a> {
    /// The plugin's file.
    pub file: &'a Path,
    /// Variables in addition to this process's own; later ones win.
    pub env: Vec<(&'static str, OsString)>,
    /// Its standard input.
    pub stdin: &'a [u8],
    /// When it is stopped; `None` waits for ever.
    pub deadline: Option<Instant>,
}

/// The file of plugin type `kind`: the first one in `path`.
pub fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf> {
    podwire_cni_spec::name::plugin_type(kind)?;
    let found = path.iter().map(|folder| folder.join(kind)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let folders: Vec<_> = path.iter().map(|folder| folder.display().to_string()).collect();
        let text = format!("failed to find plugin {kind:?} in path [{}]", folders.join(" "));
        podwire_cni_spec::Error::new(code::INVALID_CONFIG, text)
            .with_details(not_found_hint(kind, path))
            .into()
    })
}

/// What to do about a plugin that is not installed. Its type may be misspelt.
fn not_found_hint(kind: &str, path: &[PathBuf]) -> String {
    let entries = path.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let installed: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    match nearest(kind, installed.iter().map(String::as_str)) {
        Some(meant) => {
            format!("did you mean {meant:?}? Otherwise install {kind:?} there, or correct CNI_PATH")
        }
        None => "install it there, or correct CNI_PATH or the config's type".to_owned(),
    }
}

impl Execution<'_> {
    /// Runs the plugin and returns its standard output, or the error that it printed.
    pub fn run(&self) -> Result<Vec<u8>> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(self.late("was not started: the deadline had passed"));
        }
        let mut child = self.spawn()?;
        let output = match pipes::communicate(&mut child, self.stdin, self.deadline) {
            Ok(output) => output,
            Err(error) => {
                let _ = Stop::terminate(child.id()).map(|stop| stop.kill().finish());
                let _ = child.kill();
                await_end(child);
                return Err(self.failed(&error));
            }
        };
        if !output.has_ended {
            await_end(child);
            return Err(self.late(
                "did not end before its deadline; it was killed, but the kernel has not ended it yet",
            ));
        }
        let status = child.wait().map_err(|error| self.failed(&error))?;
        if let Some(how) = output.stopped {
            return Err(self.late(how));
        }
        if status.success() {
            // Only on success: the error of a failed plugin contains its standard error.
            let _ = io::stderr().write_all(&output.stderr);
            return Ok(output.stdout);
        }
        Err(explain(&output.stdout, &output.stderr, &status.to_string()).into())
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

/// Reaps the child on a thread: the kernel may keep a killed process for long, and it must not stay a zombie.
fn await_end(mut child: Child) {
    // If no thread can be spawned, init reaps it after this process ends.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
}

/// The error that a failed plugin printed, or what is known without one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_type_gets_a_suggestion() {
        let folder = std::env::temp_dir().join(format!("podwire-find-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("host-local"), "").unwrap();
        let hint = |kind: &str| find(kind, std::slice::from_ref(&folder)).unwrap_err().to_cni().details;
        let hints = [hint("host_local"), hint("weave")];
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = [
            r#"did you mean "host-local"? Otherwise install "host_local" there, or correct CNI_PATH"#,
            "install it there, or correct CNI_PATH or the config's type",
        ];
        assert_eq!(hints, expected);
    }
}
