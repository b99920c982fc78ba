//! The sockets of one kind of servers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use axum::Router;
use podwire_http_server::{is_family_absent, Connections, Routes, Server};
use podwire_netlink::sys;
use tokio::runtime::Handle;

/// Servers by address. They share the limits of connections: users of the API choose the number of servers.
#[derive(Debug)]
pub(super) struct Listeners {
    runtime: Handle,
    servers: BTreeMap<SocketAddr, Server>,
    connections: Connections,
    max: usize,
}

impl Listeners {
    pub fn new(runtime: Handle) -> io::Result<Listeners> {
        // The other half is for the rest of the agent.
        let max = usize::try_from(sys::max_open_files()? / 2).unwrap_or(usize::MAX);
        Ok(Listeners { runtime, servers: BTreeMap::new(), connections: Connections::default(), max })
    }

    /// Closes servers that are no longer wanted.
    pub fn close_others(&mut self, wanted: &BTreeSet<SocketAddr>) {
        self.servers.retain(|address, _| wanted.contains(address));
    }

    /// Starts servers that are missing. Returns those that cannot be started.
    pub fn open(
        &mut self,
        wanted: &BTreeSet<SocketAddr>,
        routes: impl Fn(SocketAddr) -> Router,
    ) -> Vec<(SocketAddr, io::Error)> {
        let mut failures = Vec::new();
        for address in wanted {
            if self.servers.contains_key(address) {
                continue;
            }
            match self.start(*address, routes(*address)) {
                Ok(server) => _ = self.servers.insert(*address, server),
                // A node without IPv6 serves all its addresses without it.
                Err(error) if address.ip().is_unspecified() && is_family_absent(&error) => {}
                Err(error) => failures.push((*address, error)),
            }
        }
        failures
    }

    fn start(&self, address: SocketAddr, router: Router) -> io::Result<Server> {
        if self.servers.len() >= self.max {
            let text = format!("{} ports are open, half of the agent's limit of open files", self.max);
            return Err(io::Error::other(text));
        }
        let _runtime = self.runtime.enter();
        Server::start(address, Routes::for_all(router), &self.connections)
    }
}
