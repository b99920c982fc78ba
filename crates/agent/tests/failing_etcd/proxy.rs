//! A wire between the store's client and etcd, over which answers take as long as the test says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

pub struct Proxy {
    pub url: String,
    /// In milliseconds.
    delay: Arc<AtomicU64>,
}

impl Proxy {
    pub fn to(server: &str) -> Proxy {
        let target = server.rsplit('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let delay = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&delay);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // A server that is away closes the connection, as the client sees it.
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let delay = Arc::clone(&shared);
                std::thread::spawn(move || carry_late(far, near, &delay));
            }
        });
        Proxy { url, delay }
    }

    /// Every answer takes that long from now on.
    pub fn slow_down(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

fn carry_late(mut from: TcpStream, mut to: TcpStream, delay: &AtomicU64) {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + Duration::from_millis(delay.load(Ordering::SeqCst));
        if sender.send((due, buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}
