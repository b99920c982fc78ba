//! A daemon's door: a socket that only root may use, and somebody who answers at it.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::line;

/// Who knocks says at once what it wants, and takes the answer at once.
const SHORT: Duration = Duration::from_secs(5);

/// Opens a door at `path`, and answers at it with `answer` for as long as the program lives, to several at once. An `Err` is for a
/// question that makes no sense.
pub fn open<Q, A>(path: &Path, answer: impl Fn(io::Result<Q>) -> A + Send + Sync + 'static) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let answer = Arc::new(answer);
    let serve = move || {
        for visitor in listener.incoming() {
            let Ok(visitor) = visitor else { continue };
            let answer = answer.clone();
            // One who cannot be answered for want of a thread is hung up on, and told so by that.
            let _ = thread().spawn(move || receive(&visitor, &*answer));
        }
    };
    thread().spawn(serve).map(drop)
}

fn thread() -> std::thread::Builder {
    std::thread::Builder::new().name("door".into())
}

fn receive<Q, A>(visitor: &UnixStream, answer: &dyn Fn(io::Result<Q>) -> A) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    visitor.set_read_timeout(Some(SHORT))?;
    visitor.set_write_timeout(Some(SHORT))?;
    // Who says nothing has only looked whether anybody is there.
    match line::hear(visitor).transpose() {
        None => Ok(()),
        Some(question) => line::send(visitor, &answer(question)),
    }
}
