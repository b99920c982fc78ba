//! A program that runs beside a test, and whose words the test waits for.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// No machine is so slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running program. It ends with the test.
#[derive(Debug)]
pub struct Process {
    child: Child,
    heard: Arc<(Mutex<Vec<String>>, Condvar)>,
    /// Lines before this one have been waited for.
    passed: usize,
}

impl Process {
    /// Starts a program; what it says to its standard error is kept.
    pub fn start(mut command: Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let heard = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        listen(child.stderr.take().expect("its words"), heard.clone());
        Process { child, heard, passed: 0 }
    }

    /// Waits for a line with all of these words, behind those that were waited for before; returns it.
    #[track_caller]
    pub fn expect(&mut self, words: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        let (lines, news) = &*self.heard;
        let mut lines = lines.lock().expect("lines");
        loop {
            let fits = |line: &&String| words.iter().all(|word| line.contains(word));
            if let Some(at) = lines.iter().skip(self.passed).position(|line| fits(&line)) {
                self.passed += at + 1;
                return lines[self.passed - 1].clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{words:?} was not said: {:#?}", *lines);
            lines = news.wait_timeout(lines, left).expect("lines").0;
        }
    }

    /// How many lines with all of these words there were, from the beginning on.
    pub fn count(&self, words: &[&str]) -> usize {
        let lines = self.heard.0.lock().expect("lines");
        lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// All that it said until now.
    pub fn said(&self) -> String {
        self.heard.0.lock().expect("lines").join("\n")
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended, as somebody else asked it to.
    pub fn wait(mut self) {
        self.child.wait().expect("its end");
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(asked.expect("kill").success());
        assert!(self.child.wait().expect("its end").success(), "it did not end well");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(words: impl Read + Send + 'static, heard: Arc<(Mutex<Vec<String>>, Condvar)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(words).lines().map_while(Result::ok) {
            heard.0.lock().expect("lines").push(line);
            heard.1.notify_all();
        }
    });
}
