//! A lab for one test. It is removed with the test.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use podwire_tests::{lost_packets, podwire};
use serde_json::Value;

/// Tests run in parallel, so every lab needs its own name.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// A running lab.
pub struct Laboratory {
    pub name: String,
    /// Removes the lab, however the test ends: it waits for the end of a pipe.
    cleanup: Child,
    /// What `up` printed.
    pub started: String,
}

/// A unique name.
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
        let mut cleanup = Command::new(podwire());
        cleanup.args(["lab", "down", "--after-input", "--name", &name]);
        let cleanup = cleanup.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut made = Laboratory { name, cleanup: cleanup.expect("podwire"), started: String::new() };
        let output = made.run(&[&["up"], words].concat());
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
        made.started = text(&output.stdout);
        made
    }

    /// `podwire lab VERB --name NAME WORDS`.
    pub fn run(&self, words: &[&str]) -> Output {
        lab(&[&words[..1], &["--name", &self.name], &words[1..]].concat())
    }

    /// The same with JSON output, and whether it succeeded.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> (Value, bool) {
        let output = self.run(&[words, &["--json"]].concat());
        let read = serde_json::from_slice(&output.stdout);
        let read = read.unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stderr)));
        (read, output.status.success())
    }

    /// The output of a command on a node or in a pod, which must succeed.
    #[track_caller]
    pub fn sh(&self, target: &str, script: &str) -> String {
        let output = self.run(&["exec", target, "--", "sh", "-c", script]);
        assert!(output.status.success(), "{target}: {script}: {}", text(&output.stderr));
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

    /// Asserts the three rules of the network model for this number of nodes, pods and address families.
    #[track_caller]
    pub fn assert_model_holds(&self, nodes: usize, pods: usize, families: usize) {
        let (report, held) = self.json(&["verify", "--timeout", "10s"]);
        let probes = report["probes"].as_array().expect("probes");
        let failed: Vec<_> = probes.iter().filter(|probe| !probe["failure"].is_null()).collect();
        assert!(held && report["holds"] == true && failed.is_empty(), "{} failed: {failed:#?}", failed.len());
        let sent = (pods * (pods - 1) + nodes * pods) * families * 4;
        assert_eq!(probes.len(), sent, "every pair, every family, four kinds of packets");
        for rule in report["rules"].as_array().expect("rules") {
            assert!(rule["passed"] == rule["sent"] && rule["sent"].as_u64() > Some(0), "{rule}");
        }
    }

    /// Starts pings from a pod to another.
    pub fn ping(&self, from: &str, to: &str) -> Pings {
        let target = self.address(to);
        let mut command = Command::new(podwire());
        command.args(["lab", "exec", "--name", &self.name, from, "--"]);
        command.args(["ping", "-i", "0.05", "-W", "2", "-c", "100000", &target]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ping");
        // Wait for the second answer: from now on every packet counts.
        let mut first = [0; 1];
        let mut output = Vec::new();
        let mut stdout = child.stdout.take().expect("output");
        while !text(&output).contains("icmp_seq=2") {
            assert_eq!(stdout.read(&mut first).expect("output"), 1, "ping ended: {}", text(&output));
            output.push(first[0]);
        }
        // Read the pipe: it would be full after a minute.
        let output = std::thread::spawn(move || {
            stdout.read_to_end(&mut output).expect("output");
            output
        });
        let output = Some(output);
        Pings { child, output, what: format!("{from} to {to}") }
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        let _ = self.cleanup.wait();
        let output = text(&self.run(&["status"]).stderr);
        assert!(output.contains("there is no lab") || std::thread::panicking(), "{output}");
    }
}

/// Running pings.
pub struct Pings {
    child: Child,
    /// The output of ping, at its end.
    output: Option<JoinHandle<Vec<u8>>>,
    pub what: String,
}

impl Pings {
    /// Ends the pings. Returns the sequence numbers of lost packets.
    pub fn lost(mut self) -> Vec<u32> {
        // Wait for the last answers.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let asked = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(asked.expect("kill").success());
        let output = self.output.take().expect("output").join().expect("output");
        let _ = self.child.wait();
        lost_packets(&text(&output))
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
