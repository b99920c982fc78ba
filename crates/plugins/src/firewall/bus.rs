//! The system's D-Bus, as much of it as it takes to ask a service for something and to read its answer.
//!
//! A client that blocks, since a plugin has nothing else to do meanwhile. Every exchange has a deadline, and
//! nothing that comes from the socket is believed before it is checked: docs/decisions/0012-dbus-by-hand.md.

mod address;
mod message;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub(super) use message::{Call, Message};
use message::{Kind, Malformed, Prefix};

/// How long the bus and the service behind it may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
const HANDSHAKE: &[u8] = b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n";
/// A line of the handshake is shorter.
const LONGEST_LINE: u64 = 512;
/// The errors by which the bus says that nobody has the name that a call was for.
const NOBODY: [&str; 2] =
    ["org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner"];

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Nobody listens where the bus should be.
    #[error("no D-Bus at {0}")]
    Absent(String),
    /// The bus does not let this process in.
    #[error("the D-Bus lets nobody in: {0}")]
    Shut(String),
    /// Nothing was heard in time.
    #[error("no answer over the D-Bus within {} s", PATIENCE.as_secs())]
    Silent,
    /// The socket failed.
    #[error("D-Bus: {0}")]
    Io(io::Error),
    /// What came, or should have been sent, is no message.
    #[error("D-Bus: {0}")]
    Malformed(#[from] Malformed),
    /// The service, or the bus in its place, answered with an error.
    #[error("{text} ({name})")]
    Refused {
        /// The error's name.
        name: String,
        /// What it says to people.
        text: String,
    },
}

impl Error {
    /// Whether there is no bus, or nobody on it who has the name that was called.
    pub fn is_absent(&self) -> bool {
        match self {
            Error::Absent(_) => true,
            Error::Refused { name, .. } => NOBODY.contains(&name.as_str()),
            _ => false,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.kind() {
            // Which of the two a socket's timeout is depends on the platform.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent,
            _ => Error::Io(error),
        }
    }
}

type Result<T> = std::result::Result<T, Error>;

/// A connection to the bus.
#[derive(Debug)]
pub(super) struct Bus {
    socket: BufReader<Socket>,
    serial: u32,
}

impl Bus {
    /// The system's bus: `DBUS_SYSTEM_BUS_ADDRESS`, or where it always is.
    pub fn system() -> Result<Bus> {
        let mut bus = Bus::over(address::connect()?);
        bus.enter()?;
        Ok(bus)
    }

    fn over(stream: UnixStream) -> Bus {
        Bus { socket: BufReader::new(Socket { stream, end: Instant::now() }), serial: 0 }
    }

    /// The handshake, which is said at once and in the words of sd-bus, so that every bus knows it: the kernel
    /// tells the bus who we are, the name for EXTERNAL is left empty. Then the first message, which must be Hello.
    fn enter(&mut self) -> Result<()> {
        self.send(HANDSHAKE)?;
        let mut line = self.line()?;
        if line == "DATA" {
            line = self.line()?;
        }
        if line != "OK" && !line.starts_with("OK ") {
            return Err(Error::Shut(line));
        }
        self.call(&Call::to_bus("Hello", &[])).map(drop)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        (&mut self.socket).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            None if line.is_empty() => Err(Error::Shut("it hung up".into())),
            None => Err(Malformed("the handshake is not in lines").into()),
        }
    }

    /// Calls a method and waits for what it returns.
    pub fn call(&mut self, call: &Call<'_>) -> Result<Message> {
        self.serial += 1;
        let bytes = call.encode(self.serial)?;
        self.send(&bytes)?;
        self.answer()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let socket = self.socket.get_mut();
        socket.end = Instant::now() + PATIENCE;
        Ok(socket.write_all(bytes)?)
    }

    /// The answer to the last call. Whatever else comes, such as the bus's notice that we have a name now, is
    /// not for us.
    fn answer(&mut self) -> Result<Message> {
        loop {
            let message = self.receive()?;
            if message.answers != Some(self.serial) {
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

/// A socket that gives up when the time is over, however slowly the bytes trickle in.
#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    end: Instant,
}

impl Socket {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
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

    /// What comes of a handshake with somebody who reads ours and then says this.
    fn met_with(words: &'static [u8]) -> Result<()> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let peer = thread::spawn(move || {
            let mut heard = [0; HANDSHAKE.len()];
            theirs.read_exact(&mut heard).unwrap();
            assert_eq!(heard, HANDSHAKE);
            theirs.write_all(words).unwrap();
            // Closed when all was heard, so that nothing said here is lost.
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = theirs.read_to_end(&mut Vec::new());
        });
        let met = Bus::over(ours).enter();
        peer.join().unwrap();
        met
    }

    #[test]
    fn a_bus_that_lets_nobody_in_is_no_bus() {
        let shut = met_with(b"REJECTED EXTERNAL\r\n").unwrap_err();
        assert!(matches!(&shut, Error::Shut(why) if why == "REJECTED EXTERNAL"), "{shut}");
        assert!(matches!(met_with(b"").unwrap_err(), Error::Shut(_)));
    }

    #[test]
    fn a_peer_that_babbles_is_left() {
        let long = met_with(&[b'x'; 4096]).unwrap_err();
        assert!(matches!(long, Error::Malformed(_)), "{long}");
        let garbage = met_with(b"OK 0\r\nGET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap_err();
        assert!(matches!(garbage, Error::Malformed(_)), "{garbage}");
        let cut = met_with(b"DATA\r\nOK 0\r\nl\x02\x01\x01").unwrap_err();
        assert!(matches!(cut, Error::Io(_)), "{cut}");
    }

    #[test]
    fn a_name_that_nobody_has_is_told_from_a_refusal() {
        let error = |name: &str| Error::Refused { name: name.into(), text: String::new() };
        assert!(error("org.freedesktop.DBus.Error.ServiceUnknown").is_absent());
        assert!(Error::Absent("/run/dbus/system_bus_socket".into()).is_absent());
        assert!(!error("org.freedesktop.DBus.Error.AccessDenied").is_absent());
        assert!(!Error::Silent.is_absent());
    }
}
