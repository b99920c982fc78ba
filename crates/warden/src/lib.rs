//! The warden of a node: what users wrote about who may talk to whom is enforced here, at every moment.
//!
//! ```text
//! Kubernetes, or a folder of files ──told──▶ world ─┐
//! plugins, at the door ────────────attach──▶ pods ──┼─▶ changes ─▶ podwire_policy::Compiler ─▶ dataplane ─▶ kernel
//! the agent ───────────────────────ranges──────────┘        ▲
//! the kernel: somebody touched our table ──────────────────┘
//! ```
//!
//! One thread owns all of it ([`Warden`]). A plugin that has attached a pod knocks at the [door](SOCKET) before it answers its
//! runtime, and is told when the rules for that pod stand: so nothing of the pod's is ever heard before its policies are.
//! Addresses of this node's ranges that belong to no known pod are kept silent meanwhile.
//!
//! Some of what the rules drop the kernel shows to the same thread, which tells it with the names of both pods.
//!
//! Whoever wishes has connections ended that a new program forbids; else they outlive the policy that allowed them.
//!
//! The warden is on the way of no packet. It may be killed: rules stay as they are, and it starts from the pods in the
//! plugins' ledger. Until its source has told everything once, it changes nothing.

#![forbid(unsafe_code)]

mod attachment;
mod claim;
mod cutter;
mod door;
mod enforcer;
mod error;
mod files;
mod handle;
mod kubernetes;
mod objects;
mod told;
mod witness;
mod world;

pub use door::open as open_door;
pub use error::{Error, Result};
pub use files::{documents, stamp, Files};
pub use handle::{State, Warden};
pub use podwire_agent_ipc::policy::SOCKET;
pub use podwire_dataplane::{Drops, Size};
pub use told::{Kind, Told};

/// Where policies and pods are known.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder of YAML and JSON files.
    Files(std::path::PathBuf),
    /// The Kubernetes API.
    Kubernetes(podwire_kubernetes::ClientOptions),
}

impl Source {
    /// A source as flags write it: `kubernetes`, or `files:FOLDER`.
    pub fn read(
        written: &str,
        kubernetes: impl FnOnce() -> podwire_kubernetes::ClientOptions,
    ) -> Result<Source> {
        match written.split_once(':') {
            Some(("files", folder)) if !folder.is_empty() => Ok(Source::Files(folder.into())),
            None if written == "kubernetes" => Ok(Source::Kubernetes(kubernetes())),
            _ => {
                let why = format!("{written:?} is no source of policies: write kubernetes or files:FOLDER");
                Err(Error::Config { flag: "--policy", why })
            }
        }
    }

    /// Tells the warden all that it learns, for ever.
    pub async fn follow(self, warden: Warden) -> Result<()> {
        match self {
            Source::Files(folder) => Files::new(folder).follow(&warden).await,
            Source::Kubernetes(options) => kubernetes::follow(&options, &warden).await,
        }
    }

    /// Whether all pods of this node must be known to the source before they may speak. In files nobody lists them.
    pub fn lists_pods(&self) -> bool {
        matches!(self, Source::Kubernetes(_))
    }
}
