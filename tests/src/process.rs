//! A program that runs beside a test, and whose log lines the test waits for.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than the slowest machine needs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How much of its log a failed test shows.
const SHOWN_LINES: usize = 40;

/// A running program. It ends with the test.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: Arc<(Mutex<Vec<String>>, Condvar)>,
    /// Lines before this one were already returned by `expect`.
    passed: usize,
}

impl Process {
    /// Starts a program and collects its standard error.
    pub fn start(mut command: Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let log = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        listen(child.stderr.take().expect("stderr"), log.clone());
        Process { child, log, passed: 0 }
    }

    /// Waits for a line with all of these words after the line of the previous call, and returns it.
    #[track_caller]
    pub fn expect(&mut self, words: &[&str]) -> String {
        let end = Instant::now() + TIMEOUT;
        let (lines, added) = &*self.log;
        let mut lines = lines.lock().expect("lines");
        loop {
            let fits = |line: &&String| words.iter().all(|word| line.contains(word));
            if let Some(at) = lines.iter().skip(self.passed).position(|line| fits(&line)) {
                self.passed += at + 1;
                return lines[self.passed - 1].clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no line has {words:?}: {:#?}", *lines);
            lines = added.wait_timeout(lines, left).expect("lines").0;
        }
    }

    /// The number of lines with all of these words since the start.
    pub fn count(&self, words: &[&str]) -> usize {
        let lines = self.log.0.lock().expect("lines");
        lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// All lines until now.
    pub fn said(&self) -> String {
        self.log.0.lock().expect("lines").join("\n")
    }

    /// Its PID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends without being signalled here.
    pub fn wait(mut self) {
        self.child.wait().expect("its end");
    }

    /// Sends SIGTERM and waits until it ends.
    pub fn stop(mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(asked.expect("kill").success());
        assert!(self.child.wait().expect("its end").success(), "it did not exit with status 0");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.log.0.lock().unwrap_or_else(PoisonError::into_inner);
            let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            eprintln!("the last lines of process {}:\n{}", self.child.id(), last.join("\n"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(words: impl Read + Send + 'static, log: Arc<(Mutex<Vec<String>>, Condvar)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(words).lines().map_while(Result::ok) {
            log.0.lock().expect("lines").push(line);
            log.1.notify_all();
        }
    });
}
