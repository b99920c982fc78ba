//! Values of registers and sets, and verdicts.
//!
//! In a value with several fields (a concatenation, `tcp . 80`) each field is padded to four bytes, the size of a
//! register; a single field is not padded.

use std::fmt::{self, Write};
use std::net::IpAddr;

use super::abi::*;
use crate::attr::{self, Attr};
use crate::message::Message;

/// A key of a set, or the data of a map's element. Values are equal if their bytes are.
#[derive(Clone, Debug, Default)]
pub struct Value {
    bytes: Vec<u8>,
    /// The fields as text, for messages.
    words: String,
}

impl Value {
    /// A value of these bytes, as read from the kernel.
    pub fn raw(bytes: &[u8]) -> Value {
        Value { bytes: bytes.to_vec(), words: bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// An address.
    pub fn ip(addr: IpAddr) -> Value {
        Value::default().and_ip(addr)
    }

    /// A device's name.
    pub fn ifname(name: &str) -> Value {
        Value::default().and_ifname(name)
    }

    /// A device's index.
    pub fn ifindex(index: u32) -> Value {
        Value::default().and(&index.to_ne_bytes(), format_args!("device {index}"))
    }

    /// An Ethernet address.
    pub fn mac(mac: [u8; 6]) -> Value {
        Value::default().and_mac(mac)
    }

    /// A transport protocol (`IPPROTO_…`).
    pub fn protocol(number: u8) -> Value {
        Value::default().and_protocol(number)
    }

    /// A packet's mark.
    pub fn mark(mark: u32) -> Value {
        Value::default().and(&mark.to_ne_bytes(), format_args!("mark {mark:#x}"))
    }

    /// Followed by an address.
    pub fn and_ip(self, addr: IpAddr) -> Value {
        match addr {
            IpAddr::V4(v4) => self.and(&v4.octets(), addr),
            IpAddr::V6(v6) => self.and(&v6.octets(), addr),
        }
    }

    /// Followed by a transport protocol.
    pub fn and_protocol(self, number: u8) -> Value {
        match i32::from(number) {
            libc::IPPROTO_TCP => self.and(&[number], "tcp"),
            libc::IPPROTO_UDP => self.and(&[number], "udp"),
            libc::IPPROTO_SCTP => self.and(&[number], "sctp"),
            _ => self.and(&[number], number),
        }
    }

    /// Followed by a port.
    pub fn and_port(self, port: u16) -> Value {
        self.and(&port.to_be_bytes(), port)
    }

    /// Followed by a number of four bytes in host byte order: a mark, or what a rule counts or chooses.
    pub fn and_mark(self, mark: u32) -> Value {
        self.and(&mark.to_ne_bytes(), mark)
    }

    /// Followed by a device's name.
    pub fn and_ifname(self, name: &str) -> Value {
        self.and(&ifname_bytes(name), name)
    }

    /// Followed by an Ethernet address.
    pub fn and_mac(self, mac: [u8; 6]) -> Value {
        let [a, b, c, d, e, f] = mac;
        self.and(&mac, format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
    }

    fn and(mut self, field: &[u8], words: impl fmt::Display) -> Value {
        let more = !self.bytes.is_empty();
        self.pad();
        self.bytes.extend_from_slice(field);
        if more {
            self.pad();
        }
        let _ = write!(self.words, "{}{words}", if more { " . " } else { "" });
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Value {}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// A device name as the kernel compares it: 16 bytes, padded with NUL.
pub fn ifname_bytes(name: &str) -> [u8; libc::IFNAMSIZ] {
    let mut bytes = [0; libc::IFNAMSIZ];
    let length = name.len().min(libc::IFNAMSIZ - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

/// The verdict about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accept: ends this base chain; later base chains of the hook still see the packet.
    Accept,
    /// Drop.
    Drop,
    /// Return to the calling chain.
    Return,
    /// Continue in this chain, and return if it has no verdict.
    Jump(String),
    /// Continue in this chain without returning.
    Goto(String),
    /// Another verdict of the kernel.
    Other(i32),
}

impl Verdict {
    fn code(&self) -> i32 {
        match self {
            Verdict::Accept => NF_ACCEPT,
            Verdict::Drop => NF_DROP,
            Verdict::Return => NFT_RETURN,
            Verdict::Jump(_) => NFT_JUMP,
            Verdict::Goto(_) => NFT_GOTO,
            Verdict::Other(code) => *code,
        }
    }

    /// The target chain.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// Appends `NFTA_DATA_VERDICT`.
    pub(super) fn encode(&self, message: Message) -> Message {
        message.nest(NFTA_DATA_VERDICT, |m| {
            let m = m.be32(NFTA_VERDICT_CODE, self.code() as u32);
            m.maybe(self.chain(), |m, chain| m.string(NFTA_VERDICT_CHAIN, chain))
        })
    }

    /// Reads the content of `NFTA_DATA_VERDICT`.
    pub(super) fn decode(attr: &Attr<'_>) -> Option<Verdict> {
        let code = attr::find(attr.value, NFTA_VERDICT_CODE)?.be32()? as i32;
        let chain = attr::find(attr.value, NFTA_VERDICT_CHAIN).map(|a| a.string());
        Some(match (code, chain) {
            (NF_ACCEPT, _) => Verdict::Accept,
            (NF_DROP, _) => Verdict::Drop,
            (NFT_RETURN, _) => Verdict::Return,
            (NFT_JUMP, Some(chain)) => Verdict::Jump(chain),
            (NFT_GOTO, Some(chain)) => Verdict::Goto(chain),
            _ => Verdict::Other(code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_concatenations_are_padded() {
        assert_eq!(Value::protocol(6).bytes(), [6]);
        assert_eq!(Value::protocol(6).and_port(80).bytes(), [6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(Value::ifname("br0").and_mac([1, 2, 3, 4, 5, 6]).bytes().len(), 24);
        assert_eq!(Value::protocol(6).and_port(80).to_string(), "tcp . 80");
        assert_eq!(Value::ifname("a-name-that-is-too-long").bytes().len(), 16);
    }
}
