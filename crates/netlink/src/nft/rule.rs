//! Rules: conditions about a packet, followed by an action or a verdict.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use super::abi::*;
use super::expr::{Ct, Expr, Fib, Header, Meta};
use super::table::{message, Family, Table, HEADER};
use super::userdata;
use super::value::{ifname_bytes, Verdict};
use crate::attr::{self, Attr};
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

/// The headers of UDP and of VXLAN.
const VXLAN_PAYLOAD: u32 = 8 + 8;
/// An Ethernet header without tags.
const ETHERNET: u32 = 14;

/// A field of a packet, or its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    Mark,
    /// The index of the incoming device: cheaper than its name.
    IndexIn,
    /// The index of the outgoing device.
    IndexOut,
    /// The name of the incoming device.
    InterfaceIn,
    InterfaceOut,
    Family,
    Protocol,
    /// The IPv4 source. In a table that sees IPv6 too, check [`Rule::family`] first.
    Ip4Source,
    Ip4Destination,
    Ip6Source,
    Ip6Destination,
    /// The hop limit of an IPv6 packet: 255 proves that no router has forwarded it.
    HopLimit,
    PortSource,
    PortDestination,
    /// The flags of a TCP header, of which [`Rule::ACK`] is one. Check the protocol first.
    TcpFlags,
    /// The type of an ICMP or ICMPv6 message. Check the protocol first.
    IcmpType,
    MacSource,
    MacDestination,
    /// The first byte of the destination MAC address. Its lowest bit is set for groups, broadcast included.
    MacDestinationFirst,
    /// The EtherType of a frame without its VLAN tag, for tables of bridges.
    EtherType,
    /// The EtherType as it is on the wire: that of the VLAN tag, if there is one.
    EtherTypeOnWire,
    /// The sender address of an ARP message. Check the EtherType first.
    ArpSource,
    /// The sender hardware address of an ARP message.
    ArpSourceMac,
    /// The target address of a neighbour solicitation or advertisement. Check the ICMPv6 type first.
    NeighbourTarget,
    CtState,
    CtStatus,
    /// The destination of the connection's first packet before address translation.
    OriginalIp4Destination,
    OriginalIp6Destination,
    OriginalPortDestination,
    /// The type of the source in the routing table: local, unicast …
    TypeOfSource,
    TypeOfDestination,
    /// The incoming device's index, or 0 if the route to the packet's source leads through another device.
    ReversePath,
    /// The EtherType of the frame in a VXLAN packet. Check the UDP port first, here and below.
    VxlanEtherType,
    /// The source of the IPv4 packet in a VXLAN packet.
    VxlanIp4Source,
    VxlanIp6Source,
    /// The source of the IPv4 packet in an IPIP packet. Check the protocol first.
    IpipSource,
}

impl Field {
    /// The source address field of an address's family.
    pub fn source(of: &IpAddr) -> Field {
        if of.is_ipv4() {
            Field::Ip4Source
        } else {
            Field::Ip6Source
        }
    }

    /// The destination address field of an address's family.
    pub fn destination(of: &IpAddr) -> Field {
        if of.is_ipv4() {
            Field::Ip4Destination
        } else {
            Field::Ip6Destination
        }
    }

    fn length(self) -> u32 {
        match self {
            Field::Family | Field::Protocol | Field::IcmpType | Field::TcpFlags | Field::HopLimit => 1,
            Field::MacDestinationFirst => 1,
            Field::PortSource | Field::PortDestination | Field::OriginalPortDestination => 2,
            Field::EtherType | Field::EtherTypeOnWire | Field::VxlanEtherType => 2,
            Field::MacSource | Field::MacDestination | Field::ArpSourceMac => 6,
            Field::InterfaceIn | Field::InterfaceOut => 16,
            Field::Ip6Source | Field::Ip6Destination | Field::OriginalIp6Destination => 16,
            Field::VxlanIp6Source | Field::NeighbourTarget => 16,
            _ => 4,
        }
    }

    fn load(self, to: u8) -> Expr {
        let payload = |header, offset| Expr::Payload { header, offset, length: self.length(), to };
        match self {
            Field::Mark => Expr::Meta(Meta::Mark, to),
            Field::IndexIn => Expr::Meta(Meta::IndexIn, to),
            Field::IndexOut => Expr::Meta(Meta::IndexOut, to),
            Field::InterfaceIn => Expr::Meta(Meta::InterfaceIn, to),
            Field::InterfaceOut => Expr::Meta(Meta::InterfaceOut, to),
            Field::Family => Expr::Meta(Meta::Family, to),
            Field::Protocol => Expr::Meta(Meta::Protocol, to),
            Field::Ip4Source => payload(Header::Network, 12),
            Field::Ip4Destination => payload(Header::Network, 16),
            Field::Ip6Source => payload(Header::Network, 8),
            Field::Ip6Destination => payload(Header::Network, 24),
            Field::HopLimit => payload(Header::Network, 7),
            Field::PortSource => payload(Header::Transport, 0),
            Field::PortDestination => payload(Header::Transport, 2),
            Field::TcpFlags => payload(Header::Transport, 13),
            Field::IcmpType => payload(Header::Transport, 0),
            Field::MacSource => payload(Header::Link, 6),
            Field::MacDestination => payload(Header::Link, 0),
            Field::MacDestinationFirst => payload(Header::Link, 0),
            Field::EtherTypeOnWire => payload(Header::Link, 12),
            Field::EtherType => Expr::Meta(Meta::EtherType, to),
            // After types, lengths, operation and the sender's hardware address.
            Field::ArpSource => payload(Header::Network, 14),
            Field::ArpSourceMac => payload(Header::Network, 8),
            // After type, code, checksum and flags.
            Field::NeighbourTarget => payload(Header::Transport, 8),
            Field::CtState => Expr::Ct(Ct::State, to),
            Field::CtStatus => Expr::Ct(Ct::Status, to),
            Field::OriginalIp4Destination => Expr::Ct(Ct::OriginalIp4Destination, to),
            Field::OriginalIp6Destination => Expr::Ct(Ct::OriginalIp6Destination, to),
            Field::OriginalPortDestination => Expr::Ct(Ct::OriginalPortDestination, to),
            Field::TypeOfSource => Expr::FibType(Fib::Source, to),
            Field::TypeOfDestination => Expr::FibType(Fib::Destination, to),
            Field::ReversePath => Expr::FibReversePath(to),
            Field::VxlanEtherType => payload(Header::Transport, VXLAN_PAYLOAD + 12),
            Field::VxlanIp4Source => payload(Header::Transport, VXLAN_PAYLOAD + ETHERNET + 12),
            Field::VxlanIp6Source => payload(Header::Transport, VXLAN_PAYLOAD + ETHERNET + 8),
            // The inner header is where other protocols have their transport header.
            Field::IpipSource => payload(Header::Transport, 12),
        }
    }
}

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

/// A rule as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// Its handle, by which it is deleted.
    pub handle: u64,
    /// Its comment, from nft or iptables.
    pub comment: Option<String>,
    /// The expressions: name and encoded content.
    pub exprs: Vec<(String, Vec<u8>)>,
}

/// The expressions in a rule's attributes: name and encoded content.
pub(super) fn instructions(body: &[u8]) -> Vec<(String, Vec<u8>)> {
    let one = |attr: Attr<'_>| {
        let name = attr::find(attr.value, NFTA_EXPR_NAME)?.string();
        let data = attr::find(attr.value, NFTA_EXPR_DATA).map_or(&[][..], |a| a.value);
        Some((name, data.to_vec()))
    };
    let list = attr::find(body, NFTA_RULE_EXPRESSIONS);
    list.map(|list| list.nested().filter_map(one).collect()).unwrap_or_default()
}

impl RuleInfo {
    fn decode(frame: &Frame<'_>) -> Option<RuleInfo> {
        let body = frame.body.get(HEADER..)?;
        let exprs = instructions(body);
        let comment = attr::find(body, NFTA_RULE_USERDATA).and_then(|a| userdata::decode(a.value));
        Some(RuleInfo {
            handle: attr::find(body, NFTA_RULE_HANDLE)?.be64()?,
            comment: comment.or_else(|| exprs.iter().find_map(xt_comment)),
            exprs,
        })
    }

    /// The parts that distinguish it from other rules: its expressions, compared values, sets and verdicts. The kernel
    /// encodes the rest differently from the request.
    pub(super) fn essence(&self) -> (Vec<(&str, Vec<u8>)>, Vec<Verdict>) {
        let content = |name: &str, data: &[u8]| match name {
            "cmp" => attr::find(data, NFTA_CMP_DATA)
                .and_then(|data| attr::find(data.value, NFTA_DATA_VALUE))
                .map_or(Vec::new(), |value| value.value.to_vec()),
            "range" => [NFTA_RANGE_FROM_DATA, NFTA_RANGE_TO_DATA]
                .into_iter()
                .filter_map(|kind| attr::find(attr::find(data, kind)?.value, NFTA_DATA_VALUE))
                .flat_map(|value| value.value.to_vec())
                .collect(),
            "lookup" => {
                let inverted =
                    attr::find(data, NFTA_LOOKUP_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
                let set = attr::find(data, NFTA_LOOKUP_SET).map_or(String::new(), |set| set.string());
                format!("{set} {inverted}").into_bytes()
            }
            "immediate" => attr::find(data, NFTA_IMMEDIATE_DATA)
                .and_then(|data| attr::find(data.value, NFTA_DATA_VALUE))
                .map_or(Vec::new(), |value| value.value.to_vec()),
            "payload" => numbers(data, &[NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN]),
            "fib" => numbers(data, &[NFTA_FIB_RESULT, NFTA_FIB_FLAGS]),
            "numgen" => numbers(data, &[NFTA_NG_MODULUS, NFTA_NG_OFFSET]),
            "dynset" => {
                let map = attr::find(data, NFTA_DYNSET_SET_NAME).map_or(String::new(), |map| map.string());
                let timeout = attr::find(data, NFTA_DYNSET_TIMEOUT).and_then(|timeout| timeout.be64());
                format!("{map} {timeout:?}").into_bytes()
            }
            "limit" => numbers(data, &[NFTA_LIMIT_RATE, NFTA_LIMIT_UNIT, NFTA_LIMIT_BURST]),
            "log" => {
                let group = attr::find(data, NFTA_LOG_GROUP).and_then(|group| group.be16());
                let prefix = attr::find(data, NFTA_LOG_PREFIX).map(|prefix| prefix.string());
                format!("{group:?} {prefix:?}").into_bytes()
            }
            "masq" => {
                let flags = attr::find(data, NFTA_MASQ_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
                flags.to_be_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        let exprs = self.exprs.iter().map(|(name, data)| (name.as_str(), content(name, data)));
        (exprs.collect(), self.verdicts().collect())
    }

    /// The verdicts of the rule, without those of maps.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.exprs.iter().filter(|(name, _)| name == "immediate").filter_map(|(_, data)| {
            let data = attr::find(data, NFTA_IMMEDIATE_DATA)?;
            Verdict::decode(&attr::find(data.value, NFTA_DATA_VERDICT)?)
        })
    }

    /// Whether it jumps to this chain.
    pub fn jumps_to(&self, chain: &str) -> bool {
        self.verdicts().any(|verdict| verdict.chain() == Some(chain))
    }

    /// Whether it compares a field with exactly this value.
    pub fn compares_with(&self, value: &[u8]) -> bool {
        self.exprs.iter().filter(|(name, _)| name == "cmp").any(|(_, data)| {
            let data = attr::find(data, NFTA_CMP_DATA).and_then(|d| attr::find(d.value, NFTA_DATA_VALUE));
            data.is_some_and(|d| d.value == value)
        })
    }
}

/// The values of these attributes.
fn numbers(data: &[u8], kinds: &[u16]) -> Vec<u8> {
    let found = kinds.iter().filter_map(|kind| attr::find(data, *kind));
    found.flat_map(|number| number.value.to_vec()).collect()
}

/// The comment of an iptables rule: a match extension that always matches.
fn xt_comment((name, data): &(String, Vec<u8>)) -> Option<String> {
    let is_comment = name == "match" && attr::find(data, NFTA_MATCH_NAME)?.string() == "comment";
    is_comment.then(|| attr::find(data, NFTA_MATCH_INFO).map(|a| a.string()))?
}

/// The rules of a chain in order; empty if the chain or table is missing.
pub fn list_rules(socket: &mut Socket, table: &Table, chain: &str) -> Result<Vec<RuleInfo>> {
    let doing = format!("list the rules of chain {chain} of table {table}");
    let request = message(NFT_MSG_GETRULE, 0, table.family.number(), doing)
        .string(NFTA_RULE_TABLE, &table.name)
        .string(NFTA_RULE_CHAIN, chain);
    Ok(found(socket.list(request, |frame| RuleInfo::decode(&frame)))?.unwrap_or_default())
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
