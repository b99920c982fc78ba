//! A server at one address, which can be closed.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::{accept, bind_and_listen, new_socket, Connections, Routes};

/// A server at one address. Dropping it closes the port; requests that it has accepted are still answered.
#[derive(Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    accepting: AbortHandle,
}

impl Server {
    /// Starts a server in the tokio runtime of the caller. The node need not have the address yet. `::` does not include
    /// IPv4. Servers with the same `connections` share their limits.
    pub fn start(address: SocketAddr, routes: Routes, connections: &Connections) -> io::Result<Server> {
        let socket = new_socket(address)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
            socket.set_freebind_v6(true)?;
        } else {
            socket.set_freebind_v4(true)?;
        }
        let listener = Arc::new(bind_and_listen(socket, address)?);
        let accepting = tokio::spawn(accept(listener.clone(), routes, connections.clone())).abort_handle();
        Ok(Server { listener, accepting })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The runtime drops the task and its part of the listener later. The port is free now.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        self.accepting.abort();
    }
}
