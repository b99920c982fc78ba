//! `readiness_gates`: URLs that must respond before a pod is connected.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use podwire_cni_spec::{code, Error};

/// The total time to wait for a gate, and the poll interval, as in Calico's plugin.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of one HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The URL of a gate: `http://HOST[:PORT][/PATH]`. Plugins have no TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    url: String,
    host: String,
    path: String,
}

impl Gate {
    pub(super) fn parse(url: &str) -> Result<Gate, Error> {
        let wrong = || {
            let text = format!("readiness_gates: {url:?} is not supported, only http://HOST:PORT/PATH");
            Error::invalid_config(text)
        };
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(wrong());
        }
        Ok(Gate { url: url.into(), host: host.into(), path: format!("/{path}") })
    }

    /// Waits until the URL responds with a status from 200 to 399.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let why = match self.get() {
                Ok(200..=399) => return Ok(()),
                Ok(status) => format!("status {status}"),
                Err(error) => error.to_string(),
            };
            if Instant::now() + POLL_INTERVAL > deadline {
                let text = format!("readiness gate {} is not ready: {why}", self.url);
                let hint = "check the server of that URL, or remove the URL from readiness_gates";
                return Err(Error::new(code::TRY_AGAIN, text).with_details(hint));
            }
            // A plain sleep: a URL can only be polled.
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The HTTP status of one GET request.
    fn get(&self) -> std::io::Result<u16> {
        let is_bare = self.host.ends_with(']') || !self.host.contains(':');
        let target = if is_bare { format!("{}:80", self.host) } else { self.host.clone() };
        let no_address = || std::io::Error::other(format!("{target} has no address"));
        let address = target.to_socket_addrs()?.next().ok_or_else(no_address)?;
        let mut stream = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        write!(stream, "GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.host)?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        let status = std::str::from_utf8(&line).ok().filter(|line| line.starts_with("HTTP/1."));
        let status = status.and_then(|line| line.get(9..12)?.parse().ok());
        status.ok_or_else(|| std::io::Error::other("the response is not HTTP"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status that a gate reads from a server with this response.
    fn status_of(response: &'static str) -> std::io::Result<u16> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate::parse(&format!("http://{}/ready?x=1", listener.local_addr().unwrap())).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            // The whole request: closing a socket with unread data would reset the connection.
            while !request.ends_with(b"\r\n\r\n") {
                let mut one = [0];
                stream.read_exact(&mut one).unwrap();
                request.push(one[0]);
            }
            stream.write_all(response.as_bytes()).unwrap();
            request
        });
        let status = gate.get();
        assert!(server.join().unwrap().starts_with(b"GET /ready?x=1 HTTP/1.0\r\n"));
        status
    }

    #[test]
    fn the_status_of_the_response_is_read() {
        assert_eq!(status_of("HTTP/1.1 204 No Content\r\n\r\n").unwrap(), 204);
        assert_eq!(status_of("HTTP/1.0 503 Unavailable\r\n\r\n").unwrap(), 503);
        assert!(status_of("SSH-2.0-OpenSSH_9.9").is_err());
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in ["https://x/", "x", "http:///path", "http://x/a b", "http://x/\r\nHost: y"] {
            assert!(Gate::parse(url).unwrap_err().msg.contains("readiness_gates"), "{url}");
        }
        assert_eq!(Gate::parse("http://[::1]:80").unwrap().path, "/");
    }
}
