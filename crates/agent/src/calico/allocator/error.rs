//! Why an address cannot be assigned or released.

use std::path::PathBuf;

use podwire_agent_ipc::addresses::Response;
use podwire_agent_ipc::Owner;
use podwire_cni_spec::code;

/// An error of the allocator. It can be cloned, because several waiting requests may fail for one reason.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store failed, or a record in it does not allow the change.
    #[error(transparent)]
    Ipam(#[from] podwire_block_ipam::Error),
    /// The store did not answer within the timeout.
    #[error("no address for {owner} yet: {why}")]
    Timeout {
        /// The attachment.
        owner: Owner,
        /// The store's last error.
        why: String,
    },
    /// The warm pool is empty and the store does not answer.
    #[error("the warm pool is empty and the store does not answer: {why}")]
    NoWarmAddress {
        /// The store's error.
        why: String,
    },
    /// The agent has started, and the store has not assigned an address to the warm pool yet.
    #[error("the warm pool is not filled yet")]
    NotFilled,
    /// The Kubernetes API does not answer, or the object does not exist.
    #[error("cannot read {what}: {why}")]
    Cluster {
        /// The object.
        what: String,
        /// The API's answer.
        why: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// A file of the state directory.
    #[error("{doing} {}: {why}", path.display())]
    File {
        /// The action.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer, as text: `io::Error` cannot be cloned.
        why: String,
    },
}

impl Error {
    /// For `map_err` of file operations.
    pub(super) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |error| Error::File { doing, path, why: error.to_string() }
    }

    /// The CNI error code.
    pub fn code(&self) -> u32 {
        use podwire_block_ipam::Error as Ipam;
        match self {
            Error::Timeout { .. }
            | Error::NoWarmAddress { .. }
            | Error::NotFilled
            | Error::Cluster { .. } => code::TRY_AGAIN,
            Error::Ipam(Ipam::Store(_) | Ipam::Busy { .. } | Ipam::NodeOwned { .. }) => code::TRY_AGAIN,
            // As host-local: another pod's DEL, or an administrator who adds a pool, ends the shortage.
            Error::Ipam(
                Ipam::NoPool { .. } | Ipam::Full { .. } | Ipam::BlockLimit { .. } | Ipam::StrictAffinity,
            ) => code::TRY_AGAIN,
            Error::Ipam(Ipam::UnknownPool { .. } | Ipam::OutsideOfPools { .. }) | Error::Request(_) => {
                code::INVALID_CONFIG
            }
            Error::File { .. } => code::IO,
            Error::Ipam(_) => code::INTERNAL,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Ipam(error) => error.hint(),
            Error::Timeout { .. } | Error::NoWarmAddress { .. } | Error::NotFilled => {
                "check that the store runs and is reachable from this node; running pods are not affected"
            }
            Error::Cluster { .. } => {
                "check that the Kubernetes API is reachable from this node and allows reading pods, namespaces and nodes"
            }
            Error::Request(_) => "correct the network config or the pod's annotations",
            Error::File { .. } => "check that the disk is not full and the directory is writable",
        }
    }

    /// The response to a plugin.
    pub(super) fn response(&self) -> Response {
        Response::Failed { code: self.code(), msg: self.to_string(), hint: self.hint().into() }
    }
}
