//! Rules: conditions about a packet, followed by an action or a verdict.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use super::abi::*;
use super::expr::Expr;
use super::field::Field;
use super::table::Family;
use super::userdata;
use super::value::{ifname_bytes, Verdict};
use crate::message::Message;

/// A rule to add. Conditions are evaluated in order; the last expression is the action or verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    exprs: Vec<Expr>,
    comment: Option<String>,
}

impl Rule {
    /// `tcp flags` bit of every packet of a connection except the first.
    pub const ACK: u32 = 1 << 4;
    /// `ct state` bit of a connection's first packet.
    pub const NEW: u32 = 1 << 3;
    /// `ct state` bit of an established connection.
    pub const ESTABLISHED: u32 = 1 << 1;
    /// `ct state` bit of a connection that another one announced.
    pub const RELATED: u32 = 1 << 2;
    /// `ct state` bit of a packet that a rule excluded from conntrack.
    pub const UNTRACKED: u32 = 1 << 6;
    /// `ct status` bit of a connection whose destination is rewritten.
    pub const DNAT: u32 = 1 << 5;
    /// `ct status` bit of a connection whose source is rewritten.
    pub const SNAT: u32 = 1 << 4;
    /// `ct status` bit of a connection that has had packets in both directions for some time.
    pub const ASSURED: u32 = 1 << 2;
    /// `ct status` bit of a connection whose sequence numbers are rewritten.
    pub const SEQUENCE_ADJUSTED: u32 = 1 << 6;
    /// `ct status` bit of a connection that a helper reads, such as that of FTP.
    pub const HELPER: u32 = 1 << 13;

    /// A rule for every packet.
    pub fn new() -> Rule {
        Rule::default()
    }

    /// Appends an instruction.
    pub fn expr(mut self, expr: Expr) -> Rule {
        self.exprs.push(expr);
        self
    }

    /// With a comment, which `nft list` prints.
    pub fn comment(self, text: impl Into<String>) -> Rule {
        Rule { comment: Some(text.into()), ..self }
    }

    /// Packets of IPv4 ([`Family::Ip`]) or IPv6 ([`Family::Ip6`]).
    pub fn family(self, family: Family) -> Rule {
        self.is(Field::Family, &[family.number()])
    }

    /// If the field has this value.
    pub fn is(self, field: Field, value: &[u8]) -> Rule {
        self.expr(field.load(0)).expr(Expr::Cmp { from: 0, inverted: false, value: value.to_vec() })
    }

    /// If the field has another value.
    pub fn is_not(self, field: Field, value: &[u8]) -> Rule {
        self.expr(field.load(0)).expr(Expr::Cmp { from: 0, inverted: true, value: value.to_vec() })
    }

    /// If the field is between two values, both included.
    pub fn between(self, field: Field, first: &[u8], last: &[u8]) -> Rule {
        let (first, last) = (first.to_vec(), last.to_vec());
        self.expr(field.load(0)).expr(Expr::Range { from: 0, first, last })
    }

    /// If the device is this one (`is`), or another one.
    pub fn interface(self, field: Field, name: &str, is: bool) -> Rule {
        let value = ifname_bytes(name).to_vec();
        self.expr(field.load(0)).expr(Expr::Cmp { from: 0, inverted: !is, value })
    }

    /// If the address is inside or outside the prefix.
    pub fn prefix(self, field: Field, addr: IpAddr, length: u8, inside: bool) -> Rule {
        let octets = match addr {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let mask = mask(length, octets.len());
        let value = octets.iter().zip(&mask).map(|(octet, mask)| octet & mask).collect();
        let whole = usize::from(length) >= mask.len() * 8;
        let xor = vec![0; mask.len()];
        let loaded = self.expr(field.load(0));
        let masked = if whole { loaded } else { loaded.expr(Expr::Bitwise { register: 0, mask, xor }) };
        masked.expr(Expr::Cmp { from: 0, inverted: !inside, value })
    }

    /// If the field has any of these bits.
    pub fn any_bit(self, field: Field, bits: u32) -> Rule {
        self.bits(field, bits, true, 0)
    }

    /// If the field has all of these bits.
    pub fn all_bits(self, field: Field, bits: u32) -> Rule {
        self.bits(field, bits, false, bits)
    }

    /// If the field has none of these bits.
    pub fn no_bit(self, field: Field, bits: u32) -> Rule {
        self.bits(field, bits, false, 0)
    }

    /// If the field has these of the bits, and none of the others.
    pub fn only_bits(self, field: Field, bits: u32, these: u32) -> Rule {
        self.bits(field, bits, false, these)
    }

    fn bits(self, field: Field, bits: u32, inverted: bool, value: u32) -> Rule {
        let bytes = |number: u32| match field.length() {
            1 => vec![number as u8],
            _ => number.to_ne_bytes().to_vec(),
        };
        let (mask, xor, value) = (bytes(bits), bytes(0), bytes(value));
        let masked = self.expr(field.load(0)).expr(Expr::Bitwise { register: 0, mask, xor });
        masked.expr(Expr::Cmp { from: 0, inverted, value })
    }

    /// If the destination is an address of this host (`fib daddr type local`).
    pub fn to_this_host(self) -> Rule {
        self.is(Field::TypeOfDestination, &u32::from(libc::RTN_LOCAL).to_ne_bytes())
    }

    /// If the source is an address of this host (`fib saddr type local`).
    pub fn from_this_host(self) -> Rule {
        self.is(Field::TypeOfSource, &u32::from(libc::RTN_LOCAL).to_ne_bytes())
    }

    /// If the concatenated fields are in the set.
    pub fn in_set(self, fields: &[Field], set: &str) -> Rule {
        self.load(fields).expr(Expr::Lookup { set: set.into(), from: 0, inverted: false })
    }

    /// If the concatenated fields are in the set; of the last one, an address, only the first `length` bits.
    pub fn in_set_of_networks(self, fields: &[Field], length: u8, set: &str) -> Rule {
        let Some((address, before)) = fields.split_last() else { return self };
        let register = before.iter().map(|field| field.length().div_ceil(4) as u8).sum();
        let mask = mask(length, address.length() as usize);
        let (whole, xor) = (usize::from(length) >= mask.len() * 8, vec![0; mask.len()]);
        let loaded = self.load(fields);
        let masked = if whole { loaded } else { loaded.expr(Expr::Bitwise { register, mask, xor }) };
        masked.expr(Expr::Lookup { set: set.into(), from: 0, inverted: false })
    }

    /// If the concatenated fields are not in the set.
    pub fn not_in_set(self, fields: &[Field], set: &str) -> Rule {
        self.load(fields).expr(Expr::Lookup { set: set.into(), from: 0, inverted: true })
    }

    /// Takes the verdict from the map.
    pub fn verdict_map(self, fields: &[Field], map: &str) -> Rule {
        self.load(fields).expr(Expr::VerdictMap { map: map.into(), from: 0 })
    }

    /// Rewrites the destination to the address and port in the map, if it contains the key.
    pub fn dnat_map(self, family: Family, fields: &[Field], map: &str) -> Rule {
        let port = if family == Family::Ip { 1 } else { 4 };
        self.load(fields).expr(Expr::Map { map: map.into(), from: 0, to: 0 }).expr(Expr::Dnat {
            family,
            addr: 0,
            port,
        })
    }

    /// Rewrites the destination to one of several in the map. The key is the fields, followed by one of these numbers,
    /// which is chosen randomly for each connection.
    pub fn dnat_random(self, family: Family, fields: &[Field], numbers: Range<u32>, map: &str) -> Rule {
        let (to, port) = (registers(fields), if family == Family::Ip { 1 } else { 4 });
        self.load(fields)
            .expr(Expr::Random { modulus: numbers.end - numbers.start, offset: numbers.start, to })
            .expr(Expr::Map { map: map.into(), from: 0, to: 0 })
            .expr(Expr::Dnat { family, addr: 0, port })
    }

    /// Adds an element with these fields as key and data to a dynamic map, or keeps the one that is there. Either way it
    /// expires after the timeout.
    pub fn update_map(self, key: &[Field], data: &[Field], map: &str, timeout: Duration) -> Rule {
        let at = registers(key);
        self.load(key).load_at(at, data).expr(Expr::UpdateMap { map: map.into(), key: 0, data: at, timeout })
    }

    /// Loads the fields into consecutive registers.
    fn load(self, fields: &[Field]) -> Rule {
        self.load_at(0, fields)
    }

    fn load_at(mut self, mut register: u8, fields: &[Field]) -> Rule {
        for field in fields {
            self.exprs.push(field.load(register));
            register += registers(std::slice::from_ref(field));
        }
        self
    }

    /// Sets these bits of the packet's mark.
    pub fn set_mark_bits(self, bits: u32) -> Rule {
        self.change_mark(!bits, bits)
    }

    /// Clears these bits of the packet's mark.
    pub fn clear_mark_bits(self, bits: u32) -> Rule {
        self.change_mark(!bits, 0)
    }

    fn change_mark(self, mask: u32, xor: u32) -> Rule {
        let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
        self.expr(Field::Mark.load(0)).expr(Expr::Bitwise { register: 0, mask, xor }).expr(Expr::SetMark(0))
    }

    /// Sets the whole mark.
    pub fn set_mark(self, mark: u32) -> Rule {
        let value = mark.to_ne_bytes().to_vec();
        self.expr(Expr::Load { value, to: 0 }).expr(Expr::SetMark(0))
    }

    /// Limits the matching packets per second, with a burst.
    pub fn limit(self, rate: u64, burst: u32) -> Rule {
        self.expr(Expr::Limit { rate, burst })
    }

    /// Logs the packet to an [nflog](crate::nflog) group.
    pub fn log(self, group: u16, prefix: impl Into<String>) -> Rule {
        self.expr(Expr::Log { group, prefix: prefix.into() })
    }

    /// Counts packets and bytes.
    pub fn counter(self) -> Rule {
        self.expr(Expr::Counter)
    }

    /// conntrack ignores the packet. Only in chains before it.
    pub fn no_track(self) -> Rule {
        self.expr(Expr::NoTrack)
    }

    /// Rewrites the source to the address of the outgoing device.
    pub fn masquerade(self) -> Rule {
        self.expr(Expr::Masquerade(0))
    }

    /// As [`masquerade`](Self::masquerade), with fully random ports (`NF_NAT_RANGE_PROTO_RANDOM_FULLY`): concurrent
    /// connections do not race for the same port.
    pub fn masquerade_randomly(self) -> Rule {
        self.expr(Expr::Masquerade(1 << 4))
    }

    /// Accepts.
    pub fn accept(self) -> Rule {
        self.expr(Expr::Verdict(Verdict::Accept))
    }

    /// Drops, and answers with ICMP or ICMPv6 port unreachable.
    pub fn reject(self) -> Rule {
        self.expr(Expr::Reject)
    }

    /// Drops.
    pub fn drop(self) -> Rule {
        self.expr(Expr::Verdict(Verdict::Drop))
    }

    /// Returns to the calling chain; in a base chain, to its policy.
    pub fn leave(self) -> Rule {
        self.expr(Expr::Verdict(Verdict::Return))
    }

    /// Continues in that chain, and returns if it has no verdict.
    pub fn jump(self, chain: impl Into<String>) -> Rule {
        self.expr(Expr::Verdict(Verdict::Jump(chain.into())))
    }

    /// Continues in that chain, and returns to the caller of this chain.
    pub fn goto(self, chain: impl Into<String>) -> Rule {
        self.expr(Expr::Verdict(Verdict::Goto(chain.into())))
    }

    pub(super) fn encode(&self, message: Message) -> Message {
        message
            .nest(NFTA_RULE_EXPRESSIONS, |m| self.exprs.iter().fold(m, |m, expr| expr.encode(m)))
            .maybe(self.comment.as_ref(), |m, text| m.bytes(NFTA_RULE_USERDATA, &userdata::encode(text)))
    }
}

/// The number of registers that the fields occupy.
fn registers(fields: &[Field]) -> u8 {
    fields.iter().map(|field| field.length().div_ceil(4) as u8).sum()
}

/// A mask of `octets` bytes with the first `length` bits set.
fn mask(length: u8, octets: usize) -> Vec<u8> {
    (0..octets).map(|n| !(0xffu16 >> usize::from(length).saturating_sub(n * 8).min(8)) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_the_length_of_the_prefix() {
        assert_eq!(mask(0, 4), [0; 4]);
        assert_eq!(mask(8, 4), [255, 0, 0, 0]);
        assert_eq!(mask(20, 4), [255, 255, 240, 0]);
        assert_eq!(mask(32, 4), [255; 4]);
        assert_eq!(mask(128, 16), [255; 16]);
    }
}
