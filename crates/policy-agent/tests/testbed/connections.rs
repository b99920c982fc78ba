//! Connections between pods, and whether their packets take the fast path.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use podwire_fast_path::FastPath;

use super::{fast_path, Endpoint};

pub const WAIT: Duration = Duration::from_secs(30);
pub const PORT: u16 = 7000;
/// conntrack counts a UDP flow as assured after traffic in both directions for two seconds.
const ASSURED: Duration = Duration::from_secs(3);

/// The node's fast path. These tests make no sense without it.
pub fn fast() -> Option<FastPath> {
    let fast_path = fast_path();
    if fast_path.is_none() {
        println!("PODWIRE_FAST_PATH is off");
    }
    fast_path
}

pub fn packets(fast_path: &FastPath) -> u64 {
    let status = fast_path.status();
    status.to_pods.packets + status.to_nodes.packets
}

/// A TCP connection between two endpoints, with both ends.
pub fn connection(from: &Endpoint, to: &Endpoint, address: &str) -> [TcpStream; 2] {
    let listener = to.run_inside(|| TcpListener::bind((address, PORT)).unwrap());
    let target = SocketAddr::new(address.parse().unwrap(), PORT);
    let client = from.run_inside(|| TcpStream::connect_timeout(&target, WAIT).unwrap());
    let server = listener.accept().unwrap().0;
    for end in [&client, &server] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(WAIT)).unwrap();
    }
    [client, server]
}

/// Sends a byte each way.
pub fn ping_pong([client, server]: &mut [TcpStream; 2]) {
    let mut byte = [1];
    client.write_all(&byte).unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(&byte).unwrap();
    client.read_exact(&mut byte).unwrap();
}

/// The number of packets that took the fast path during `count` round trips.
pub fn fast_packets(fast_path: &FastPath, ends: &mut [TcpStream; 2], count: u64) -> u64 {
    let before = packets(fast_path);
    (0..count).for_each(|_| ping_pong(ends));
    packets(fast_path) - before
}

/// Sends until packets take the fast path.
pub fn until_fast(fast_path: &FastPath, ends: &mut [TcpStream; 2]) {
    let begin = Instant::now();
    while fast_packets(fast_path, ends, 10) < 10 {
        assert!(begin.elapsed() < WAIT, "packets stay on the normal path: {:?}", fast_path.status());
    }
}

/// A UDP flow from one endpoint to another, with both ends, which conntrack counts as assured.
pub fn datagrams(from: &Endpoint, to: &Endpoint) -> [UdpSocket; 2] {
    let (a, b) = (from.ip4.clone(), to.ip4.clone());
    let one = from.run_inside(|| UdpSocket::bind((a.as_str(), PORT)).unwrap());
    let two = to.run_inside(|| UdpSocket::bind((b.as_str(), PORT)).unwrap());
    one.connect((b.as_str(), PORT)).unwrap();
    two.connect((a.as_str(), PORT)).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < ASSURED {
        exchange(&one, &two);
        thread::sleep(Duration::from_millis(50));
    }
    [one, two]
}

pub fn exchange(one: &UdpSocket, two: &UdpSocket) {
    for (from, to) in [(one, two), (two, one)] {
        from.send(b"?").unwrap();
        to.set_read_timeout(Some(WAIT)).unwrap();
        to.recv(&mut [0; 9]).unwrap();
    }
}

/// The datagrams that arrive within a time.
pub fn arriving(socket: &UdpSocket, within: Duration) -> Vec<Vec<u8>> {
    let (end, mut all) = (Instant::now() + within, Vec::new());
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).unwrap();
        let mut buffer = [0; 64];
        if let Ok(length) = socket.recv(&mut buffer) {
            all.push(buffer[..length].to_vec());
        }
    }
    all
}

pub fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < WAIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
