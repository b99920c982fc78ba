//! Packets that rules show to a listener ([`nft::Rule::log`](crate::nft::Rule::log)), by number of a group. One socket
//! of a namespace may listen to a group. Numbers are those of `linux/netfilter/nfnetlink_log.h`.

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
/// How much of a packet is shown: its headers, with some options.
const SHOWN: u32 = 160;

/// Lets the socket hear of this group's packets, each at once.
pub fn listen(socket: &mut Socket, group: u16) -> Result<()> {
    let mode = [&SHOWN.to_be_bytes()[..], &[NFULNL_COPY_PACKET, 0]].concat();
    let [high, low] = group.to_be_bytes();
    let asked = Message::new(
        NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG,
        0,
        format!("listen to packets that firewall rules show to group {group} (nfnetlink_log)"),
    );
    let asked = asked.raw(&[0, 0, high, low]).u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND);
    socket.request(asked.bytes(NFULA_CFG_MODE, &mode).be32(NFULA_CFG_QTHRESH, 1))
}

/// A packet that a rule showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// What the rule says of it.
    pub prefix: String,
    /// Its mark; 0 if it has none.
    pub mark: u32,
    /// The number of the device through which it came, if it came through any; on a bridge, the port's.
    pub device: Option<u32>,
    /// IPv4, IPv6, ARP … (`ETH_P_…`).
    pub protocol: u16,
    /// Its first bytes, from the IP header on.
    pub bytes: Vec<u8>,
}

impl Shown {
    /// Reads a notice; `None` if it is none of a packet.
    pub fn decode(frame: Frame<'_>) -> Option<Shown> {
        if frame.kind != NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET {
            return None;
        }
        let mut shown = Shown::default();
        for attr in frame.attrs(HEADER) {
            match attr.kind {
                NFULA_PACKET_HDR => shown.protocol = attr.be16()?,
                NFULA_MARK => shown.mark = attr.be32()?,
                NFULA_IFINDEX_INDEV => shown.device = shown.device.or(attr.be32()),
                NFULA_IFINDEX_PHYSINDEV => shown.device = attr.be32(),
                NFULA_PAYLOAD => shown.bytes = attr.value.to_vec(),
                NFULA_PREFIX => shown.prefix = attr.string(),
                _ => {}
            }
        }
        Some(shown)
    }
}
