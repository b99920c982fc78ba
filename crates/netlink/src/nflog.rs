//! Packets that firewall rules log to a group ([`nft::Rule::log`](crate::nft::Rule::log)). Only one socket of a
//! namespace can receive a group. The numbers are from `linux/netfilter/nfnetlink_log.h`.

use crate::error::Result;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const NFNL_SUBSYS_ULOG: u16 = 4;
const NFULNL_MSG_PACKET: u16 = 0;
const NFULNL_MSG_CONFIG: u16 = 1;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULA_PACKET_HDR: u16 = 1;
const NFULA_MARK: u16 = 2;
const NFULA_IFINDEX_INDEV: u16 = 4;
const NFULA_IFINDEX_PHYSINDEV: u16 = 6;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;

/// Size of `struct nfgenmsg`: family, version, and here the group in network order.
const HEADER: usize = 4;
/// The logged bytes of a packet: its headers, with some options.
const LENGTH: u32 = 160;

/// Subscribes the socket to a group. The kernel sends each packet at once.
pub fn listen(socket: &mut Socket, group: u16) -> Result<()> {
    let mode = [&LENGTH.to_be_bytes()[..], &[NFULNL_COPY_PACKET, 0]].concat();
    let [high, low] = group.to_be_bytes();
    let request = Message::new(
        NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG,
        0,
        format!("receive packets that firewall rules log to group {group} (nfnetlink_log)"),
    );
    let request = request.raw(&[0, 0, high, low]).u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND);
    socket.request(request.bytes(NFULA_CFG_MODE, &mode).be32(NFULA_CFG_QTHRESH, 1))
}

/// A logged packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedPacket {
    /// The prefix of the rule.
    pub prefix: String,
    /// Its mark; 0 if it has none.
    pub mark: u32,
    /// The index of the device that received it, if any; on a bridge, the port's.
    pub device: Option<u32>,
    /// IPv4, IPv6, ARP … (`ETH_P_…`).
    pub protocol: u16,
    /// Its first bytes, from the IP header on.
    pub bytes: Vec<u8>,
}

impl LoggedPacket {
    /// Reads a notice; `None` if it is not about a packet.
    pub fn decode(frame: Frame<'_>) -> Option<LoggedPacket> {
        if frame.kind != NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET {
            return None;
        }
        let mut packet = LoggedPacket::default();
        for attr in frame.attrs(HEADER) {
            match attr.kind {
                NFULA_PACKET_HDR => packet.protocol = attr.be16()?,
                NFULA_MARK => packet.mark = attr.be32()?,
                NFULA_IFINDEX_INDEV => packet.device = packet.device.or(attr.be32()),
                NFULA_IFINDEX_PHYSINDEV => packet.device = attr.be32(),
                NFULA_PAYLOAD => packet.bytes = attr.value.to_vec(),
                NFULA_PREFIX => packet.prefix = attr.string(),
                _ => {}
            }
        }
        Some(packet)
    }
}
