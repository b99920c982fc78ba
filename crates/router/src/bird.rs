//! BGP, spoken by BIRD 2: this writes its config from Calico's objects, starts it if nobody did, and tells it when the config is another.
//!
//! BIRD is a process of its own. It goes on when we end, and is found again by its control socket: sessions stay up, and routes too. If it dies, it
//! is started again at once, with graceful restart, so that its peers keep what it told them.

mod config;
mod control;
mod filter;
mod names;
mod objects;
mod passwords;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use podwire_block_ipam::BlockIndex;
use podwire_netlink::sys;
use tracing::info;

use crate::plan::Place;
use crate::{thread, Board, Error, Patience, Result};
use control::Control;
use passwords::Passwords;

/// How long BIRD may take to come up, and to answer.
const STARTING: Duration = Duration::from_secs(10);
/// How often sessions are looked at, for the status.
const LOOK: Duration = Duration::from_secs(5);

/// Which BIRD, and where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bird {
    /// The program.
    pub program: PathBuf,
    /// The folder of its config, its socket and its process number.
    pub folder: PathBuf,
    /// The folder of passwords, if there is one: `SECRET/KEY`.
    pub passwords: Option<PathBuf>,
}

impl Bird {
    fn config(&self) -> PathBuf {
        self.folder.join("bird.conf")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("bird.ctl")
    }

    fn pid(&self) -> PathBuf {
        self.folder.join("bird.pid")
    }
}

/// What the config follows from.
pub(crate) struct Sketch {
    pub(crate) atlas: BlockIndex,
    pub(crate) places: Vec<Place>,
}

pub(crate) fn start(bird: Bird, node: String, sketches: Receiver<Sketch>, board: Board) -> Result<()> {
    fs::create_dir_all(&bird.folder).map_err(Error::file("make", &bird.folder))?;
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&bird.folder, private).map_err(Error::file("close", &bird.folder))?;
    let mut speaker = Speaker { bird, node, board, control: None, written: None };
    thread("speaker", move || speaker.live(&sketches))
}

struct Speaker {
    bird: Bird,
    node: String,
    board: Board,
    control: Option<Control>,
    /// The config that BIRD was told last.
    written: Option<String>,
}

impl Speaker {
    fn live(&mut self, sketches: &Receiver<Sketch>) {
        let Ok(mut sketch) = sketches.recv() else { return };
        let mut patience = Patience::new();
        loop {
            let rest = match self.speak(&sketch) {
                Ok(()) => {
                    patience = Patience::new();
                    LOOK
                }
                Err(error) => {
                    self.control = None;
                    self.board.problem("BGP", Some(error.to_string()));
                    patience.next()
                }
            };
            match sketches.recv_timeout(rest) {
                Ok(newer) => sketch = sketches.try_iter().last().unwrap_or(newer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Sees to it that BIRD runs with the config that is wanted now.
    fn speak(&mut self, sketch: &Sketch) -> Result<()> {
        let passwords = Passwords::new(self.bird.passwords.clone());
        let config::Config { text, problems } = config::config(&self.node, sketch, &passwords);
        if self.written.as_ref() != Some(&text) {
            self.write(&text)?;
        }
        if self.control.is_none() {
            self.control = Some(self.connect()?);
            self.written = None;
        }
        let Some(control) = &mut self.control else { return Ok(()) };
        if self.written.as_ref() != Some(&text) {
            control.configure()?;
            info!("BIRD has its config");
            self.written = Some(text);
        }
        let sessions = control.sessions()?;
        let mut status = self.board.lock();
        for (session, state) in
            sessions.iter().filter(|(name, state)| status.sessions.get(*name) != Some(*state))
        {
            info!(session, state, "BGP");
        }
        status.sessions = sessions;
        drop(status);
        self.board.problem("BGP", (!problems.is_empty()).then(|| problems.join("; ")));
        Ok(())
    }

    /// Only we read it: it may hold passwords.
    fn write(&self, text: &str) -> Result<()> {
        let (path, fresh) = (self.bird.config(), self.bird.folder.join("bird.conf.new"));
        // One that is left over may be open to others.
        let _ = fs::remove_file(&fresh);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&fresh);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(Error::file("write", &path))
    }

    /// To the BIRD that runs, or to a new one.
    fn connect(&self) -> Result<Control> {
        match Control::open(&self.bird.socket()) {
            Ok(control) => Ok(control),
            Err(Error::File { source, .. }) if is_absent(&source) => self.launch(),
            Err(error) => Err(error),
        }
    }

    fn launch(&self) -> Result<Control> {
        let Bird { program, .. } = &self.bird;
        let failed = |why: String| Error::Bird { what: format!("({})", program.display()), why };
        let run = Command::new(program)
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
            .output();
        let output = run.map_err(|error| {
            failed(format!("{error}: is BIRD 2 installed (Debian: bird2)? Another place is told with --bird"))
        })?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        info!(program = %program.display(), "BIRD was started");
        let until = Instant::now() + STARTING;
        loop {
            match Control::open(&self.bird.socket()) {
                Err(Error::File { source, .. }) if is_absent(&source) && Instant::now() < until => {
                    std::thread::park_timeout(Patience::FIRST);
                }
                other => return other,
            }
        }
    }
}

/// Nobody listens there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// The sessions, by their names, and how they are.
pub(crate) type Sessions = BTreeMap<String, String>;

fn readable(file: &impl AsFd, patience: Duration) -> io::Result<bool> {
    Ok(sys::readable(&[file.as_fd()], patience)?.contains(&true))
}

fn named(path: &Path) -> String {
    path.display().to_string()
}
