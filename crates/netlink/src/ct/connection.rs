//! Connections one by one, for those who judge them.

use std::net::SocketAddr;

use super::{
    carry_out, message, part, source, Entry, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_TUPLE_MASTER,
    CTA_TUPLE_PROTO, HEADER, IPCTNL_MSG_CT_GET,
};
use crate::attr;
use crate::error::Result;
use crate::message::{Batch, Frame};
use crate::nft::Family;
use crate::socket::Socket;

/// A connection that the kernel knows, as a router in between sees it: who began it, and who answers behind whatever
/// address the first one asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `IPPROTO_TCP` or the like.
    pub protocol: u8,
    /// Who began it. What has no ports has port 0.
    pub from: SocketAddr,
    /// Who answers.
    pub to: SocketAddr,
    /// Whether another connection announced it, such as that of a file transfer.
    pub is_announced: bool,
    family: Family,
    entry: Entry,
}

impl Connection {
    fn decode(frame: &Frame<'_>, family: Family) -> Option<Connection> {
        let entry = Entry::decode(frame)?;
        let port = |tuple: &[u8], kind: u16| part(tuple, CTA_TUPLE_PROTO, kind).and_then(|a| a.be16());
        Some(Connection {
            protocol: part(&entry.original, CTA_TUPLE_PROTO, CTA_PROTO_NUM)?.u8()?,
            from: SocketAddr::new(
                source(&entry.original)?,
                port(&entry.original, CTA_PROTO_SRC_PORT).unwrap_or(0),
            ),
            // Its destination may be translated; the one who answers is who the packets go to.
            to: SocketAddr::new(source(&entry.reply)?, port(&entry.reply, CTA_PROTO_SRC_PORT).unwrap_or(0)),
            is_announced: attr::find(frame.body.get(HEADER..)?, CTA_TUPLE_MASTER).is_some(),
            family,
            entry,
        })
    }
}

/// The connections of IPv4 ([`Family::Ip`]) or IPv6 ([`Family::Ip6`]) for which `wanted` is true.
pub fn list(
    socket: &mut Socket,
    family: Family,
    mut wanted: impl FnMut(&Connection) -> bool,
) -> Result<Vec<Connection>> {
    let asked = message(IPCTNL_MSG_CT_GET, family, 0, format!("list the connections of {family:?}"));
    socket.list(asked, |frame| Connection::decode(&frame, family).filter(|connection| wanted(connection)))
}

/// Forgets these: their next packet begins a connection, as far as the kernel knows. Those that are gone already are no failure.
pub fn forget(socket: &mut Socket, connections: &[Connection]) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(connections.iter().map(|connection| {
        let Connection { from, to, protocol, .. } = connection;
        let doing = format!("forget the connection of protocol {protocol} from {from} to {to}");
        connection.entry.deletion(connection.family, doing)
    }));
    carry_out(socket, batch)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ports, with_flows};
    use super::*;

    #[test]
    fn a_connection_goes_to_who_answers_and_only_the_named_ones_are_forgotten() {
        with_flows(|socket| {
            let all = list(socket, Family::Ip, |_| true).unwrap();
            assert_eq!(all.len(), 3, "{all:?}");
            let translated = |one: &Connection| one.to.to_string() == "127.0.0.9:1002";
            let one = list(socket, Family::Ip, translated).unwrap();
            assert_eq!(one.len(), 1, "{all:?}");
            assert_eq!((one[0].protocol, one[0].is_announced), (17, false));
            forget(socket, &one).unwrap();
            assert_eq!(ports(), [1001, 1001]);
            // Again: it is gone, as it should be.
            forget(socket, &one).unwrap();
            assert!(list(socket, Family::Ip6, |_| true).unwrap().is_empty());
            forget(socket, &all).unwrap();
            assert_eq!(ports(), []);
            forget(socket, &[]).unwrap();
        });
    }
}
