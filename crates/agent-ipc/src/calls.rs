//! How long plugin calls take: one datagram for each ADD and DEL to the agent's socket, `ADD bridge 1234 0` (verb, plugin,
//! microseconds, error code or 0). If the agent does not listen or its queue is full, the datagram is dropped: no call
//! waits for the report or fails because of it.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

/// The agent's datagram socket.
pub const SOCKET: &str = "/run/podwire/plugin-calls.sock";

/// A finished call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The verb, as in `CNI_COMMAND`.
    pub verb: &'a str,
    /// The plugin's type.
    pub plugin: &'a str,
    /// How long the call took.
    pub duration: Duration,
    /// The CNI error code, or 0.
    pub code: u32,
}

impl<'a> Call<'a> {
    /// Decodes a datagram.
    pub fn parse(line: &'a str) -> Option<Call<'a>> {
        let mut words = line.split(' ');
        let (verb, plugin) = (words.next()?, words.next()?);
        let duration = Duration::from_micros(words.next()?.parse().ok()?);
        let code = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Call { verb, plugin, duration, code })
    }

    /// Sends the datagram to the agent.
    pub fn report(&self) {
        self.report_to(SOCKET);
    }

    fn encode(&self) -> String {
        format!("{} {} {} {}", self.verb, self.plugin, self.duration.as_micros(), self.code)
    }

    fn report_to(&self, socket: &str) {
        // On most nodes nothing listens there: one stat(2) is cheaper than a socket.
        if !Path::new(socket).exists() {
            return;
        }
        let Ok(sender) = UnixDatagram::unbound() else { return };
        // The queue of an agent that does not read is full: a blocking send would hold up the pod.
        if sender.set_nonblocking(true).is_ok() {
            drop(sender.send_to(self.encode().as_bytes(), socket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call<'static> =
        Call { verb: "ADD", plugin: "bridge", duration: Duration::from_micros(1234), code: 11 };

    #[test]
    fn a_report_decodes_to_the_same_call() {
        assert_eq!(CALL.encode(), "ADD bridge 1234 11");
        assert_eq!(Call::parse(&CALL.encode()), Some(CALL));
        for invalid in ["", "ADD", "ADD bridge soon 0", "ADD bridge 1 0 more", "ADD bridge -1 0"] {
            assert_eq!(Call::parse(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn a_report_arrives_or_is_dropped_and_never_blocks() {
        let path = std::env::temp_dir().join(format!("podwire-calls-{}", std::process::id()));
        let name = path.to_str().unwrap();
        CALL.report_to(name);
        let receiver = UnixDatagram::bind(&path).unwrap();
        // More than the queue holds: the last ones are dropped.
        (0..5000).for_each(|_| CALL.report_to(name));
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..length], *b"ADD bridge 1234 11");
        std::fs::remove_file(&path).unwrap();
    }
}
