//! A lab of a test's own: it ends with the test.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use podwire_tests::{lost_packets, podwire};
use serde_json::Value;

/// Tests run beside each other.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// What `podwire lab` is asked about.
pub struct Laboratory {
    pub name: String,
    /// Ends it, however the test ends: it waits for the end of a pipe.
    guard: Child,
}

/// A name that no other test has.
pub fn name() -> String {
    format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `podwire lab WORDS`.
pub fn lab(words: &[&str]) -> Output {
    let mut command = Command::new(podwire());
    command.arg("lab").args(words).stdin(Stdio::null()).output().expect("podwire")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Laboratory {
    #[track_caller]
    pub fn up(words: &[&str]) -> Laboratory {
        let name = name();
        let mut guard = Command::new(podwire());
        guard.args(["lab", "down", "--after-input", "--name", &name]);
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let made = Laboratory { name, guard: guard.expect("podwire") };
        let output = made.run(&[&["up"], words].concat());
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
        made
    }

    /// `podwire lab WORDS --name NAME`, the name behind the verb.
    pub fn run(&self, words: &[&str]) -> Output {
        lab(&[&words[..1], &["--name", &self.name], &words[1..]].concat())
    }

    /// The same as JSON, and whether all was well.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> (Value, bool) {
        let output = self.run(&[words, &["--json"]].concat());
        let read = serde_json::from_slice(&output.stdout);
        let read = read.unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stderr)));
        (read, output.status.success())
    }

    /// What a command on a node or in a pod prints; it must succeed.
    #[track_caller]
    pub fn sh(&self, place: &str, script: &str) -> String {
        let output = self.run(&["exec", place, "--", "sh", "-c", script]);
        assert!(output.status.success(), "{place}: {script}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    pub fn status(&self) -> Value {
        self.json(&["status"]).0
    }

    /// The first address of a pod.
    #[track_caller]
    pub fn address(&self, pod: &str) -> String {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("nodes");
        let mut pods = nodes.iter().flat_map(|node| node["pods"].as_array().expect("pods"));
        let found = pods.find(|one| one["name"] == pod).unwrap_or_else(|| panic!("{pod}: {status}"));
        found["ips"][0].as_str().expect("an address").to_owned()
    }

    /// The three rules hold for all of so many pods on so many nodes, each with so many addresses.
    #[track_caller]
    pub fn assert_model_holds(&self, nodes: usize, pods: usize, families: usize) {
        let (report, held) = self.json(&["verify", "--patience", "10s"]);
        let probes = report["probes"].as_array().expect("probes");
        let failed: Vec<_> = probes.iter().filter(|probe| !probe["failure"].is_null()).collect();
        assert!(held && report["holds"] == true && failed.is_empty(), "{} failed: {failed:#?}", failed.len());
        let asked = (pods * (pods - 1) + nodes * pods) * families * 4;
        assert_eq!(probes.len(), asked, "every pair, every family, by four kinds of packets");
        for rule in report["rules"].as_array().expect("rules") {
            assert!(rule["held"] == rule["asked"] && rule["asked"].as_u64() > Some(0), "{rule}");
        }
    }

    /// Begins to ping from a pod to another.
    pub fn ping(&self, from: &str, to: &str) -> Pings {
        let target = self.address(to);
        let mut command = Command::new(podwire());
        command.args(["lab", "exec", "--name", &self.name, from, "--"]);
        command.args(["ping", "-i", "0.05", "-W", "2", "-c", "100000", &target]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ping");
        // The first answer: from now on each counts.
        let mut first = [0; 1];
        let mut said = Vec::new();
        let mut stdout = child.stdout.take().expect("its words");
        while !text(&said).contains("icmp_seq=2") {
            assert_eq!(stdout.read(&mut first).expect("ping's words"), 1, "ping ended: {}", text(&said));
            said.push(first[0]);
        }
        // A pipe that nobody reads from is full after a minute.
        let said = std::thread::spawn(move || {
            stdout.read_to_end(&mut said).expect("its words");
            said
        });
        let said = Some(said);
        Pings { child, said, what: format!("{from} to {to}") }
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        let said = text(&self.run(&["status"]).stderr);
        assert!(said.contains("there is no lab") || std::thread::panicking(), "{said}");
    }
}

/// Pings that are on their way.
pub struct Pings {
    child: Child,
    /// All its words, when it has ended.
    said: Option<JoinHandle<Vec<u8>>>,
    pub what: String,
}

impl Pings {
    /// Ends them; returns which were lost.
    pub fn lost(mut self) -> Vec<u32> {
        // The last answers come.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let asked = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(asked.expect("kill").success());
        let said = self.said.take().expect("its words").join().expect("its words");
        let _ = self.child.wait();
        lost_packets(&text(&said))
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
