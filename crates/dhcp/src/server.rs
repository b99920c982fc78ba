//! The daemon's unix socket, and connections whose request is not complete yet.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{Request, Response};
use podwire_agent_ipc::message;
use podwire_fs::FileError;
use podwire_netlink::sys;

use crate::grant::BootTime;
use crate::{Error, Result};

/// The first descriptor that systemd passes (sd_listen_fds(3)).
const FIRST_PASSED: i32 = 3;
/// The time limit for a request after connecting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for writing a response: a client that does not read must not block the daemon.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The listening socket.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    /// The file to remove at the end; `None` if systemd created it.
    created: Option<PathBuf>,
}

impl Server {
    /// Uses the socket that was passed, or creates one at `path`.
    pub(crate) fn open(passed: Option<UnixListener>, path: &Path) -> Result<Server> {
        let server = match passed {
            Some(listener) => Server { listener, created: None },
            None => Server { listener: listen(path)?, created: Some(path.to_owned()) },
        };
        server.listener.set_nonblocking(true).map_err(FileError::at("listen on", path))?;
        Ok(server)
    }

    /// The next connection, if one is waiting.
    pub(crate) fn accept(&self, now: BootTime) -> Option<Connection> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Connection { stream, received: Vec::new(), deadline: now + REQUEST_TIMEOUT })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.created {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The socket that a service manager opened for this process.
pub(crate) fn passed() -> Result<Option<UnixListener>> {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    match (variable("LISTEN_PID"), variable("LISTEN_FDS")) {
        (Some(process), Some(1)) if process == std::process::id() => {
            let socket = sys::duplicate(FIRST_PASSED).map_err(Error::io("use the passed socket"))?;
            Ok(Some(UnixListener::from(socket)))
        }
        (Some(process), Some(count)) if process == std::process::id() && count > 1 => {
            Err(Error::Other(format!("the service manager passed {count} sockets instead of one")))
        }
        _ => Ok(None),
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(Error::Other(format!("another DHCP daemon listens on {path:?}")));
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(FileError::at("create directory", dir))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(FileError::at("remove", path)(error).into())
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(FileError::at("listen on", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(FileError::at("set the permissions of", path))?;
    Ok(listener)
}

/// A connection of a plugin.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    /// When it is closed if its request is not complete.
    pub(crate) deadline: BootTime,
}

/// What was received so far.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A part of the request.
    Incomplete,
    /// The request.
    Complete(Request),
    /// An invalid request, or the client closed the connection.
    Failed,
}

impl Connection {
    /// Reads what is available.
    pub(crate) fn read(&mut self) -> Progress {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Progress::Failed,
                Ok(length) => self.received.extend(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Incomplete,
                Err(_) => return Progress::Failed,
            }
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                return serde_json::from_slice(&self.received[..end])
                    .map_or(Progress::Failed, Progress::Complete);
            }
            if self.received.len() as u64 > message::MAX_LENGTH {
                return Progress::Failed;
            }
        }
    }

    /// Whether the client closed the connection while it waits for its response.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 64];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Sends the response. An error means that the client did not receive it.
    pub(crate) fn respond(self, response: &Response) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        message::write(&self.stream, response)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
