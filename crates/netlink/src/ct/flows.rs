//! Test helper: a namespace with tracked UDP flows.

use std::net::UdpSocket;
use std::process::Command;

use crate::socket::Socket;

fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn ports() -> Vec<u16> {
    let port = |line: &str| line.split(" dport=").nth(1)?.split(' ').next()?.parse().ok();
    let mut ports: Vec<u16> = run("conntrack -L -p udp").lines().filter_map(port).collect();
    ports.sort_unstable();
    ports
}

/// A namespace with tracked UDP flows to 127.0.0.1:1001, 127.0.0.2:1001 and 127.0.0.1:1002; the last is
/// answered by 127.0.0.9.
pub fn with_flows(test: impl FnOnce(&mut Socket) + Send + 'static) {
    assert_eq!(crate::sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let inside = move || {
        crate::sys::new_network_namespace().unwrap();
        run("ip link set lo up");
        run("nft add table ip t; add chain ip t o { type nat hook output priority -100; }");
        run("nft add rule ip t o udp dport 1002 dnat to 127.0.0.9");
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        for to in ["127.0.0.1:1001", "127.0.0.2:1001", "127.0.0.1:1002"] {
            let _ = client.send_to(b"hello", to);
        }
        assert_eq!(ports(), [1001, 1001, 1002]);
        test(&mut Socket::netfilter().unwrap());
    };
    std::thread::spawn(inside).join().unwrap();
}
