//! The blocking client: one request, one response; a connection can be kept for the next request.

use std::io;
use std::marker::PhantomData;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::message::{self, Request};

/// Sends `request` to the daemon at `socket` and returns its response. The timeout applies to connecting and to the
/// response, each.
pub fn request<R: Request>(socket: &Path, request: &R, timeout: Duration) -> io::Result<R::Response> {
    send(socket, request, timeout)?.response()
}

/// Sends `request` and returns before the response arrives, so that the caller can do other work meanwhile.
pub fn send<R: Request>(socket: &Path, request: &R, timeout: Duration) -> io::Result<Sent<R::Response>> {
    let stream = podwire_netlink::sys::connect_unix(&SocketAddr::from_pathname(socket)?, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    Connection(stream).send(request)
}

/// Whether a daemon accepts connections at `socket`.
pub fn probe(socket: &Path, timeout: Duration) -> io::Result<()> {
    podwire_netlink::sys::connect_unix(&SocketAddr::from_pathname(socket)?, timeout).map(drop)
}

/// A request whose response has not been read yet.
#[derive(Debug)]
pub struct Sent<R> {
    stream: UnixStream,
    response: PhantomData<R>,
}

/// A connection without an outstanding request.
#[derive(Debug)]
pub struct Connection(UnixStream);

impl Connection {
    /// Sends the next request. A new connection would cost the server one more wakeup.
    pub fn send<R: Request>(self, request: &R) -> io::Result<Sent<R::Response>> {
        message::write(&self.0, request)?;
        Ok(Sent { stream: self.0, response: PhantomData })
    }
}

impl<R: DeserializeOwned> Sent<R> {
    /// Waits for the response.
    pub fn response(self) -> io::Result<R> {
        self.response_and_connection().map(|(response, _)| response)
    }

    /// Waits for the response and keeps the connection open.
    pub fn response_and_connection(self) -> io::Result<(R, Connection)> {
        match message::read(&self.stream) {
            Ok(Some(response)) => Ok((response, Connection(self.stream))),
            Ok(None) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the daemon closed the connection without a response",
            )),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(io::Error::new(error.kind(), "the process that listens there is not a Podwire daemon"))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::dhcp::{Request, Response};
    use crate::Owner;

    fn release() -> Request {
        Request::Release { owner: Owner::new("lan", "c1", "eth0") }
    }

    /// Connections that a stalled daemon does not accept fill its queue; the next connect(2) would block for ever.
    #[test]
    fn connecting_to_a_stalled_daemon_times_out() {
        let path = std::env::temp_dir().join(format!("podwire-ipc-{}-full", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let _listener = UnixListener::bind(&path).unwrap();
        let call = |_| send(&path, &release(), Duration::from_millis(100));
        let refused = (0..1_000_000).find_map(|n| call(n).err()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
    }

    /// The client's result for a daemon that answers with `line`.
    fn response_to(line: &'static str) -> io::Result<Response> {
        let path = std::env::temp_dir().join(format!("podwire-ipc-{}-{}", std::process::id(), line.len()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            (&stream).write_all(line.as_bytes()).unwrap();
            request
        });
        let response = request(&path, &release(), Duration::from_secs(5));
        let received = daemon.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = r#"{"request":"release","owner":{"network":"lan","container":"c1","ifname":"eth0"}}"#;
        assert_eq!(received.trim_end(), text);
        response
    }

    #[test]
    fn request_and_response_are_one_line_each() {
        assert_eq!(response_to("{\"response\":\"done\"}\n").unwrap(), Response::Done);
        let refused = "HTTP/1.1 400 Bad Request\r\n";
        assert!(response_to(refused).unwrap_err().to_string().contains("not a Podwire daemon"));
        assert_eq!(response_to("").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
