//! The connections of clients on the node and of all others. A new connection always gets a place.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::{Routes, CONNECTION_TIMEOUT, MAX_CONNECTIONS};

/// The largest request line and headers, in bytes.
const MAX_HEADERS: usize = 16 << 10;

/// The open connections of the servers that share this value: at most [`MAX_CONNECTIONS`] from the node itself, and as
/// many from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    local: Group,
    remote: Group,
}

impl Connections {
    /// Serves a connection.
    pub(crate) fn add(&self, stream: TcpStream, peer: IpAddr, routes: &Routes) {
        if peer.to_canonical().is_loopback() {
            self.local.add(stream, routes.local.clone());
        } else {
            self.remote.add(stream, routes.remote.clone());
        }
    }
}

/// The connections that may still be open, oldest first.
#[derive(Clone, Debug, Default)]
struct Group(Arc<Mutex<VecDeque<AbortHandle>>>);

impl Group {
    /// Serves a connection. If there are too many, the oldest one ends.
    fn add(&self, stream: TcpStream, router: Router) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_CONNECTIONS {
            open.retain(|connection| !connection.is_finished());
        }
        if open.len() >= MAX_CONNECTIONS {
            if let Some(oldest) = open.pop_front() {
                oldest.abort();
            }
        }
        open.push_back(tokio::spawn(serve_request(stream, router)).abort_handle());
    }
}

/// Answers one request. A connection that does not end in time is closed; the client decides what to do then.
async fn serve_request(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}
