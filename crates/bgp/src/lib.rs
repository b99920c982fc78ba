//! BGP by BIRD 2: writes its configuration from Calico's objects, starts it, and reports its sessions.
//!
//! Input: the [`Desired`] state, sent to the thread that [`spawn`] starts. Output: a [`Report`] after each attempt.
//!
//! BIRD is a separate process. It continues when this program ends, and this program finds it again by its control
//! socket, so sessions and routes stay up. If BIRD dies, it is started again with graceful restart, so that its peers
//! keep its routes.

#![forbid(unsafe_code)]

mod config;
mod control;
mod error;
mod filter;
mod model;
mod names;
mod objects;
mod passwords;
mod sessions;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use podwire_block_ipam::BlockIndex;
use podwire_fs::FileError;
use podwire_netlink::sys;
use podwire_reconcile::Backoff;
use tracing::info;

use config::Config;
use control::Control;
pub use error::{Error, Result};
use passwords::Passwords;

/// The time BIRD has to open its control socket.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which sessions are read for the report, and passwords for the configuration.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of one wait for the control socket.
const SOCKET_POLL: Duration = Duration::from_millis(100);

/// The program, and the directories of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bird {
    /// The program `bird`.
    pub program: PathBuf,
    /// The directory of its configuration, its control socket and its PID file.
    pub dir: PathBuf,
    /// The directory of passwords, as `SECRET/KEY`.
    pub passwords: Option<PathBuf>,
}

impl Bird {
    fn config(&self) -> PathBuf {
        self.dir.join("bird.conf")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("bird.ctl")
    }

    fn pid(&self) -> PathBuf {
        self.dir.join("bird.pid")
    }
}

/// What BIRD's configuration is made from.
pub struct Desired {
    /// Pools, blocks, nodes and Calico's BGP objects.
    pub index: BlockIndex,
    /// This node's addresses on the networks between nodes, one of each family at most.
    pub addresses: Vec<IpAddr>,
}

/// What BIRD does with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The state of each session, by its name in BIRD.
    pub sessions: BTreeMap<String, String>,
    /// Objects that could not be applied, each with the reason.
    pub problems: Vec<String>,
}

/// Starts a thread that keeps BIRD running with the configuration of the last [`Desired`] state that was sent. It calls
/// `report` after each attempt, and ends when the sender is dropped.
pub fn spawn(
    bird: Bird,
    node: String,
    report: impl FnMut(Result<Report>) + Send + 'static,
) -> Result<Sender<Desired>> {
    podwire_fs::create_state_dir(&bird.dir).map_err(FileError::at("create", &bird.dir))?;
    // The configuration may contain passwords, and the administrator may have chosen another directory.
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&bird.dir, private).map_err(FileError::at("set the mode of", &bird.dir))?;
    let (sender, desired) = mpsc::channel();
    let mut daemon = BirdDaemon { bird, node, control: None, applied: None };
    let thread = std::thread::Builder::new().name("bgp".into());
    thread.spawn(move || daemon.run(&desired, report)).map_err(Error::Thread)?;
    Ok(sender)
}

struct BirdDaemon {
    bird: Bird,
    node: String,
    control: Option<Control>,
    /// The configuration that BIRD accepted last.
    applied: Option<String>,
}

impl BirdDaemon {
    fn run(&mut self, states: &Receiver<Desired>, mut report: impl FnMut(Result<Report>)) {
        let Ok(mut desired) = states.recv() else { return };
        let mut backoff = Backoff::new();
        loop {
            let outcome = self.apply(&desired);
            let pause = if outcome.is_ok() {
                backoff.reset();
                POLL_INTERVAL
            } else {
                self.control = None;
                backoff.next_pause()
            };
            report(outcome);
            match states.recv_timeout(pause) {
                Ok(newer) => desired = states.try_iter().last().unwrap_or(newer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Makes BIRD run with the desired configuration.
    fn apply(&mut self, desired: &Desired) -> Result<Report> {
        let passwords = Passwords::new(self.bird.passwords.clone());
        let Config { text, problems } = config::config(&self.node, desired, &passwords);
        if self.applied.as_ref() != Some(&text) {
            let path = self.bird.config();
            podwire_fs::replace(&path, text.as_bytes(), 0o600).map_err(FileError::at("write", path))?;
        }
        let mut control = match self.control.take() {
            Some(control) => control,
            None => {
                self.applied = None;
                self.connect()?
            }
        };
        if self.applied.as_ref() != Some(&text) {
            control.configure()?;
            info!("BIRD configured");
            self.applied = Some(text);
        }
        let sessions = control.sessions()?;
        self.control = Some(control);
        Ok(Report { sessions, problems })
    }

    /// Connects to the BIRD that runs, or starts one.
    fn connect(&self) -> Result<Control> {
        match Control::open(&self.bird.socket()) {
            Err(Error::File(error)) if is_absent(&error.source) => self.start(),
            other => other,
        }
    }

    fn start(&self) -> Result<Control> {
        let program = &self.bird.program;
        let failed = |why: String| Error::Bird { what: format!("({})", program.display()), why };
        let output = Command::new(program)
            .arg("-R")
            .arg("-c")
            .arg(self.bird.config())
            .arg("-s")
            .arg(self.bird.socket())
            .arg("-P")
            .arg(self.bird.pid())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| {
                failed(format!(
                    "{error}: install BIRD 2 (Debian: bird2), or set the path of the program with --bird"
                ))
            })?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        info!(program = %program.display(), "BIRD started");
        self.await_socket()
    }

    /// Waits for the control socket that BIRD creates after it has gone to the background.
    fn await_socket(&self) -> Result<Control> {
        let end = Instant::now() + START_TIMEOUT;
        let watch_dir = || {
            let watch = sys::open_inotify()?;
            sys::watch_directory(watch.as_fd(), &self.bird.dir)?;
            Ok(File::from(watch))
        };
        let mut watch = watch_dir().map_err(FileError::at("watch", &self.bird.dir))?;
        loop {
            match Control::open(&self.bird.socket()) {
                Err(Error::File(error)) if is_absent(&error.source) && Instant::now() < end => {}
                other => return other,
            }
            // The socket's file exists a moment before BIRD listens, so the wait for a change is short.
            sys::readable(&[watch.as_fd()], SOCKET_POLL).map_err(FileError::at("watch", &self.bird.dir))?;
            while watch.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
        }
    }
}

/// Whether no program listens on a socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_bird_and_the_one_above_it_are_private() {
        let dir = std::env::temp_dir().join(format!("podwire-bird-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let run = dir.join("run/podwire");
        fs::create_dir_all(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
        let bird = Bird { program: "bird".into(), dir: run.join("bird"), passwords: None };
        drop(spawn(bird, "node1".into(), |_| {}).unwrap());
        for path in [run.join("bird"), run] {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{}", path.display());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
