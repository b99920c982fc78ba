//! The traffic of the demo: pings, a small web server, and a throughput measurement.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

/// Generous, for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of the measurement: about one second at the demo's limit.
const LOAD: usize = 2_000_000;

/// Sends echo requests from the namespace of the calling thread until one is answered. Returns the seconds until the answer.
pub(super) fn ping(to: IpAddr) -> Result<f64> {
    let time = podwire_verify::ping(to, TIMEOUT);
    Ok(time.with_context(|| format!("no answer within {} s", TIMEOUT.as_secs()))?.as_secs_f64())
}

fn listen(port: u16) -> Result<TcpListener> {
    let any = |ip: IpAddr| TcpListener::bind(SocketAddr::new(ip, port));
    any(IpAddr::from([0u8; 16])).or_else(|_| any(IpAddr::from([0u8; 4]))).context("listen in the pod")
}

/// Starts a web server in the namespace of the calling thread that answers every request with `body`.
pub(super) fn serve(port: u16, body: &'static str) -> Result<JoinHandle<()>> {
    let listener = listen(port)?;
    Ok(std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    }))
}

/// Gets the body of a web server's answer.
pub(super) fn get(address: &str, port: u16) -> Result<String> {
    let to = SocketAddr::new(address.parse()?, port);
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET / HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").context("the answer has no body")?.1;
    Ok(body.to_string())
}

/// Accepts one connection, discards the data, and returns the received bits per second.
pub(super) fn sink(port: u16) -> Result<JoinHandle<Result<f64>>> {
    let listener = listen(port)?;
    Ok(std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let (start, mut total, mut buffer) = (Instant::now(), 0, vec![0; 64 * 1024]);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(total as f64 * 8.0 / start.elapsed().as_secs_f64()),
                length => total += length,
            }
        }
    }))
}

/// Sends the load to a sink. Returns the received bits per second.
pub(super) fn measure(to: IpAddr, port: u16, sink: JoinHandle<Result<f64>>) -> Result<f64> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(to, port), TIMEOUT)?;
    stream.write_all(&vec![0; LOAD])?;
    drop(stream);
    sink.join().unwrap_or_else(|_| bail!("the receiver panicked"))
}
