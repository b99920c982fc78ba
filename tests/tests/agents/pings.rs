//! Pings that cross the cluster during a change, and the packets that were lost.

use std::process::{Child, Command};
use std::time::Duration;

use podwire_tests::lost_packets;

use super::stage::Stage;

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
        let lost = lost_packets(&said);
        (!lost.is_empty()).then(|| format!("{}: {lost:?} were lost", self.way))
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
