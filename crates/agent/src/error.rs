//! What keeps an agent from its work. It is told, and tried again; only what can never succeed ends the program.

use std::io;
use std::path::PathBuf;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source of nodes.
    #[error(transparent)]
    Source(#[from] podwire_subnets::Error),
    /// The kernel, or the choice of an interface.
    #[error(transparent)]
    Fabric(#[from] podwire_overlay::Error),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The network's config asks for roads that cannot be built.
    #[error("Backend {kind:?} of the network's config: {why}")]
    Backend {
        /// Its type.
        kind: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// A command of the config.
    #[error("command {command:?} of the network's config: {why}")]
    Command {
        /// The command.
        command: String,
        /// The system's answer, or the command's own words.
        why: String,
    },
    /// A file could not be written.
    #[error("{doing} {path:?}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The port for health and metrics.
    #[error("cannot serve health and metrics at {address}: {source}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Policies cannot be enforced.
    #[error("policies: {0}")]
    Policies(#[from] podwire_policy_agent::Error),
    /// The owner of the node's blocks.
    #[error(transparent)]
    Addresses(#[from] podwire_steward::Error),
    /// The roads to blocks.
    #[error(transparent)]
    Blocks(#[from] podwire_router::Error),
    /// The thread that owns the kernel's side is gone: a bug.
    #[error("the thread that makes the roads has ended")]
    RoadsEnded,
}

impl Error {
    /// What it is about, in the one word by which events are told apart.
    pub(crate) fn reason(&self) -> &'static str {
        use podwire_overlay::Error::{AmbiguousInterface, NoAddress, NoInterface, Unreachable};
        use podwire_subnets::Error::{NoRangeYet, NoneFree, OutsideOfNetwork};
        match self {
            Error::Source(NoRangeYet { .. } | NoneFree(_) | OutsideOfNetwork { .. }) => "RangeMissing",
            Error::Fabric(AmbiguousInterface { .. }) => "InterfaceAmbiguous",
            Error::Fabric(NoInterface { .. } | NoAddress { .. } | Unreachable { .. }) => "InterfaceMissing",
            Error::Backend { .. } => "BackendUnknown",
            _ => "PodNetwork",
        }
    }

    /// For `map_err` of file operations.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }
}
