//! What the `dhcp` plugin and its daemon say to each other.
//!
//! The plugin lives for a moment and a lease for as long as its pod, so a daemon keeps the leases. The two speak over a
//! unix socket: the plugin writes one [`Question`] as a line of JSON, the daemon answers with one [`Answer`] as a line of
//! JSON, and that was it. Where the daemon keeps its leases is written here too ([`notes`]), because a plugin that does
//! not reach the daemon leaves a note there.

pub mod notes;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where the daemon listens, as the Go plugin's does.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// No line is longer.
pub const LONGEST_LINE: u64 = 64 * 1024;

/// An attachment: the interface of a container in a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The network's name.
    pub network: String,
    /// The container's id.
    pub container: String,
    /// The interface's name in the container.
    pub ifname: String,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

/// Which addresses an attachment wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// One by DHCPv4.
    #[default]
    Ipv4,
    /// One by DHCPv6.
    Ipv6,
    /// One of each.
    Dual,
}

/// What the config says about the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wish {
    /// Which addresses.
    pub family: Family,
    /// The numbers of the DHCPv4 options to ask the server for.
    pub requested: Vec<u8>,
    /// DHCPv4 options to send: number and value.
    pub provided: Vec<(u8, Vec<u8>)>,
    /// The metric of the routes.
    pub priority: Option<u32>,
    /// Addresses that it had before and would like again.
    pub before: Vec<IpAddr>,
}

/// What a plugin asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// A lease for an attachment, to be kept until it is released.
    Acquire {
        /// Whose.
        owner: Owner,
        /// The path of the pod's network namespace.
        netns: PathBuf,
        /// Of which kind.
        wish: Wish,
    },
    /// Give the lease back.
    Release {
        /// Whose.
        owner: Owner,
    },
    /// Is there a lease that holds?
    Inspect {
        /// Whose.
        owner: Owner,
    },
    /// Give the leases back of all attachments of a network but these.
    Collect {
        /// The network.
        network: String,
        /// Container and interface of attachments that are to be left alone.
        valid: Vec<(String, String)>,
    },
    /// Is anybody there?
    Ping,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// A lease that holds, as a CNI result.
    Lease {
        /// A result of version 1.1.0.
        result: Value,
    },
    /// There is no lease that holds.
    None {
        /// Why not.
        why: String,
    },
    /// It was done.
    Done,
    /// It could not be done.
    Failed {
        /// A CNI error code.
        code: u32,
        /// What was being done and why it failed.
        msg: String,
        /// What to do next.
        hint: String,
    },
}

/// Asks the daemon behind `socket`, and waits no longer than `patience` at a stretch.
pub fn ask(socket: &Path, question: &Question, patience: Duration) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    send(&stream, question)?;
    let mut line = String::new();
    BufReader::new(&stream).take(LONGEST_LINE).read_line(&mut line).map_err(in_words)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer"));
    }
    let foreign =
        |_| io::Error::new(io::ErrorKind::InvalidData, "what listens there is not Podwire's daemon");
    serde_json::from_str(&line).map_err(foreign)
}

/// A socket whose patience is over says "try again", of which nobody learns anything.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time"),
        _ => error,
    }
}

/// Writes one line.
pub fn send(mut stream: &UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn owner() -> Owner {
        Owner { network: "lan".into(), container: "c1".into(), ifname: "eth0".into() }
    }

    /// What `ask` makes of a daemon that answers with `line`.
    fn answered(line: &'static str) -> io::Result<Answer> {
        let path = std::env::temp_dir().join(format!("podwire-api-{}-{}", std::process::id(), line.len()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            (&stream).write_all(line.as_bytes()).unwrap();
            question
        });
        let answer = ask(&path, &Question::Release { owner: owner() }, Duration::from_secs(5));
        let question = daemon.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = r#"{"ask":"release","owner":{"network":"lan","container":"c1","ifname":"eth0"}}"#;
        assert_eq!(question.trim_end(), text);
        answer
    }

    #[test]
    fn a_question_and_an_answer_are_a_line_each() {
        assert_eq!(answered("{\"answer\":\"done\"}\n").unwrap(), Answer::Done);
        let refused = "HTTP/1.1 400 Bad Request\r\n";
        assert!(answered(refused).unwrap_err().to_string().contains("not Podwire's"));
        assert_eq!(answered("").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
