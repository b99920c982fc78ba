//! What rules look at: fields of packets, and what the kernel knows of them.

use std::net::IpAddr;

use podwire_ip::IpFamily;

use super::expr::{Ct, Expr, Fib, Header, Meta};
use super::ip_terms::IpTerms;

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
        IpFamily::of(*of).source()
    }

    /// The destination address field of an address's family.
    pub fn destination(of: &IpAddr) -> Field {
        IpFamily::of(*of).destination()
    }

    pub(super) fn length(self) -> u32 {
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

    pub(super) fn load(self, to: u8) -> Expr {
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
