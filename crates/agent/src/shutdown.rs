//! The signals that end the agent.

use podwire_fs::FileError;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tracing::info;

use crate::Result;

/// SIGTERM and SIGINT.
pub(crate) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// Starts to listen for the signals.
    pub(crate) fn listen() -> Result<Shutdown> {
        let listen = |kind| signal(kind).map_err(FileError::at("listen for", "signals"));
        Ok(Shutdown {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Returns after the first signal.
    pub(crate) async fn wait(&mut self) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        info!(signal, "agent stops; routes, rules and leases stay");
    }
}
