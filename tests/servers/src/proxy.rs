//! A TCP proxy between a client and a server, whose connections a test can cut or slow down.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

/// A running proxy. Its threads end with the process.
pub struct TcpProxy {
    /// The URL that clients use instead of the server's.
    pub url: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The open connections; `None` while the proxy is cut.
    open: Mutex<Option<Vec<TcpStream>>>,
    delay_millis: AtomicU64,
}

impl TcpProxy {
    /// Starts a proxy to the server at `url`.
    pub fn start(url: &str) -> TcpProxy {
        let target = url.rsplit('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { open: Mutex::new(Some(Vec::new())), ..Shared::default() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // If the server does not accept, the client sees a closed connection.
                if let Ok(far) = TcpStream::connect(&target) {
                    connect(near, far, &accepting);
                }
            }
        });
        TcpProxy { url, shared }
    }

    /// Closes all connections, and every new one until [`restore`](TcpProxy::restore).
    pub fn cut(&self) {
        for stream in self.shared.open.lock().unwrap().take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub fn restore(&self) {
        self.shared.open.lock().unwrap().get_or_insert_default();
    }

    /// Delays every response by this time from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_millis.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

fn connect(near: TcpStream, far: TcpStream, shared: &Arc<Shared>) {
    if let Some(open) = &mut *shared.open.lock().unwrap() {
        open.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
    } else {
        return;
    }
    let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let shared = Arc::clone(shared);
    std::thread::spawn(move || forward_delayed(far, near, &shared.delay_millis));
}

/// Forwards responses. One thread reads and one writes, so that a delay does not add up over the pieces of a response.
fn forward_delayed(mut from: TcpStream, mut to: TcpStream, delay_millis: &AtomicU64) {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + Duration::from_millis(delay_millis.load(Ordering::SeqCst));
        if sender.send((due, buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}
