//! The server: a unix socket that only root may use, and threads that answer its requests.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::message;

/// Clients send their request at once and read the response at once.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of idle threads that wait for the next connection.
const MAX_IDLE: usize = 4;
/// The pause after a failed accept(2).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listens at `path` and answers every request with `handler` until the process ends, several at once. The handler gets
/// an `Err` for a message that it cannot decode.
pub fn serve<Q, R>(
    path: &Path,
    handler: impl Fn(io::Result<Q>) -> R + Send + Sync + 'static,
) -> io::Result<()>
where
    Q: DeserializeOwned,
    R: Serialize,
{
    if let Some(dir) = path.parent() {
        podwire_fs::create_state_dir(dir)?;
    }
    // Bound under another name and renamed: the path never disappears while a new agent takes over. A plugin that found
    // no socket would conclude that this node has no agent.
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    spawn_worker(&Arc::new(Server { listener, handler, idle: AtomicUsize::new(1) }))
}

/// The listening socket and its workers. One worker always waits in accept(2): it answers sooner than a new thread.
struct Server<F> {
    listener: UnixListener,
    handler: F,
    /// The number of workers that wait for a connection, including those that are being spawned for it.
    idle: AtomicUsize,
}

impl<F> Server<F> {
    /// A worker accepted a connection. Returns true if no other worker is idle: then the caller spawns one.
    fn leave_idle(&self) -> bool {
        let others = |idle: usize| (idle > 1).then(|| idle - 1);
        self.idle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, others).is_err()
    }

    /// A worker closed its connection. Returns false if enough workers are idle: then this one ends.
    fn enter_idle(&self) -> bool {
        let one_more = |idle: usize| (idle < MAX_IDLE).then(|| idle + 1);
        self.idle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }
}

fn spawn_worker<Q, R, F>(server: &Arc<Server<F>>) -> io::Result<()>
where
    Q: DeserializeOwned,
    R: Serialize,
    F: Fn(io::Result<Q>) -> R + Send + Sync + 'static,
{
    let server = server.clone();
    std::thread::Builder::new().name("ipc-server".into()).spawn(move || run_worker(&server)).map(drop)
}

/// Serves one connection after the other until more workers are idle than needed.
fn run_worker<Q, R, F>(server: &Arc<Server<F>>)
where
    Q: DeserializeOwned,
    R: Serialize,
    F: Fn(io::Result<Q>) -> R + Send + Sync + 'static,
{
    loop {
        let Ok((stream, _)) = server.listener.accept() else {
            // The process has too many open files (EMFILE). The socket stays readable, so there is nothing to poll.
            std::thread::sleep(ACCEPT_RETRY);
            continue;
        };
        if server.leave_idle() && spawn_worker(server).is_err() {
            // Without a thread for the next connection, that connection waits until this one ends.
            server.idle.fetch_sub(1, Ordering::SeqCst);
        }
        let _ = serve_connection(&stream, &server.handler);
        if !server.enter_idle() {
            return;
        }
    }
}

fn serve_connection<Q, R>(stream: &UnixStream, handler: &dyn Fn(io::Result<Q>) -> R) -> io::Result<()>
where
    Q: DeserializeOwned,
    R: Serialize,
{
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut has_answered = false;
    loop {
        let request = match message::read(stream) {
            // The client probed the socket, or has no further request.
            Ok(None) => return Ok(()),
            Err(_) if has_answered => return Ok(()),
            Ok(Some(request)) => Ok(request),
            Err(error) => Err(error),
        };
        let is_valid = request.is_ok();
        message::write(stream, &handler(request))?;
        if !is_valid {
            return Ok(());
        }
        has_answered = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::client;
    use crate::dhcp::{Request, Response};

    #[test]
    fn concurrent_requests_are_answered_at_once_and_few_threads_stay() {
        const MANY: usize = 32;
        let path = std::env::temp_dir().join(format!("podwire-server-{}", std::process::id()));
        // No request is answered before all have arrived.
        let all = Arc::new(Barrier::new(MANY));
        let (together, count) = (all.clone(), Arc::new(AtomicUsize::new(0)));
        let answered = count.clone();
        serve(&path, move |_: io::Result<Request>| {
            if answered.fetch_add(1, Ordering::SeqCst) < MANY {
                together.wait();
            }
            Response::Done
        })
        .unwrap();
        let ping = || client::request(&path, &Request::Ping, Duration::from_secs(20)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(ping);
            }
        });
        for _ in 0..MANY {
            assert_eq!(ping(), Response::Done);
        }
        // A connection can carry several requests.
        let first = client::send(&path, &Request::Ping, Duration::from_secs(20)).unwrap();
        let (response, connection) = first.response_and_connection().unwrap();
        let (second, connection) =
            connection.send(&Request::Ping).unwrap().response_and_connection().unwrap();
        assert_eq!((response, second), (Response::Done, Response::Done));
        drop(connection);
        assert_eq!(count.load(Ordering::SeqCst), 2 * MANY + 2);
        // A worker that has answered may not have ended yet.
        let workers = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            tasks.map(name).filter(|name| name.trim() == "ipc-server").count()
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while workers() > MAX_IDLE && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(workers() <= MAX_IDLE, "{} threads", workers());
        fs::remove_file(&path).unwrap();
    }
}
