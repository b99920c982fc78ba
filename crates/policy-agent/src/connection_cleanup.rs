//! Closes connections that a new program denies. The rules check only the first packet of a connection; this module
//! handles connections whose first packet a previous program accepted.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use podwire_ip::IpFamily;
use podwire_netlink::ct::{self, Connection};
use podwire_netlink::nft::Family;
use podwire_netlink::{rt, Socket};
use podwire_policy::{Packet, Program, Protocol, Verdict};

use crate::dataplane::Nftables;
use crate::Result;

#[derive(Debug)]
pub(crate) struct ConnectionCleanup {
    conntrack: Socket,
    routes: Socket,
    /// The program that allows all connections of now. At first it is empty: what was before is not known.
    checked: Program,
}

impl ConnectionCleanup {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<ConnectionCleanup> {
        let (conntrack, routes) = (Socket::netfilter()?, Socket::route()?);
        Ok(ConnectionCleanup { conntrack, routes, checked: Program::default() })
    }

    /// Makes the next call check all connections: the rules had a gap, and connections may have come through it
    /// unchecked.
    pub fn forget_checked(&mut self) {
        self.checked = Program::default();
    }

    /// Closes the connections that the program, which is in the kernel, does not allow. Returns their number. If the
    /// program denies nothing that the last one allowed, it reads no connection.
    pub fn close_denied(&mut self, program: &Program, tables: &mut Nftables) -> Result<usize> {
        let pods = program.restricted_since(&self.checked);
        let mut closed = 0;
        if !pods.is_empty() {
            let node: BTreeSet<IpAddr> =
                rt::address::list(&mut self.routes, 0)?.into_iter().map(|address| address.ip).collect();
            for family in IpFamily::ALL {
                if pods.iter().any(|ip| IpFamily::of(*ip) == family) {
                    let is_denied = |one: &Connection| is_denied(one, program, &pods, &node);
                    closed += self.close(family, tables, is_denied)?;
                }
            }
        }
        self.checked = program.clone();
        Ok(closed)
    }

    fn close(
        &mut self,
        family: IpFamily,
        tables: &mut Nftables,
        is_denied: impl Fn(&Connection) -> bool,
    ) -> Result<usize> {
        let family = if family.is_v4() { Family::Ip } else { Family::Ip6 };
        let denied = ct::list(&mut self.conntrack, family, is_denied)?;
        let tcp = denied.iter().filter(|one| one.protocol == Protocol::Tcp.number());
        let ends: Vec<(SocketAddr, SocketAddr)> = tcp.map(|one| (one.from, one.to)).collect();
        // 1. Block late packets, so that none of them starts a new entry. 2. Delete the conntrack entries.
        tables.block_closed_connections(&ends)?;
        ct::forget(&mut self.conntrack, &denied)?;
        Ok(denied.len())
    }
}

/// Whether the connection belongs to one of the pods and would be denied if it started now. A connection that another
/// one announced (RELATED, such as FTP data) is accepted because of that other one, not by a rule.
fn is_denied(
    connection: &Connection,
    program: &Program,
    pods: &BTreeSet<IpAddr>,
    node: &BTreeSet<IpAddr>,
) -> bool {
    let (source, destination) = (connection.from.ip(), connection.to.ip());
    if connection.is_announced || !(pods.contains(&source) || pods.contains(&destination)) {
        return false;
    }
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == connection.protocol);
    let service = protocol.map(|protocol| (protocol, connection.to.port()));
    program.evaluate_on_node(&Packet { source, destination, service }, node) == Verdict::Deny
}
