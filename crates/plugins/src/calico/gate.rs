//! `readiness_gates`: addresses of the web that must answer before a pod is connected.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use podwire_cni_spec::{code, Error};

/// How long a gate may stay closed, and how often it is looked at, as Calico does it.
const LONGEST: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Where a gate is: `http://HOST[:PORT][/PATH]`. A plugin has no TLS.
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

    /// Waits until it is open.
    pub(super) fn pass(&self) -> Result<(), Error> {
        let until = Instant::now() + LONGEST;
        loop {
            let why = match self.ask() {
                Ok(200..=399) => return Ok(()),
                Ok(status) => format!("it answers {status}"),
                Err(error) => error.to_string(),
            };
            if Instant::now() + PAUSE > until {
                let text = format!("readiness gate {} is not ready: {why}", self.url);
                let hint = "see what serves that address, or leave it out of readiness_gates";
                return Err(Error::new(code::TRY_AGAIN, text).with_details(hint));
            }
            // Nobody tells when it opens.
            std::thread::park_timeout(PAUSE);
        }
    }

    /// The status that it answers with.
    fn ask(&self) -> std::io::Result<u16> {
        let is_bare = self.host.ends_with(']') || !self.host.contains(':');
        let target = if is_bare { format!("{}:80", self.host) } else { self.host.clone() };
        let nobody = || std::io::Error::other(format!("{target} has no address"));
        let address = target.to_socket_addrs()?.next().ok_or_else(nobody)?;
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        write!(stream, "GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.host)?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        let status = std::str::from_utf8(&line).ok().filter(|line| line.starts_with("HTTP/1."));
        let status = status.and_then(|line| line.get(9..12)?.parse().ok());
        status.ok_or_else(|| std::io::Error::other("it does not speak HTTP"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a gate makes of a server that answers once, with these words.
    fn answered(words: &'static str) -> std::io::Result<u16> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate::parse(&format!("http://{}/ready?x=1", listener.local_addr().unwrap())).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            // All of it: who hangs up with something unread takes his answer back.
            while !request.ends_with(b"\r\n\r\n") {
                let mut one = [0];
                stream.read_exact(&mut one).unwrap();
                request.push(one[0]);
            }
            stream.write_all(words.as_bytes()).unwrap();
            request
        });
        let status = gate.ask();
        assert!(server.join().unwrap().starts_with(b"GET /ready?x=1 HTTP/1.0\r\n"));
        status
    }

    #[test]
    fn a_gate_is_open_when_it_answers_well() {
        assert_eq!(answered("HTTP/1.1 204 No Content\r\n\r\n").unwrap(), 204);
        assert_eq!(answered("HTTP/1.0 503 Unavailable\r\n\r\n").unwrap(), 503);
        assert!(answered("SSH-2.0-OpenSSH_9.9").is_err());
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in ["https://x/", "x", "http:///path", "http://x/a b", "http://x/\r\nHost: y"] {
            assert!(Gate::parse(url).unwrap_err().msg.contains("readiness_gates"), "{url}");
        }
        assert_eq!(Gate::parse("http://[::1]:80").unwrap().path, "/");
    }
}
