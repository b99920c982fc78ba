//! A line of JSON goes in, a line of JSON comes back. Who has more to ask may stay on the line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

/// No line is longer: that is some fifty thousand attachments.
pub const LONGEST: u64 = 4 * 1024 * 1024;

/// What can be asked.
pub trait Question: Serialize {
    /// What is answered.
    type Answer: DeserializeOwned;
}

/// Asks the daemon behind `socket`, and waits no longer than `patience` at a stretch.
pub fn ask<Q: Question>(socket: &Path, question: &Q, patience: Duration) -> io::Result<Q::Answer> {
    begin(socket, question, patience)?.answer()
}

/// The same, but who asks does something else until it wants to hear the answer.
pub fn begin<Q: Question>(socket: &Path, question: &Q, patience: Duration) -> io::Result<Asked<Q::Answer>> {
    let stream = podwire_netlink::sys::connect_unix(&SocketAddr::from_pathname(socket)?, patience)?;
    stream.set_read_timeout(Some(patience))?;
    send(&stream, question)?;
    Ok(Asked { stream, answer: PhantomData })
}

/// A question whose answer was not heard yet.
#[derive(Debug)]
pub struct Asked<A> {
    stream: UnixStream,
    answer: PhantomData<A>,
}

/// A line on which something was answered.
#[derive(Debug)]
pub struct Line(UnixStream);

impl Line {
    /// Asks something else, now that the answer before was heard. To call anew would cost the other side one more waking up.
    pub fn begin<Q: Question>(self, question: &Q) -> io::Result<Asked<Q::Answer>> {
        send(&self.0, question)?;
        Ok(Asked { stream: self.0, answer: PhantomData })
    }
}

impl<A: DeserializeOwned> Asked<A> {
    /// Waits for the answer.
    pub fn answer(self) -> io::Result<A> {
        self.answer_and_stay().map(|(answer, _)| answer)
    }

    /// The same, and the line stays open.
    pub fn answer_and_stay(self) -> io::Result<(A, Line)> {
        match hear(&self.stream) {
            Ok(Some(answer)) => Ok((answer, Line(self.stream))),
            Ok(None) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(io::Error::new(error.kind(), "what listens there is not Podwire's daemon"))
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads one line; `None` if the other side ended without one.
pub fn hear<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<T>> {
    let mut line = String::new();
    BufReader::new(stream).take(LONGEST).read_line(&mut line).map_err(in_words)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 == LONGEST && !line.ends_with('\n') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line of more than {LONGEST} bytes"),
        ));
    }
    let foreign =
        |error| io::Error::new(io::ErrorKind::InvalidData, format!("a line that makes no sense: {error}"));
    serde_json::from_str(&line).map(Some).map_err(foreign)
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
    use super::{ask, io};
    use crate::dhcp::{Answer, Question};
    use crate::Owner;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    fn owner() -> Owner {
        Owner { network: "lan".into(), container: "c1".into(), ifname: "eth0".into() }
    }

    /// Whoever hangs up stays in the queue of one who does not answer, until it is full; the next one would wait for ever.
    #[test]
    fn a_daemon_that_takes_no_call_is_waited_for_no_longer_than_wished() {
        let path = std::env::temp_dir().join(format!("podwire-api-{}-full", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let _listener = UnixListener::bind(&path).unwrap();
        let call = |_| super::begin(&path, &Question::Release { owner: owner() }, Duration::from_millis(100));
        let refused = (0..1_000_000).find_map(|n| call(n).err()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
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
