//! Expressions: the instructions of which a rule is made. They read parts of the packet into registers,
//! compare registers or look them up, and end in a verdict or an action. `nft --debug=netlink` prints rules
//! in the same terms.

use super::abi::*;
use super::value::Verdict;
use super::Family;
use crate::message::Message;

/// One of sixteen registers of four bytes. A longer value lies in this and the following ones.
pub type Register = u8;

/// Where in a packet an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The Ethernet header.
    Link,
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// What is known about a packet besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// Its mark.
    Mark,
    /// The name of the device through which it came.
    InterfaceIn,
    /// The name of the device through which it will leave.
    InterfaceOut,
    /// IPv4 or IPv6 (`NFPROTO_…`).
    Family,
    /// TCP, UDP … (`IPPROTO_…`).
    Protocol,
    /// IPv4, IPv6, ARP … (`ETH_P_…`), in network order.
    EtherType,
}

/// What connection tracking knows about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ct {
    /// New, established, related …: bits of [`super::Rule::ESTABLISHED`] and its like.
    State,
    /// Whether the connection's addresses are rewritten, and more: `IPS_…` bits.
    Status,
}

/// Which address the routing table is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fib {
    /// The packet's source.
    Source,
    /// The packet's destination.
    Destination,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Reads bytes of the packet; ends the rule if they are not there.
    Payload {
        /// From which header.
        header: Header,
        /// The first byte.
        offset: u32,
        /// How many.
        length: u32,
        /// Into which register.
        to: Register,
    },
    /// Reads what is known about the packet.
    Meta(Meta, Register),
    /// Gives the packet the mark in a register.
    SetMark(Register),
    /// Reads what is known about the packet's connection.
    Ct(Ct, Register),
    /// Asks what the routing table holds an address for (`RTN_LOCAL`, `RTN_UNICAST` …).
    FibType(Fib, Register),
    /// Ends the rule unless the register equals (or, inverted, differs from) the value.
    Cmp {
        /// Which register.
        from: Register,
        /// Whether it must differ.
        inverted: bool,
        /// The value.
        value: Vec<u8>,
    },
    /// Ends the rule unless the register is between two values, both included.
    Range {
        /// Which register.
        from: Register,
        /// The smallest value.
        first: Vec<u8>,
        /// The largest value.
        last: Vec<u8>,
    },
    /// `register = register & mask ^ xor`
    Bitwise {
        /// Which register.
        register: Register,
        /// The bits that stay.
        mask: Vec<u8>,
        /// The bits that are turned over.
        xor: Vec<u8>,
    },
    /// Ends the rule unless the set holds the key (or, inverted, if it does).
    Lookup {
        /// The set.
        set: String,
        /// Where the key is.
        from: Register,
        /// Whether the key must be missing.
        inverted: bool,
    },
    /// Ends the rule unless the map holds the key; otherwise loads what it leads to.
    Map {
        /// The map.
        map: String,
        /// Where the key is.
        from: Register,
        /// Where the data goes.
        to: Register,
    },
    /// As `Map`, for a map of verdicts: the verdict is the rule's.
    VerdictMap {
        /// The map.
        map: String,
        /// Where the key is.
        from: Register,
    },
    /// The rule's verdict.
    Verdict(Verdict),
    /// Rewrites the connection's destination.
    Dnat {
        /// IPv4 or IPv6.
        family: Family,
        /// Where the new address is.
        addr: Register,
        /// Where the new port is.
        port: Register,
    },
    /// Rewrites the connection's source to the address of the device through which it leaves. Flags are of
    /// `linux/netfilter/nf_nat.h` (`NF_NAT_RANGE_…`); 0 keeps the port where it can.
    Masquerade(u32),
    /// Counts packets and bytes.
    Counter,
    /// Puts a value into a register.
    Load {
        /// The value.
        value: Vec<u8>,
        /// Into which register.
        to: Register,
    },
    /// Ends the rule for what is more than so many packets a second.
    Limit {
        /// How many a second.
        rate: u64,
        /// How many at once, after a while without any.
        burst: u32,
    },
    /// Shows the packet to whoever [listens](crate::nflog) to the group.
    Log {
        /// The group.
        group: u16,
        /// What the listener is told with it.
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
            Expr::FibType(..) => "fib",
            Expr::Cmp { .. } => "cmp",
            Expr::Range { .. } => "range",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Lookup { .. } | Expr::Map { .. } | Expr::VerdictMap { .. } => "lookup",
            Expr::Verdict(_) | Expr::Load { .. } => "immediate",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade(_) => "masq",
            Expr::Counter => "counter",
            Expr::Limit { .. } => "limit",
            Expr::Log { .. } => "log",
        }
    }

    pub(super) fn encode(&self, message: Message) -> Message {
        message.nest(NFTA_LIST_ELEM, |m| self.encode_bare(m))
    }

    /// Without the brackets of a list.
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
            Expr::Ct(key, to) => m.be32(NFTA_CT_DREG, register(*to)).be32(NFTA_CT_KEY, key.number()),
            Expr::FibType(of, to) => m
                .be32(NFTA_FIB_DREG, register(*to))
                .be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE)
                .be32(NFTA_FIB_FLAGS, of.flag()),
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
            Expr::Masquerade(0) => m,
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
