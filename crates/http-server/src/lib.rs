//! The HTTP server of the daemons for health and metrics.
//!
//! Input: addresses, and a router for clients on the node and one for all others. [`serve`] always listens on loopback,
//! and on one more address if the administrator chooses one. A [`Server`] listens on one address until it is dropped.
//!
//! Invariant: no client can stop the server or make it grow. A connection carries one request and ends after
//! [`CONNECTION_TIMEOUT`]. Clients on the node and all others each have at most [`MAX_CONNECTIONS`] for each listener of
//! [`serve`], and for all servers with the same [`Connections`]; the next one takes the place of the oldest. So idle and
//! half-open connections delay no request, and connections from pods never replace one of the kubelet.

#![forbid(unsafe_code)]

mod connections;
mod server;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

pub use connections::Connections;
pub use server::Server;

/// The longest lifetime of a connection.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of connections from the node itself, and from elsewhere, for each listener.
pub const MAX_CONNECTIONS: usize = 128;
/// The pause after a failed accept(2): without free descriptors it fails at once, and the socket stays readable.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// The kernel's queue of connections that are not accepted yet; `net.core.somaxconn` limits it further.
const BACKLOG: i32 = 1024;

/// Where the server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// An address in addition to loopback. `0.0.0.0` and `::` stand for all addresses.
    pub ip: Option<IpAddr>,
    /// The TCP port.
    pub port: u16,
}

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve health and metrics at {address}: {source}; choose another address or port")]
pub struct Error {
    /// The address and port.
    pub address: SocketAddr,
    /// The system's answer.
    pub source: io::Error,
}

/// What the server serves.
#[derive(Clone, Debug)]
pub struct Routes {
    /// For clients on the node.
    pub local: Router,
    /// For all other clients.
    pub remote: Router,
}

impl Routes {
    /// The same for all clients.
    pub fn for_all(router: Router) -> Routes {
        Routes { local: router.clone(), remote: router }
    }
}

impl Listen {
    /// The addresses to bind. `0.0.0.0` contains 127.0.0.1, and `::` contains both loopback addresses.
    fn ips(self) -> Vec<IpAddr> {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        match self.ip {
            None => vec![v4, v6],
            Some(ip) if ip == v4 || ip == v6 => vec![v4, v6],
            Some(IpAddr::V6(ip)) if ip.is_unspecified() => vec![ip.into()],
            Some(IpAddr::V4(ip)) if ip.is_unspecified() => vec![ip.into(), v6],
            Some(ip) => vec![v4, v6, ip],
        }
    }
}

/// Serves until the runtime ends. Returns the bound addresses.
pub async fn serve(listen: Listen, routes: Routes) -> Result<Vec<SocketAddr>, Error> {
    let mut listeners = Vec::new();
    let mut absent = None;
    for ip in listen.ips() {
        let address = SocketAddr::new(ip, listen.port);
        match bind(address) {
            Ok(listener) => listeners.push(listener),
            // A node without IPv6, or a namespace whose loopback device is down.
            Err(source) if ip.is_loopback() && is_absent(&source) => absent = Some(Error { address, source }),
            Err(source) => return Err(Error { address, source }),
        }
    }
    if let (true, Some(error)) = (listeners.is_empty(), absent) {
        return Err(error);
    }
    let mut bound = Vec::new();
    for listener in listeners {
        bound.extend(listener.local_addr());
        tokio::spawn(accept(Arc::new(listener), routes.clone(), Connections::default()));
    }
    Ok(bound)
}

/// Whether the node does not have the address, or not its family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || is_family_absent(error)
}

/// Whether the node does not have the address family: an IPv4 node whose kernel has no IPv6.
pub fn is_family_absent(error: &io::Error) -> bool {
    // EAFNOSUPPORT has no `ErrorKind`.
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    if address.is_ipv6() {
        // `::` includes IPv4 whatever net.ipv6.bindv6only says.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    bind_and_listen(socket, address)
}

/// A socket that is not bound yet.
fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

fn bind_and_listen(socket: Socket, address: SocketAddr) -> io::Result<TcpListener> {
    // A restarted daemon does not wait for connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: Arc<TcpListener>, routes: Routes, connections: Connections) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => connections.add(stream, peer.ip(), &routes),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}
