//! Errors of the controller. Flags that can never work end it; everything else is reported and retried.

use std::io;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag has an invalid value, alone or in combination.
    #[error("{flag}: {why}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// The client for the API server cannot be created.
    #[error(transparent)]
    Client(#[from] podwire_kubernetes::Error),
    /// A request to the API server failed.
    #[error("kubernetes: {doing}: {why}")]
    Kubernetes {
        /// The request.
        doing: String,
        /// The server's message or the system's error.
        why: String,
    },
    /// The port for health and metrics is not available.
    #[error(transparent)]
    Listen(#[from] podwire_http_server::Error),
    /// Signal handlers cannot be installed.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
}

impl Error {
    /// For `map_err`: the request that failed, with the API server's message if there is one.
    pub(crate) fn kubernetes(doing: impl ToString) -> impl FnOnce(kube::Error) -> Error {
        let doing = doing.to_string();
        move |error| Error::Kubernetes { doing, why: podwire_kubernetes::describe(&error) }
    }
}
