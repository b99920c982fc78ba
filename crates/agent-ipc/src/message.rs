//! One message of the protocol: a line of JSON.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::Serialize;

/// The longest line that is read: enough for some fifty thousand attachments.
pub const MAX_LENGTH: u64 = 4 * 1024 * 1024;

/// A request and the type of its response.
pub trait Request: Serialize {
    /// The response.
    type Response: DeserializeOwned;
}

/// Reads one message; `None` if the peer closed the connection without sending one.
pub fn read<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<T>> {
    let mut line = String::new();
    BufReader::new(stream).take(MAX_LENGTH).read_line(&mut line).map_err(explain_timeout)?;
    if line.is_empty() {
        return Ok(None);
    }
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if line.len() as u64 == MAX_LENGTH && !line.ends_with('\n') {
        return Err(invalid(format!("the message is longer than {MAX_LENGTH} bytes")));
    }
    serde_json::from_str(&line).map(Some).map_err(|error| invalid(format!("invalid message: {error}")))
}

/// The kernel reports a socket timeout as EAGAIN, "try again", which does not tell an operator what happened.
fn explain_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return io::Error::new(io::ErrorKind::TimedOut, "no response before the timeout");
    }
    error
}

/// Writes one message.
pub fn write(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}
