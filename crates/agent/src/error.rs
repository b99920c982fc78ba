//! Errors of the agent. Most are reported and retried; only a step that can never succeed ends the program.

use std::io;

use podwire_fs::FileError;

use crate::calico::allocator;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source of nodes and pod CIDRs.
    #[error(transparent)]
    Subnets(#[from] podwire_subnets::Error),
    /// Routes and tunnels, or the choice of the uplink.
    #[error(transparent)]
    Overlay(#[from] podwire_overlay::Error),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The network config asks for a backend that cannot be built.
    #[error("Backend {kind:?} of the network config: {why}")]
    Backend {
        /// The backend's type.
        kind: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// A command of the backend `extension`.
    #[error("command {command:?} of the network config: {why}")]
    Command {
        /// The command.
        command: String,
        /// The system's answer, or the command's stderr.
        why: String,
    },
    /// A file, a directory or a socket.
    #[error(transparent)]
    File(#[from] FileError),
    /// The health port.
    #[error(transparent)]
    Listen(#[from] podwire_http_server::Error),
    /// The policy agent.
    #[error("policies: {0}")]
    Policies(#[from] podwire_policy_agent::Error),
    /// The Services of the node.
    #[error("Services: {0}")]
    Services(#[from] podwire_services::Error),
    /// The files of Services.
    #[error(transparent)]
    ServiceFiles(podwire_policy_agent::Error),
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] podwire_kubernetes::Error),
    /// The block allocator.
    #[error(transparent)]
    Addresses(#[from] allocator::Error),
    /// BIRD.
    #[error(transparent)]
    Bgp(#[from] podwire_bgp::Error),
    /// A thread cannot be started.
    #[error("start thread {name}: {source}")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread that sets up routes has panicked: a bug.
    #[error("the thread that sets up routes has ended; restart the agent")]
    RoutesEnded,
}

impl Error {
    /// The reason of a Kubernetes event about this error.
    pub(crate) fn reason(&self) -> &'static str {
        use podwire_overlay::Error::{AmbiguousInterface, NoAddress, NoInterface, Unreachable};
        use podwire_subnets::Error::{OutOfSubnets, OutsideOfNetwork, PodCidrNotAssigned};
        match self {
            Error::Subnets(PodCidrNotAssigned { .. } | OutOfSubnets(_) | OutsideOfNetwork { .. }) => {
                "RangeMissing"
            }
            Error::Overlay(AmbiguousInterface { .. }) => "InterfaceAmbiguous",
            Error::Overlay(NoInterface { .. } | NoAddress { .. } | Unreachable { .. }) => "InterfaceMissing",
            Error::Backend { .. } => "BackendUnknown",
            _ => "PodNetwork",
        }
    }

    /// For `map_err` of a thread that cannot be started.
    pub(crate) fn thread(name: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Thread { name, source }
    }
}
