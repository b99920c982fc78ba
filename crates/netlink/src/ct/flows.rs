//! Test helper: a namespace with tracked UDP flows.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use super::entry::*;
use crate::message::{Batch, Message};
use crate::nft::Family;
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

/// Adds tracked UDP flows from 10.0.0.0/8 to 192.0.2.1, `count` of them, each from another address.
pub fn add(socket: &mut Socket, count: u32) {
    const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    const NEW: u16 = 1 << 8; // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
    const TIMEOUT: u16 = 7; // CTA_TIMEOUT
    let server = IpAddr::from([192, 0, 2, 1]);
    let tuple = |message: Message, kind: u16, from: (IpAddr, u16), to: (IpAddr, u16)| {
        message.nest(kind, |m| {
            m.nest(CTA_TUPLE_IP, |m| m.ip(CTA_IP_V4_SRC, from.0).ip(CTA_IP_V4_DST, to.0)).nest(
                CTA_TUPLE_PROTO,
                |m| {
                    m.u8(CTA_PROTO_NUM, libc::IPPROTO_UDP as u8)
                        .be16(CTA_PROTO_SRC_PORT, from.1)
                        .be16(CTA_PROTO_DST_PORT, to.1)
                },
            )
        })
    };
    let flow = |number: u32| {
        let client = IpAddr::from((10 << 24 | number).to_be_bytes());
        let message = Message::new(NEW, CREATE, "add a flow").raw(&[Family::Ip.number(), 0, 0, 0]);
        let message = tuple(message, CTA_TUPLE_ORIG, (client, 9), (server, 53));
        tuple(message, CTA_TUPLE_REPLY, (server, 53), (client, 9)).be32(TIMEOUT, 600)
    };
    let mut batch = Batch::new();
    batch.extend((0..count).map(flow));
    assert!(socket.batch_each(batch).unwrap().is_empty());
}
