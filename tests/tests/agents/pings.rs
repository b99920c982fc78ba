//! Pings that cross the cluster during a change, and the packets that were lost.

use std::process::{Child, Command};
use std::time::Duration;

use podwire_tests::lost_packets;

use super::stage::Stage;

/// Running pings: twenty packets per second for each pair of pods.
pub struct Pings {
    running: Vec<Ping>,
}

/// The pairs: a pod, and the address that it pings.
pub struct PodPair<'a> {
    pub node: u8,
    pub pod: &'a str,
    pub to: &'a str,
    pub address: &'a str,
}

struct Ping {
    child: Child,
    from: u8,
    pair: String,
    file: String,
}

impl Pings {
    /// Starts the pings. Returns when all are answered.
    pub fn start<'a>(stage: &Stage, pairs: impl Iterator<Item = PodPair<'a>>) -> Pings {
        let start = |PodPair { node, pod, to, address }: PodPair<'_>| {
            let file = format!("/run/test/{pod}-{to}");
            let script = format!("exec ip netns exec {pod} ping -i 0.05 -c 100000 {address} > {file}");
            let child = stage.node(node).command("sh").args(["-c", &script]).spawn().expect("ping");
            Ping { child, from: node, pair: format!("{pod} to {to}"), file }
        };
        let running: Vec<Ping> = pairs.map(start).collect();
        for ping in &running {
            stage.wait_until(&format!("{} is answered", ping.pair), |stage| {
                stage.node(ping.from).can(&format!("grep -q icmp_seq=5 {}", ping.file))
            });
        }
        Pings { running }
    }

    /// Stops the pings. Returns the pairs with lost packets, and which packets these are.
    pub fn stop(mut self, stage: &Stage) -> Vec<String> {
        // Wait for the last responses.
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
        (!lost.is_empty()).then(|| format!("{}: {lost:?} were lost", self.pair))
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
