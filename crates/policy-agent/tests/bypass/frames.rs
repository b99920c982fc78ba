//! Pods that send frames, and pods that see what arrives.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use podwire_policy_agent::dataplane::PodPort;

use crate::testbed::Endpoint;

const FRAMES: &str = include_str!("../testbed/frames.py");
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const ARP: u16 = 0x0806;

/// A pod that sends frames.
pub struct Sender<'a> {
    endpoint: &'a Endpoint,
    device: &'static str,
    mac: [u8; 6],
    frames: Vec<Vec<u8>>,
}

impl<'a> Sender<'a> {
    pub fn new(endpoint: &'a Endpoint, port: &PodPort) -> Sender<'a> {
        Sender::through(endpoint, "eth0", port)
    }

    pub fn through(endpoint: &'a Endpoint, device: &'static str, port: &PodPort) -> Sender<'a> {
        Sender { endpoint, device, mac: port.mac.unwrap(), frames: Vec::new() }
    }

    /// Adds a frame; `tags` are the VLAN tags before the EtherType.
    pub fn add(&mut self, to: [u8; 6], tags: &[u8], ether_type: u16, payload: &[u8]) {
        let frame = [&to, &self.mac, tags, &ether_type.to_be_bytes(), payload].concat();
        let padding = vec![0; 60usize.saturating_sub(frame.len())];
        self.frames.push([frame, padding].concat());
    }

    /// Adds an IP packet.
    pub fn add_packet(&mut self, to: [u8; 6], packet: &[u8]) {
        let ether_type = if packet[0] >> 4 == 6 { IPV6 } else { IPV4 };
        self.add(to, &[], ether_type, packet);
    }

    pub fn send(&mut self) {
        let args = ["-c", FRAMES, "send", self.device];
        let mut child = self.endpoint.start_with_input("python3", &args, Stdio::piped());
        let mut input = child.stdin.take().unwrap();
        for frame in self.frames.drain(..) {
            let line: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(input, "{line}").unwrap();
        }
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

/// The texts that arrive at the endpoint while `work` runs, and until `end` does, which `work` sends last.
pub fn arriving(at: &Endpoint, work: impl FnOnce()) -> Vec<String> {
    let mut child = at.start("python3", &["-c", FRAMES, "sniff", "eth0"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert_eq!(lines.next().as_deref(), Some("ready"));
    work();
    let texts = lines.take_while(|line| line != "end").collect();
    assert!(child.wait().unwrap().success());
    texts
}

/// The rows of a table that are wrong: texts that arrived and should not have, and those that should have and did not.
pub fn wrong(title: &str, arrived: &[String], allowed: &[String]) -> Vec<String> {
    let (arrived, allowed): (BTreeSet<&String>, BTreeSet<&String>) =
        (arrived.iter().collect(), allowed.iter().collect());
    let leaked = arrived.difference(&allowed).map(|text| format!("{title}: {text}: arrived"));
    leaked.chain(allowed.difference(&arrived).map(|text| format!("{title}: {text}: lost"))).collect()
}
