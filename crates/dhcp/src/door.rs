//! Where plugins come in: the socket that they connect to, and those who have not yet said what they want.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{Request, Response};
use podwire_agent_ipc::message;
use podwire_netlink::sys;

use crate::grant::Moment;
use crate::{Error, Result};

/// What systemd passes on begins at this descriptor (sd_listen_fds(3)).
const FIRST_PASSED: i32 = 3;
/// Whoever connects has this long to say what he wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nobody is kept waiting by somebody who does not read his answer.
const ANSWERING: Duration = Duration::from_secs(1);

/// The listening socket.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    /// Ours to remove, unless systemd made it.
    made: Option<PathBuf>,
}

impl Door {
    /// The socket that was passed on, else a new one at `path`.
    pub(crate) fn open(passed: Option<UnixListener>, path: &Path) -> Result<Door> {
        let door = match passed {
            Some(listener) => Door { listener, made: None },
            None => Door { listener: listen(path)?, made: Some(path.to_owned()) },
        };
        door.listener.set_nonblocking(true).map_err(Error::file("listen on", path))?;
        Ok(door)
    }

    /// The next visitor, if one is waiting.
    pub(crate) fn visitor(&self, now: Moment) -> Option<Visitor> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Visitor { stream, said: Vec::new(), until: now + PATIENCE })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The socket that a service manager opened for this very process.
pub(crate) fn passed() -> Result<Option<UnixListener>> {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    match (variable("LISTEN_PID"), variable("LISTEN_FDS")) {
        (Some(process), Some(1)) if process == std::process::id() => {
            let socket = sys::duplicate(FIRST_PASSED).map_err(Error::io("take over the passed socket"))?;
            Ok(Some(UnixListener::from(socket)))
        }
        (Some(process), Some(count)) if process == std::process::id() && count > 1 => {
            Err(Error::Other(format!("one socket was expected from the service manager, not {count}")))
        }
        _ => Ok(None),
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(Error::Other(format!("another DHCP daemon listens on {path:?}")));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file("make folder", folder))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::File { doing: "remove old socket", path: path.to_owned(), source: error })
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(Error::file("listen on", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::file("protect", path))?;
    Ok(listener)
}

/// A plugin at the door.
#[derive(Debug)]
pub(crate) struct Visitor {
    stream: UnixStream,
    said: Vec<u8>,
    /// Until when it is listened to.
    pub(crate) until: Moment,
}

/// What a visitor has said so far.
#[derive(Debug)]
pub(crate) enum Said {
    /// Not yet all.
    Part,
    /// What it wants.
    Request(Request),
    /// Nothing that makes sense, or it went away.
    Nothing,
}

impl Visitor {
    /// Reads what there is to read.
    pub(crate) fn listen(&mut self) -> Said {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Said::Nothing,
                Ok(length) => self.said.extend(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Said::Part,
                Err(_) => return Said::Nothing,
            }
            if let Some(end) = self.said.iter().position(|byte| *byte == b'\n') {
                return serde_json::from_slice(&self.said[..end]).map_or(Said::Nothing, Said::Request);
            }
            if self.said.len() as u64 > message::MAX_LENGTH {
                return Said::Nothing;
            }
        }
    }

    /// Whether it hung up while it was waiting.
    pub(crate) fn has_left(&mut self) -> bool {
        let mut buffer = [0; 64];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Answers. An error means that nobody heard it.
    pub(crate) fn answer(self, answer: &Response) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(ANSWERING))?;
        message::write(&self.stream, answer)
    }
}

impl AsFd for Visitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
