//! Expressions: the instructions of a rule. They load parts of the packet into registers, compare registers or look
//! them up, and end in a verdict or an action. `nft --debug=netlink` prints rules in the same terms.

use std::time::Duration;

use super::abi::*;
use super::table::Family;
use super::value::Verdict;
use crate::message::Message;

/// One of sixteen registers of four bytes. A longer value occupies this and the following registers.
pub type Register = u8;

/// The header that an offset is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The Ethernet header.
    Link,
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// Metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// Its mark.
    Mark,
    /// The index of the incoming device.
    IndexIn,
    /// The index of the outgoing device.
    IndexOut,
    /// The name of the incoming device.
    InterfaceIn,
    /// The name of the outgoing device.
    InterfaceOut,
    /// IPv4 or IPv6 (`NFPROTO_…`).
    Family,
    /// TCP, UDP … (`IPPROTO_…`).
    Protocol,
    /// IPv4, IPv6, ARP … (`ETH_P_…`), in network order.
    EtherType,
}

/// Connection tracking data of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ct {
    /// New, established, related …: bits of [`super::Rule::ESTABLISHED`] and its like.
    State,
    /// Address translation and more: `IPS_…` bits.
    Status,
    /// The destination of the connection's first packet before translation, of IPv4.
    OriginalIp4Destination,
    /// The same of IPv6.
    OriginalIp6Destination,
    /// The port of this destination.
    OriginalPortDestination,
}

/// The address to look up in the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fib {
    /// The packet's source.
    Source,
    /// The packet's destination.
    Destination,
}

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the packet; ends the rule if they are missing.
    Payload {
        /// The header.
        header: Header,
        /// The first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The target register.
        to: Register,
    },
    /// Loads metadata of the packet.
    Meta(Meta, Register),
    /// Sets the mark of the packet from a register.
    SetMark(Register),
    /// Loads connection tracking data.
    Ct(Ct, Register),
    /// Loads the type of an address in the routing table (`RTN_LOCAL`, `RTN_UNICAST` …).
    FibType(Fib, Register),
    /// Loads the incoming device's index if the route to the packet's source leads through it, otherwise 0.
    FibReversePath(Register),
    /// Ends the rule unless the register equals (or, inverted, differs from) the value.
    Cmp {
        /// The register.
        from: Register,
        /// Whether it must differ.
        inverted: bool,
        /// The value.
        value: Vec<u8>,
    },
    /// Ends the rule unless the register is between two values, both included.
    Range {
        /// The register.
        from: Register,
        /// The smallest value.
        first: Vec<u8>,
        /// The largest value.
        last: Vec<u8>,
    },
    /// `register = register & mask ^ xor`
    Bitwise {
        /// The register.
        register: Register,
        /// The bits to keep.
        mask: Vec<u8>,
        /// The bits to invert.
        xor: Vec<u8>,
    },
    /// Ends the rule unless the set contains the key (or, inverted, if it does).
    Lookup {
        /// The set.
        set: String,
        /// The register of the key.
        from: Register,
        /// Whether the key must be missing.
        inverted: bool,
    },
    /// Ends the rule unless the map contains the key; otherwise loads its data.
    Map {
        /// The map.
        map: String,
        /// The register of the key.
        from: Register,
        /// The register for the data.
        to: Register,
    },
    /// As `Map`, for a verdict map: its verdict is that of the rule.
    VerdictMap {
        /// The map.
        map: String,
        /// The register of the key.
        from: Register,
    },
    /// The rule's verdict.
    Verdict(Verdict),
    /// Rewrites the connection's destination.
    Dnat {
        /// IPv4 or IPv6.
        family: Family,
        /// The register of the new address.
        addr: Register,
        /// The register of the new port.
        port: Register,
    },
    /// Rewrites the connection's source to the address of the outgoing device. The flags are from
    /// `linux/netfilter/nf_nat.h` (`NF_NAT_RANGE_…`); 0 keeps the port if possible.
    Masquerade(u32),
    /// Loads a random number.
    Random {
        /// How many numbers are possible.
        modulus: u32,
        /// The smallest one.
        offset: u32,
        /// The target register.
        to: Register,
    },
    /// Adds an element to a [dynamic](super::Set::dynamic) map, unless it has the key. Either way the element expires
    /// after this time.
    UpdateMap {
        /// The map.
        map: String,
        /// The register of the key.
        key: Register,
        /// The register of the data.
        data: Register,
        /// The time.
        timeout: Duration,
    },
    /// Drops the packet, and answers with ICMP or ICMPv6 port unreachable.
    Reject,
    /// Counts packets and bytes.
    Counter,
    /// conntrack ignores the packet. Only in chains before it.
    NoTrack,
    /// Loads a constant into a register.
    Load {
        /// The value.
        value: Vec<u8>,
        /// The target register.
        to: Register,
    },
    /// Ends the rule for packets above a rate.
    Limit {
        /// Packets per second.
        rate: u64,
        /// The burst.
        burst: u32,
    },
    /// Logs the packet to an [nflog](crate::nflog) group.
    Log {
        /// The group.
        group: u16,
        /// The prefix of the log entry.
        prefix: String,
    },
}

fn register(number: Register) -> u32 {
    NFT_REG32_00 + u32::from(number)
}

impl Expr {
    fn name(&self) -> &'static str {
        match self {
            Expr::Payload { .. } => "payload",
            Expr::Meta(..) | Expr::SetMark(_) => "meta",
            Expr::Ct(..) => "ct",
            Expr::FibType(..) | Expr::FibReversePath(_) => "fib",
            Expr::Cmp { .. } => "cmp",
            Expr::Range { .. } => "range",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Lookup { .. } | Expr::Map { .. } | Expr::VerdictMap { .. } => "lookup",
            Expr::Verdict(_) | Expr::Load { .. } => "immediate",
            Expr::Dnat { .. } => "nat",
            Expr::Random { .. } => "numgen",
            Expr::UpdateMap { .. } => "dynset",
            Expr::Reject => "reject",
            Expr::Masquerade(_) => "masq",
            Expr::Counter => "counter",
            Expr::NoTrack => "notrack",
            Expr::Limit { .. } => "limit",
            Expr::Log { .. } => "log",
        }
    }

    pub(super) fn encode(&self, message: Message) -> Message {
        message.nest(NFTA_LIST_ELEM, |m| self.encode_bare(m))
    }

    /// Encodes it without the enclosing list element.
    pub(super) fn encode_bare(&self, message: Message) -> Message {
        message.string(NFTA_EXPR_NAME, self.name()).nest(NFTA_EXPR_DATA, |m| self.encode_data(m))
    }

    fn encode_data(&self, m: Message) -> Message {
        match self {
            Expr::Payload { header, offset, length, to } => m
                .be32(NFTA_PAYLOAD_DREG, register(*to))
                .be32(NFTA_PAYLOAD_BASE, header.number())
                .be32(NFTA_PAYLOAD_OFFSET, *offset)
                .be32(NFTA_PAYLOAD_LEN, *length),
            Expr::Meta(meta, to) => m.be32(NFTA_META_DREG, register(*to)).be32(NFTA_META_KEY, meta.number()),
            Expr::SetMark(from) => m.be32(NFTA_META_KEY, NFT_META_MARK).be32(NFTA_META_SREG, register(*from)),
            Expr::Ct(key, to) => m
                .be32(NFTA_CT_DREG, register(*to))
                .be32(NFTA_CT_KEY, key.number())
                .maybe(key.direction(), |m, direction| m.u8(NFTA_CT_DIRECTION, direction)),
            Expr::FibType(of, to) => m
                .be32(NFTA_FIB_DREG, register(*to))
                .be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE)
                .be32(NFTA_FIB_FLAGS, of.flag()),
            Expr::FibReversePath(to) => m
                .be32(NFTA_FIB_DREG, register(*to))
                .be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_OIF)
                .be32(NFTA_FIB_FLAGS, NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF),
            Expr::Cmp { from, inverted, value } => m
                .be32(NFTA_CMP_SREG, register(*from))
                .be32(NFTA_CMP_OP, if *inverted { NFT_CMP_NEQ } else { NFT_CMP_EQ })
                .nest(NFTA_CMP_DATA, |m| m.bytes(NFTA_DATA_VALUE, value)),
            Expr::Range { from, first, last } => m
                .be32(NFTA_RANGE_SREG, register(*from))
                .be32(NFTA_RANGE_OP, NFT_RANGE_EQ)
                .nest(NFTA_RANGE_FROM_DATA, |m| m.bytes(NFTA_DATA_VALUE, first))
                .nest(NFTA_RANGE_TO_DATA, |m| m.bytes(NFTA_DATA_VALUE, last)),
            Expr::Bitwise { register: number, mask, xor } => m
                .be32(NFTA_BITWISE_SREG, register(*number))
                .be32(NFTA_BITWISE_DREG, register(*number))
                .be32(NFTA_BITWISE_LEN, mask.len() as u32)
                .nest(NFTA_BITWISE_MASK, |m| m.bytes(NFTA_DATA_VALUE, mask))
                .nest(NFTA_BITWISE_XOR, |m| m.bytes(NFTA_DATA_VALUE, xor)),
            Expr::Lookup { set, from, inverted } => m
                .string(NFTA_LOOKUP_SET, set)
                .be32(NFTA_LOOKUP_SREG, register(*from))
                .maybe(inverted.then_some(NFT_LOOKUP_F_INV), |m, flag| m.be32(NFTA_LOOKUP_FLAGS, flag)),
            Expr::Map { map, from, to } => m
                .string(NFTA_LOOKUP_SET, map)
                .be32(NFTA_LOOKUP_SREG, register(*from))
                .be32(NFTA_LOOKUP_DREG, register(*to)),
            Expr::VerdictMap { map, from } => m
                .string(NFTA_LOOKUP_SET, map)
                .be32(NFTA_LOOKUP_SREG, register(*from))
                .be32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT),
            Expr::Verdict(verdict) => {
                m.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT).nest(NFTA_IMMEDIATE_DATA, |m| verdict.encode(m))
            }
            Expr::Dnat { family, addr, port } => m
                .be32(NFTA_NAT_TYPE, NFT_NAT_DNAT)
                .be32(NFTA_NAT_FAMILY, family.number().into())
                .be32(NFTA_NAT_REG_ADDR_MIN, register(*addr))
                .be32(NFTA_NAT_REG_PROTO_MIN, register(*port)),
            Expr::Random { modulus, offset, to } => m
                .be32(NFTA_NG_DREG, register(*to))
                .be32(NFTA_NG_MODULUS, *modulus)
                .be32(NFTA_NG_TYPE, NFT_NG_RANDOM)
                .be32(NFTA_NG_OFFSET, *offset),
            Expr::UpdateMap { map, key, data, timeout } => m
                .string(NFTA_DYNSET_SET_NAME, map)
                .be32(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE)
                .be32(NFTA_DYNSET_SREG_KEY, register(*key))
                .be32(NFTA_DYNSET_SREG_DATA, register(*data))
                .be64(NFTA_DYNSET_TIMEOUT, timeout.as_millis() as u64),
            Expr::Reject => m
                .be32(NFTA_REJECT_TYPE, NFT_REJECT_ICMPX_UNREACH)
                .u8(NFTA_REJECT_ICMP_CODE, NFT_REJECT_ICMPX_PORT_UNREACH),
            Expr::Masquerade(0) | Expr::NoTrack => m,
            Expr::Masquerade(flags) => m.be32(NFTA_MASQ_FLAGS, *flags),
            Expr::Counter => m.be64(NFTA_COUNTER_BYTES, 0).be64(NFTA_COUNTER_PACKETS, 0),
            Expr::Load { value, to } => m
                .be32(NFTA_IMMEDIATE_DREG, register(*to))
                .nest(NFTA_IMMEDIATE_DATA, |m| m.bytes(NFTA_DATA_VALUE, value)),
            Expr::Limit { rate, burst } => m
                .be64(NFTA_LIMIT_RATE, *rate)
                .be64(NFTA_LIMIT_UNIT, 1)
                .be32(NFTA_LIMIT_BURST, *burst)
                .be32(NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS),
            Expr::Log { group, prefix } => m.be16(NFTA_LOG_GROUP, *group).string(NFTA_LOG_PREFIX, prefix),
        }
    }
}

impl Header {
    fn number(self) -> u32 {
        match self {
            Header::Link => NFT_PAYLOAD_LL_HEADER,
            Header::Network => NFT_PAYLOAD_NETWORK_HEADER,
            Header::Transport => NFT_PAYLOAD_TRANSPORT_HEADER,
        }
    }
}

impl Meta {
    fn number(self) -> u32 {
        match self {
            Meta::Mark => NFT_META_MARK,
            Meta::IndexIn => NFT_META_IIF,
            Meta::IndexOut => NFT_META_OIF,
            Meta::InterfaceIn => NFT_META_IIFNAME,
            Meta::InterfaceOut => NFT_META_OIFNAME,
            Meta::Family => NFT_META_NFPROTO,
            Meta::EtherType => NFT_META_PROTOCOL,
            Meta::Protocol => NFT_META_L4PROTO,
        }
    }
}

impl Ct {
    fn number(self) -> u32 {
        match self {
            Ct::State => NFT_CT_STATE,
            Ct::Status => NFT_CT_STATUS,
            Ct::OriginalIp4Destination => NFT_CT_DST_IP,
            Ct::OriginalIp6Destination => NFT_CT_DST_IP6,
            Ct::OriginalPortDestination => NFT_CT_PROTO_DST,
        }
    }

    /// The direction, for what each direction has.
    fn direction(self) -> Option<u8> {
        match self {
            Ct::State | Ct::Status => None,
            Ct::OriginalIp4Destination | Ct::OriginalIp6Destination | Ct::OriginalPortDestination => {
                Some(IP_CT_DIR_ORIGINAL)
            }
        }
    }
}

impl Fib {
    fn flag(self) -> u32 {
        match self {
            Fib::Source => NFTA_FIB_F_SADDR,
            Fib::Destination => NFTA_FIB_F_DADDR,
        }
    }
}
