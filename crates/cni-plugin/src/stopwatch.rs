//! How long calls take, told to whoever counts: one datagram to the agent's socket, `ADD bridge 1234 0` (microseconds, and the
//! error's code or 0). If nobody listens, or listens too slowly, it is dropped: no call waits for it, or fails because of it.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Command, Plugin, Request, Result};

/// Where the agent listens.
pub const SOCKET: &str = "/run/podwire/calls";

/// What a call did, as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The verb, in the spec's letters.
    pub verb: String,
    /// The plugin's type.
    pub plugin: String,
    /// How long it took.
    pub took: Duration,
    /// 0, or the code of its error.
    pub code: u32,
}

impl Call {
    /// In one line.
    pub fn line(&self) -> String {
        format!("{} {} {} {}", self.verb, self.plugin, self.took.as_micros(), self.code)
    }

    /// From one line, if it is one.
    pub fn parse(line: &str) -> Option<Call> {
        let [verb, plugin, took, code] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let took = Duration::from_micros(took.parse().ok()?);
        Some(Call { verb: verb.into(), plugin: plugin.into(), took, code: code.parse().ok()? })
    }
}

/// Calls, and tells.
pub(crate) fn timed<T>(
    plugin: &dyn Plugin,
    req: &Request<'_>,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let done = call();
    // ADD and DEL are what a pod's start waits for; the others are asked all the time, and nobody waits.
    if matches!(req.command, Command::Add | Command::Del) {
        let code = done.as_ref().err().map_or(0, |error| error.to_cni().code);
        let (verb, plugin) = (req.command.as_str().to_owned(), plugin.name().to_owned());
        tell(SOCKET, &Call { verb, plugin, took: start.elapsed(), code });
    }
    done
}

fn tell(socket: &str, call: &Call) {
    // Most nodes have nobody there: one look is cheaper than a socket.
    if !Path::new(socket).exists() {
        return;
    }
    let Ok(from) = UnixDatagram::unbound() else { return };
    // One that listens and does not read has a full queue: it must not hold up a pod.
    if from.set_nonblocking(true).is_ok() {
        drop(from.send_to(call.line().as_bytes(), socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call { verb: "ADD".into(), plugin: "bridge".into(), took: Duration::from_micros(1234), code: 11 }
    }

    #[test]
    fn what_is_told_is_understood() {
        assert_eq!(call().line(), "ADD bridge 1234 11");
        assert_eq!(Call::parse(&call().line()), Some(call()));
        for nonsense in ["", "ADD", "ADD bridge soon 0", "ADD bridge 1 0 more", "ADD bridge -1 0"] {
            assert_eq!(Call::parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn it_arrives_if_somebody_listens_and_is_dropped_if_nobody_does_or_nobody_reads() {
        let path = std::env::temp_dir().join(format!("podwire-calls-{}", std::process::id()));
        let name = path.to_str().unwrap();
        tell(name, &call());
        let ear = UnixDatagram::bind(&path).unwrap();
        // More than any queue holds: the last ones are dropped, and none of them waits.
        (0..5000).for_each(|_| tell(name, &call()));
        let mut buffer = [0; 64];
        let length = ear.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..length], *b"ADD bridge 1234 11");
        std::fs::remove_file(&path).unwrap();
    }
}
