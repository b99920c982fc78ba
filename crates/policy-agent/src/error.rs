//! Errors of the policy agent.

use std::path::PathBuf;

/// The result of the policy agent's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the policy agent failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, a directory or a socket.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// A file with invalid content.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        reason: String,
    },
    /// The API server.
    #[error(transparent)]
    Kubernetes(#[from] podwire_kubernetes::Error),
    /// A flag with an invalid value.
    #[error("{flag}: {reason}")]
    Config {
        /// The flag.
        flag: &'static str,
        /// What is wrong, and what to write instead.
        reason: String,
    },
    /// The kernel refused the rules. The previous rules stay in force.
    #[error("apply the network policies: {0}; the previous rules stay in force")]
    Apply(#[source] podwire_netlink::Error),
    /// Another program changes nftables rules all the time.
    #[error(
        "apply the network policies: another program changed nftables rules {0} times in a row (`nft monitor` shows it)"
    )]
    Busy(usize),
    /// A netlink request other than a change of rules.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// The reconciler's thread has ended.
    #[error("the policy thread has ended")]
    Ended,
}

impl Error {
    /// Names the action of an error that happened while rules were applied.
    pub(crate) fn while_applying(self) -> Error {
        match self {
            Error::Netlink(error) => Error::Apply(error),
            other => other,
        }
    }

    /// Whether the kernel does not support a requested feature, such as an expression of a rule.
    pub(crate) fn is_unsupported(&self) -> bool {
        let (Error::Apply(error) | Error::Netlink(error)) = self else { return false };
        error.is_unsupported() || error.is_gone()
    }
}

impl From<podwire_reconcile::Ended> for Error {
    fn from(_: podwire_reconcile::Ended) -> Error {
        Error::Ended
    }
}
