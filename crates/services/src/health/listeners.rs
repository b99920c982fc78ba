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

#[cfg(test)]
mod tests {
    use super::super::server_thread::ServerThread;
    use super::*;

    #[test]
    fn other_parts_of_the_agent_keep_half_of_its_open_files() {
        assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
        let inside = || {
            sys::new_network_namespace().unwrap();
            let thread = ServerThread::start().unwrap();
            let mut listeners = Listeners::new(thread.runtime.clone()).unwrap();
            assert!(listeners.max > 2);
            listeners.max = 2;
            let at = |ports: &[u16]| ports.iter().map(|port| ([192, 0, 2, 1], *port).into()).collect();
            let mut failures = |wanted: BTreeSet<SocketAddr>| {
                listeners.close_others(&wanted);
                let failures = listeners.open(&wanted, |_| Router::new()).into_iter();
                failures.map(|(at, error)| format!("{} {error}", at.port())).collect::<Vec<_>>()
            };
            let reason = "2 ports are open, half of the agent's limit of open files";
            assert_eq!(failures(at(&[1, 2, 3])), [format!("3 {reason}")]);
            assert_eq!(failures(at(&[2, 3])), [""; 0]);
        };
        std::thread::spawn(inside).join().unwrap();
    }
}
