//! Packets that cross the cluster while something is done to it, and which of them were lost.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::time::Duration;

use super::stage::Stage;

/// Packets of the last second may be unanswered when all ends on a busy machine.
const ON_THEIR_WAY: u32 = 20;

/// Twenty packets a second from each of some pods to others.
pub struct Pings {
    running: Vec<Ping>,
}

/// Who asks whom.
pub struct Way<'a> {
    pub node: u8,
    pub pod: &'a str,
    pub to: &'a str,
    pub address: &'a str,
}

struct Ping {
    child: Child,
    from: u8,
    way: String,
    file: String,
}

impl Pings {
    /// Begins; returns when all are answered.
    pub fn start<'a>(stage: &Stage, ways: impl Iterator<Item = Way<'a>>) -> Pings {
        let start = |Way { node, pod, to, address }: Way<'_>| {
            let file = format!("/run/test/{pod}-{to}");
            let script = format!("exec ip netns exec {pod} ping -i 0.05 -c 100000 {address} > {file}");
            let child = stage.node(node).command("sh").args(["-c", &script]).spawn().expect("ping");
            Ping { child, from: node, way: format!("{pod} to {to}"), file }
        };
        let running: Vec<Ping> = ways.map(start).collect();
        for ping in &running {
            stage.wait_until(&format!("{} is answered", ping.way), |stage| {
                stage.node(ping.from).can(&format!("grep -q icmp_seq=5 {}", ping.file))
            });
        }
        Pings { running }
    }

    /// Ends; returns the ways on which packets were lost, and which.
    pub fn stop(mut self, stage: &Stage) -> Vec<String> {
        // The last answers come.
        std::thread::sleep(Duration::from_secs(1));
        self.running.iter_mut().filter_map(|ping| ping.stop(stage)).collect()
    }
}

impl Ping {
    fn stop(&mut self, stage: &Stage) -> Option<String> {
        let asked = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(asked.expect("kill").success());
        drop(self.child.wait());
        let said = stage.node(self.from).sh(&format!("cat {}", self.file));
        let numbers = |line: &str| -> Vec<u32> {
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
        };
        let sequence =
            |line: &str| line.split("icmp_seq=").nth(1).and_then(|rest| numbers(rest).first().copied());
        let answered: BTreeSet<u32> = said.lines().filter_map(sequence).collect();
        let last = answered.last().copied().unwrap_or_default();
        let sum = said.lines().find(|line| line.contains("packets transmitted")).expect("the sum");
        let sent = numbers(sum)[0];
        let missing: Vec<u32> = (1..=last).filter(|number| !answered.contains(number)).collect();
        let is_whole = missing.is_empty() && last + ON_THEIR_WAY >= sent;
        (!is_whole).then(|| format!("{}: {missing:?} of {sent}, the last answered is {last}", self.way))
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
