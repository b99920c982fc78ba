//! Why an address cannot be had, or not be given back.

use std::path::PathBuf;

use podwire_agent_ipc::Owner;
use podwire_cni_spec::code;

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store, or what is in it, says no.
    #[error(transparent)]
    Blocks(#[from] podwire_block_ipam::Error),
    /// The store has not answered in time.
    #[error("no address for {owner} yet: {why}")]
    TooSlow {
        /// For whom.
        owner: Owner,
        /// What the store says.
        why: String,
    },
    /// Nothing is in stock and the store does not answer.
    #[error("no addresses are in stock, and the store cannot be asked: {why}")]
    NoStock {
        /// What the store says.
        why: String,
    },
    /// The cluster does not answer, or does not know.
    #[error("what is known of {what} cannot be found out: {why}")]
    Unknown {
        /// Of what.
        what: String,
        /// What the cluster says.
        why: String,
    },
    /// The wish contradicts itself.
    #[error("{0}")]
    Wish(String),
    /// A file of the leases.
    #[error("{doing} {}: {why}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the kernel said.
        why: String,
    },
}

impl Error {
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |error| Error::File { doing, path, why: error.to_string() }
    }

    /// As CNI counts errors.
    pub fn code(&self) -> u32 {
        use podwire_block_ipam::Error as Blocks;
        match self {
            Error::TooSlow { .. } | Error::NoStock { .. } | Error::Unknown { .. } => code::TRY_AGAIN,
            Error::Blocks(Blocks::Store(_) | Blocks::Busy { .. }) => code::TRY_AGAIN,
            Error::Blocks(Blocks::UnknownPool { .. } | Blocks::OutsideOfPools { .. }) | Error::Wish(_) => {
                code::INVALID_CONFIG
            }
            Error::File { .. } => code::IO,
            Error::Blocks(_) => code::INTERNAL,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Blocks(error) => error.hint(),
            Error::TooSlow { .. } | Error::NoStock { .. } => {
                "see that the store runs and can be reached from this node; running pods are not affected"
            }
            Error::Unknown { .. } => {
                "see that the Kubernetes API can be reached from this node, and may be asked for pods, namespaces and nodes"
            }
            Error::Wish(_) => "correct the network's config or the pod's annotations",
            Error::File { .. } => "see that the disk is not full and the folder can be written",
        }
    }
}
