//! A daemon's door: a socket that only root may use, and somebody who answers at it.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::line;

/// Who knocks says at once what it wants, and takes the answer at once.
const SHORT: Duration = Duration::from_secs(5);
/// So many may wait for visitors.
const SPARE: usize = 4;

/// Opens a door at `path`, and answers at it with `answer` for as long as the program lives, to several at once. An `Err` is for a
/// question that makes no sense.
pub fn open<Q, A>(path: &Path, answer: impl Fn(io::Result<Q>) -> A + Send + Sync + 'static) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    // Made beside and put in its place: whoever found no door between the old one and the new would believe that there never was an agent.
    let made = path.with_extension("new");
    match fs::remove_file(&made) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&made)?;
    fs::set_permissions(&made, fs::Permissions::from_mode(0o600))?;
    fs::rename(&made, path)?;
    let door = Arc::new(Door { listener, answer, free: AtomicUsize::new(1) });
    hire(&door)
}

/// Those who answer. One is always free for whoever comes next: a thread that is there already answers sooner than a new one.
struct Door<F> {
    listener: UnixListener,
    answer: F,
    /// How many wait for a visitor, those that were hired for that included.
    free: AtomicUsize,
}

impl<F> Door<F> {
    /// One of those who wait is needed. Whether it was the last: then another has to wait in its place.
    fn leave(&self) -> bool {
        let others = |free: usize| (free > 1).then(|| free - 1);
        self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, others).is_err()
    }

    /// One waits again, unless enough do. Whether it does.
    fn come_back(&self) -> bool {
        let one_more = |free: usize| (free < SPARE).then(|| free + 1);
        self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }
}

fn hire<Q, A, F>(door: &Arc<Door<F>>) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
    F: Fn(io::Result<Q>) -> A + Send + Sync + 'static,
{
    let door = door.clone();
    std::thread::Builder::new().name("door".into()).spawn(move || attend(&door)).map(drop)
}

/// Answers one visitor after the other, until there are more who wait for one than are needed.
fn attend<Q, A, F>(door: &Arc<Door<F>>)
where
    Q: DeserializeOwned,
    A: Serialize,
    F: Fn(io::Result<Q>) -> A + Send + Sync + 'static,
{
    loop {
        let Ok((visitor, _)) = door.listener.accept() else {
            // The program has too many files open. That passes, or it does not.
            std::thread::park_timeout(Duration::from_millis(100));
            continue;
        };
        if door.leave() && hire(door).is_err() {
            // Without a thread for the next one, the next one waits for this one's end.
            door.free.fetch_sub(1, Ordering::SeqCst);
        }
        let _ = receive(&visitor, &door.answer);
        if !door.come_back() {
            return;
        }
    }
}

fn receive<Q, A>(visitor: &UnixStream, answer: &dyn Fn(io::Result<Q>) -> A) -> io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    visitor.set_read_timeout(Some(SHORT))?;
    visitor.set_write_timeout(Some(SHORT))?;
    let mut has_answered = false;
    loop {
        let question = match line::hear(visitor) {
            // Who says nothing has only looked whether anybody is there, or has no more to ask.
            Ok(None) => return Ok(()),
            Err(_) if has_answered => return Ok(()),
            Ok(Some(question)) => Ok(question),
            Err(error) => Err(error),
        };
        let makes_sense = question.is_ok();
        line::send(visitor, &answer(question))?;
        if !makes_sense {
            return Ok(());
        }
        has_answered = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::{Answer, Question};
    use std::sync::Barrier;

    #[test]
    fn many_at_once_are_answered_at_once_and_few_threads_stay() {
        const MANY: usize = 32;
        let path = std::env::temp_dir().join(format!("podwire-door-{}", std::process::id()));
        // Nobody is answered before all are at the door.
        let all = Arc::new(Barrier::new(MANY));
        let (together, rest) = (all.clone(), Arc::new(AtomicUsize::new(0)));
        let answered = rest.clone();
        open(&path, move |_: io::Result<Question>| {
            if answered.fetch_add(1, Ordering::SeqCst) < MANY {
                together.wait();
            }
            Answer::Done
        })
        .unwrap();
        let ask = || line::ask(&path, &Question::Ping, Duration::from_secs(20)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(ask);
            }
        });
        for _ in 0..MANY {
            assert_eq!(ask(), Answer::Done);
        }
        // Who has more to ask stays on the line.
        let first = line::begin(&path, &Question::Ping, Duration::from_secs(20)).unwrap();
        let (answer, line) = first.answer_and_stay().unwrap();
        let (more, line) = line.begin(&Question::Ping).unwrap().answer_and_stay().unwrap();
        assert_eq!((answer, more), (Answer::Done, Answer::Done));
        drop(line);
        assert_eq!(rest.load(Ordering::SeqCst), 2 * MANY + 2);
        // Who has answered may still be on the way to the door, or from it.
        let waiting = || {
            let names = fs::read_dir("/proc/self/task").unwrap().flatten();
            let of = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            names.map(of).filter(|name| name.trim() == "door").count()
        };
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while waiting() > SPARE && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(waiting() <= SPARE, "{} threads", waiting());
        fs::remove_file(&path).unwrap();
    }
}
