//! Ends connections that a new program forbids. A program judges the first packet of a connection; this is for those whose first
//! packet was judged by a program that is no more.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::dataplane::Nftables;
use podwire_netlink::ct::{self, Connection};
use podwire_netlink::nft::Family;
use podwire_netlink::{rt, Socket};
use podwire_policy::{Packet, Program, Protocol, Verdict};

use crate::Result;

/// Who knows by which program connections were judged last.
#[derive(Debug)]
pub(crate) struct ConnectionCleanup {
    connections: Socket,
    routes: Socket,
    /// The program that all connections are allowed by. At first nobody knows what was before.
    judged: Program,
}

impl ConnectionCleanup {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<ConnectionCleanup> {
        let (connections, routes) = (Socket::netfilter()?, Socket::route()?);
        Ok(ConnectionCleanup { connections, routes, judged: Program::default() })
    }

    /// There was a hole in the rules: what came through was judged by nobody.
    pub fn doubt(&mut self) {
        self.judged = Program::default();
    }

    /// Ends the connections that the program, which is in the kernel, does not allow; says how many. Where nothing was taken
    /// away since the last time, none is looked at.
    pub fn cut(&mut self, program: &Program, kernel: &mut Nftables) -> Result<usize> {
        let pods = program.narrowed_since(&self.judged);
        let mut cut = 0;
        if !pods.is_empty() {
            let own: BTreeSet<IpAddr> =
                rt::address::list(&mut self.routes, 0)?.into_iter().map(|address| address.ip).collect();
            for (family, is_v4) in [(Family::Ip, true), (Family::Ip6, false)] {
                if pods.iter().any(|ip| ip.is_ipv4() == is_v4) {
                    cut += self.cut_in(family, kernel, |one| is_forbidden(one, program, &pods, &own))?;
                }
            }
        }
        self.judged = program.clone();
        Ok(cut)
    }

    fn cut_in(
        &mut self,
        family: Family,
        kernel: &mut Nftables,
        is_forbidden: impl Fn(&Connection) -> bool,
    ) -> Result<usize> {
        let forbidden = ct::list(&mut self.connections, family, is_forbidden)?;
        let of_tcp = forbidden.iter().filter(|one| one.protocol == Protocol::Tcp.number());
        let ends: Vec<(SocketAddr, SocketAddr)> = of_tcp.map(|one| (one.from, one.to)).collect();
        // First nothing new may grow from what is left of them, then they are forgotten.
        kernel.end(&ends)?;
        ct::forget(&mut self.connections, &forbidden)?;
        Ok(forbidden.len())
    }
}

/// Whether it is one of these pods' and would not be allowed if it began now. One that another announced is no matter of
/// rules: it passes because of that one.
fn is_forbidden(
    connection: &Connection,
    program: &Program,
    pods: &BTreeSet<IpAddr>,
    own: &BTreeSet<IpAddr>,
) -> bool {
    let (source, destination) = (connection.from.ip(), connection.to.ip());
    if connection.is_announced || !(pods.contains(&source) || pods.contains(&destination)) {
        return false;
    }
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == connection.protocol);
    let service = protocol.map(|protocol| (protocol, connection.to.port()));
    program.judge_on(&Packet { source, destination, service }, own) == Verdict::Deny
}
