//! A minimal client of the system's D-Bus: call a method of a service and read its response.
//!
//! The client blocks, because a plugin has nothing else to do meanwhile. Every exchange has a deadline, and every
//! received value is validated: docs/decisions/0012-dbus-by-hand.md.

mod address;
mod error;
mod message;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use error::TIMEOUT;
use message::{Kind, Malformed, Prefix};

pub(super) use error::Error;
pub(super) use message::{Call, Message};

const HANDSHAKE: &[u8] = b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n";
/// More than a line of the handshake has.
const MAX_LINE: u64 = 512;
type Result<T> = std::result::Result<T, Error>;

/// A connection to the bus.
#[derive(Debug)]
pub(super) struct Bus {
    socket: BufReader<Socket>,
    serial: u32,
}

impl Bus {
    /// Connects to the system's bus: at `DBUS_SYSTEM_BUS_ADDRESS`, or at the default address.
    pub fn system() -> Result<Bus> {
        let mut bus = Bus::over(address::connect()?);
        bus.authenticate()?;
        Ok(bus)
    }

    fn over(stream: UnixStream) -> Bus {
        Bus { socket: BufReader::new(Socket { stream, deadline: Instant::now() }), serial: 0 }
    }

    /// The handshake, sent at once and in the form of sd-bus, which every bus accepts. The name for EXTERNAL stays
    /// empty, because the kernel passes the credentials. The first message must be Hello.
    fn authenticate(&mut self) -> Result<()> {
        self.send(HANDSHAKE)?;
        let mut line = self.line()?;
        if line == "DATA" {
            line = self.line()?;
        }
        if line != "OK" && !line.starts_with("OK ") {
            return Err(Error::Rejected(line));
        }
        self.call(&Call::to_bus("Hello", &[])).map(drop)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        (&mut self.socket).take(MAX_LINE).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            None if line.is_empty() => Err(Error::Rejected("connection closed".into())),
            None => Err(Malformed("the handshake is not in lines").into()),
        }
    }

    /// Calls a method and waits for its response.
    pub fn call(&mut self, call: &Call<'_>) -> Result<Message> {
        self.serial += 1;
        let bytes = call.encode(self.serial)?;
        self.send(&bytes)?;
        self.response()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let socket = self.socket.get_mut();
        socket.deadline = Instant::now() + TIMEOUT;
        Ok(socket.write_all(bytes)?)
    }

    /// The response to the last call. Other messages, such as the signal NameAcquired, are skipped.
    fn response(&mut self) -> Result<Message> {
        loop {
            let message = self.receive()?;
            if message.reply_to != Some(self.serial) {
                continue;
            }
            match message.kind {
                Kind::Return => return Ok(message),
                Kind::Error => {
                    let text = message.text().unwrap_or_default();
                    return Err(Error::Refused { name: message.error.unwrap_or_default(), text });
                }
                Kind::Other => {}
            }
        }
    }

    fn receive(&mut self) -> Result<Message> {
        let mut bytes = [0; Prefix::LENGTH];
        self.socket.read_exact(&mut bytes)?;
        let prefix = Prefix::decode(&bytes)?;
        let mut rest = vec![0; prefix.rest()];
        self.socket.read_exact(&mut rest)?;
        Ok(prefix.message(&rest)?)
    }
}

/// A socket with one deadline for a whole exchange, however slowly the bytes arrive.
#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    deadline: Instant,
}

impl Socket {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The outcome of a handshake with a peer that sends these bytes.
    fn authenticate_with(response: &'static [u8]) -> Result<()> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let peer = thread::spawn(move || {
            let mut received = [0; HANDSHAKE.len()];
            theirs.read_exact(&mut received).unwrap();
            assert_eq!(received, HANDSHAKE);
            theirs.write_all(response).unwrap();
            // Closed after everything was read, so that the response is not lost.
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = theirs.read_to_end(&mut Vec::new());
        });
        let outcome = Bus::over(ours).authenticate();
        peer.join().unwrap();
        outcome
    }

    #[test]
    fn a_refused_authentication_is_an_error() {
        let rejected = authenticate_with(b"REJECTED EXTERNAL\r\n").unwrap_err();
        assert!(matches!(&rejected, Error::Rejected(why) if why == "REJECTED EXTERNAL"), "{rejected}");
        assert!(matches!(authenticate_with(b"").unwrap_err(), Error::Rejected(_)));
    }

    #[test]
    fn a_peer_that_does_not_speak_dbus_is_an_error() {
        let long = authenticate_with(&[b'x'; 4096]).unwrap_err();
        assert!(matches!(long, Error::Malformed(_)), "{long}");
        let garbage = authenticate_with(b"OK 0\r\nGET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap_err();
        assert!(matches!(garbage, Error::Malformed(_)), "{garbage}");
        let cut = authenticate_with(b"DATA\r\nOK 0\r\nl\x02\x01\x01").unwrap_err();
        assert!(matches!(cut, Error::Io(_)), "{cut}");
    }

    #[test]
    fn an_absent_service_is_distinguished_from_a_refusal() {
        let error = |name: &str| Error::Refused { name: name.into(), text: String::new() };
        assert!(error("org.freedesktop.DBus.Error.ServiceUnknown").is_absent());
        assert!(Error::Absent("/run/dbus/system_bus_socket".into()).is_absent());
        assert!(!error("org.freedesktop.DBus.Error.AccessDenied").is_absent());
        assert!(!Error::Timeout.is_absent());
    }
}
