//! What keeps a controller from its work. Flags that can never work end it; all else is told and tried again.

use std::io;
use std::net::SocketAddr;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag that makes no sense, alone or with others.
    #[error("{flag}: {why}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// How to reach the API server.
    #[error(transparent)]
    Access(#[from] podwire_kubernetes::Error),
    /// The API server's answer.
    #[error("kubernetes: {doing}: {why}")]
    Kubernetes {
        /// What was asked.
        doing: String,
        /// The server's or the kernel's words.
        why: String,
    },
    /// The port for health and metrics.
    #[error("cannot serve health and metrics at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel does not tell of signals.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
}

impl Error {
    /// For `map_err`: what was being asked, and the API server's own sentence if there is one.
    pub(crate) fn kubernetes(doing: impl ToString) -> impl FnOnce(kube::Error) -> Error {
        let doing = doing.to_string();
        move |error| Error::Kubernetes { doing, why: podwire_kubernetes::describe(&error) }
    }
}
