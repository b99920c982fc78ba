//! Single connections, for callers that decide about each.

use std::net::{IpAddr, SocketAddr};

use super::entry::{
    destination, message, part, send_deletions, source, Entry, CTA_PROTO_DST_PORT, CTA_PROTO_NUM,
    CTA_PROTO_SRC_PORT, CTA_TUPLE_MASTER, CTA_TUPLE_PROTO, HEADER, IPCTNL_MSG_CT_GET,
};
use crate::attr;
use crate::error::Result;
use crate::message::{Batch, Frame};
use crate::nft::Family;
use crate::socket::Socket;

/// A tracked connection, with the client and the actual server behind address translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `IPPROTO_TCP` or the like.
    pub protocol: u8,
    /// The client. Port 0 for protocols without ports.
    pub from: SocketAddr,
    /// The server that replies.
    pub to: SocketAddr,
    /// Where the client sends to, before translation.
    pub sent_to: SocketAddr,
    /// Whether another connection announced it (`related`), such as an FTP data connection.
    pub is_announced: bool,
    family: Family,
    entry: Entry,
}

impl Connection {
    /// All its addresses: of both ends, before and after translation.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let of = |tuple: &[u8]| [source(tuple), destination(tuple)];
        [of(&self.entry.original), of(&self.entry.reply)].into_iter().flatten().flatten()
    }

    fn decode(frame: &Frame<'_>, family: Family) -> Option<Connection> {
        let entry = Entry::decode(frame)?;
        let port = |tuple: &[u8], kind: u16| part(tuple, CTA_TUPLE_PROTO, kind).and_then(|a| a.be16());
        Some(Connection {
            protocol: part(&entry.original, CTA_TUPLE_PROTO, CTA_PROTO_NUM)?.u8()?,
            from: SocketAddr::new(
                source(&entry.original)?,
                port(&entry.original, CTA_PROTO_SRC_PORT).unwrap_or(0),
            ),
            // The destination may be translated; the source of the reply is the actual server.
            to: SocketAddr::new(source(&entry.reply)?, port(&entry.reply, CTA_PROTO_SRC_PORT).unwrap_or(0)),
            sent_to: SocketAddr::new(
                destination(&entry.original)?,
                port(&entry.original, CTA_PROTO_DST_PORT).unwrap_or(0),
            ),
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
    let request = message(IPCTNL_MSG_CT_GET, family, 0, format!("list the connections of {family:?}"));
    socket.list(request, |frame| Connection::decode(&frame, family).filter(|connection| wanted(connection)))
}

/// Deletes the entries of these connections: the kernel treats the next packet as a new connection. Entries that are
/// already gone are no failure.
pub fn forget(socket: &mut Socket, connections: &[Connection]) -> Result<()> {
    let mut batch = Batch::new();
    batch.extend(connections.iter().map(|connection| {
        let Connection { from, to, protocol, .. } = connection;
        let doing = format!("delete the conntrack entry of protocol {protocol} from {from} to {to}");
        connection.entry.deletion(connection.family, doing)
    }));
    send_deletions(socket, batch)
}

#[cfg(test)]
mod tests {
    use super::super::flows::{ports, with_flows};
    use super::*;

    #[test]
    fn connections_name_the_actual_server_and_only_listed_ones_are_deleted() {
        with_flows(|socket| {
            let all = list(socket, Family::Ip, |_| true).unwrap();
            assert_eq!(all.len(), 3, "{all:?}");
            let translated = |one: &Connection| one.to.to_string() == "127.0.0.9:1002";
            let one = list(socket, Family::Ip, translated).unwrap();
            assert_eq!(one.len(), 1, "{all:?}");
            assert_eq!((one[0].protocol, one[0].is_announced), (17, false));
            assert_eq!(one[0].sent_to.to_string(), "127.0.0.1:1002");
            let addresses: Vec<String> = one[0].addresses().map(|ip| ip.to_string()).collect();
            assert_eq!(addresses, ["127.0.0.1", "127.0.0.1", "127.0.0.9", "127.0.0.1"]);
            forget(socket, &one).unwrap();
            assert_eq!(ports(), [1001, 1001]);
            // Again: it is already gone.
            forget(socket, &one).unwrap();
            assert!(list(socket, Family::Ip6, |_| true).unwrap().is_empty());
            forget(socket, &all).unwrap();
            assert_eq!(ports(), []);
            forget(socket, &[]).unwrap();
        });
    }
}
