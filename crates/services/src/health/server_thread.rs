//! The thread that answers.

use std::convert::Infallible;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a tokio runtime. It ends when this handle is dropped.
#[derive(Debug)]
pub(super) struct ServerThread {
    pub runtime: Handle,
    _stop: oneshot::Sender<Infallible>,
}

impl ServerThread {
    pub fn start() -> io::Result<ServerThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            // Nothing is ever sent: this is the end of the sender.
            let _: Result<Infallible, _> = runtime.block_on(stopped);
        };
        thread::Builder::new().name("services-health".into()).spawn(run)?;
        Ok(ServerThread { runtime: handle, _stop: stop })
    }
}
