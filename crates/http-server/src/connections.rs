//! The connections of one group of clients. A new connection always gets a place.

use std::collections::VecDeque;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::{CONNECTION_TIMEOUT, MAX_CONNECTIONS};

/// The largest request line and headers, in bytes.
const MAX_HEADERS: usize = 16 << 10;

pub(crate) struct Connections {
    router: Router,
    /// The connections that may still be open, oldest first.
    open: VecDeque<AbortHandle>,
}

impl Connections {
    pub(crate) fn new(router: Router) -> Connections {
        Connections { router, open: VecDeque::new() }
    }

    /// Serves a connection. If there are too many, the oldest one ends.
    pub(crate) fn add(&mut self, stream: TcpStream) {
        if self.open.len() >= MAX_CONNECTIONS {
            self.open.retain(|connection| !connection.is_finished());
        }
        if self.open.len() >= MAX_CONNECTIONS {
            if let Some(oldest) = self.open.pop_front() {
                oldest.abort();
            }
        }
        self.open.push_back(tokio::spawn(serve_request(stream, self.router.clone())).abort_handle());
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
