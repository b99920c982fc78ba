//! Connections that the agent closed: their late packets are dropped.
//!
//! The rules accept packets of a connection that the kernel tracks. The next packet of a connection that was deleted
//! from conntrack is checked again, and there is a trap: if the server sends first, that packet looks like the start of
//! a connection in the other direction, which policies may allow, and the connection goes on. So the table remembers
//! closed TCP connections, in both directions. Only packets that open no connection (they have an ACK) and that
//! conntrack does not know are compared with them: established connections pay nothing, and a new connection between
//! the same ports is checked as any other.

use std::net::SocketAddr;
use std::time::Duration;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Field, IpTerms, Rule, Transaction, Type, Value};
use podwire_policy::{Direction, Protocol};

use super::family::NftFamily;
use super::model::{DesiredTable, SetKind};
use super::names::POLICY_TABLE;
use super::reasons::{Reasons, CLOSED_CONNECTION};

/// Source and destination, with their ports.
const CLOSED: &str = "closed";
/// The time for which conntrack itself keeps an idle connection (`nf_conntrack_tcp_timeout_established`).
const LIFETIME: Duration = Duration::from_secs(5 * 24 * 3600);

/// The sets of closed connections.
pub(super) fn build(table: &mut DesiredTable) {
    for family in IpFamily::ALL {
        let key = vec![family.address_type(), Type::Port, family.address_type(), Type::Port];
        table.add_set(family.set_name(CLOSED), SetKind::Expiring(key, LIFETIME), Vec::new());
    }
}

/// The rules that drop late packets. They follow the rule that accepts established connections.
pub(super) fn rules(direction: Direction, reasons: &Reasons) -> Vec<Rule> {
    let rule = |family: IpFamily| {
        let tcp = Rule::new().family(family.packet_family()).is(Field::Protocol, &[Protocol::Tcp.number()]);
        let key = [family.source(), Field::PortSource, family.destination(), Field::PortDestination];
        let late = tcp.any_bit(Field::TcpFlags, Rule::ACK).in_set(&key, &family.set_name(CLOSED));
        reasons.drop(late, direction, CLOSED_CONNECTION).comment(CLOSED_CONNECTION)
    };
    IpFamily::ALL.map(rule).into()
}

/// Adds the connections to the sets, in both directions.
pub(super) fn add(transaction: &mut Transaction, connections: &[(SocketAddr, SocketAddr)]) {
    for family in IpFamily::ALL {
        let of_family = connections.iter().filter(|(from, _)| family.has(&from.ip()));
        let both = of_family.flat_map(|(from, to)| [element(*from, *to), element(*to, *from)]);
        transaction.add_elements(&POLICY_TABLE, &family.set_name(CLOSED), &both.collect::<Vec<_>>());
    }
}

fn element(from: SocketAddr, to: SocketAddr) -> Element {
    let key = Value::ip(from.ip()).and_port(from.port()).and_ip(to.ip()).and_port(to.port());
    Element::key(key)
}
