//! The API server of the node: the stand-in, in a thread of this program.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_test_servers::StandInApiServer;
use serde_json::{json, Value};
use tokio::sync::oneshot;

use crate::objects::{service_cidr, EndpointPort, Service, ENDPOINTS, SERVICES, SERVICE_CIDRS, SLICES};
use crate::site::NODE_IP;

/// The address in the node's namespace.
pub const ADDRESS: &str = "127.0.0.1:6443";

pub struct Api {
    server: Arc<StandInApiServer>,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl Api {
    /// Starts it with this number of Services, and one more for the measured events.
    pub fn start(netns: Netns, services: u32) -> Result<Api> {
        let (started, server) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                let _ = started.send(Arc::new(StandInApiServer::start_at(ADDRESS).await));
                let _ = stopped.await;
            });
        };
        std::thread::spawn(move || netns.run(serve));
        let server = server.recv().context("the API server does not start")?;
        server.put("own", json!({}), &["10.1.0.0/24"]);
        server.set_internal_ip("own", NODE_IP);
        server.put_object(SERVICE_CIDRS, service_cidr());
        let api = Api { server, _stop: stop };
        for service in (0..=services).map(Service) {
            api.server.put_object(SERVICES, service.object());
            api.put_slice(service.slice(0..ENDPOINTS, EndpointPort::A));
        }
        // Watches need not read the beginning.
        api.server.compact();
        Ok(api)
    }

    /// Changes an EndpointSlice.
    pub fn put_slice(&self, slice: Value) {
        self.server.put_object(SLICES, slice);
    }
}

/// The time in which the stand-in lists all EndpointSlices. In the namespace of the node.
pub fn list_time() -> Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(ADDRESS).context("connect to the API server")?;
    write!(stream, "GET {SLICES} HTTP/1.1\r\nHost: {ADDRESS}\r\n\r\n")
        .context("request the EndpointSlices")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).context("read the EndpointSlices")?;
    ensure!(response.starts_with(b"HTTP/1.1 200 "), "the API server does not list the EndpointSlices");
    Ok(start.elapsed())
}
