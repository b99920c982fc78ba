//! The agent of a node: what users wrote about who may talk to whom is enforced here, at every moment.
//!
//! ```text
//! Kubernetes, or a folder of files ──told──▶ world ─┐
//! plugins, at the door ────────────attach──▶ pods ──┼─▶ changes ─▶ podwire_policy::Compiler ─▶ dataplane ─▶ kernel
//! the agent ───────────────────────ranges──────────┘        ▲
//! the kernel: somebody touched our table ──────────────────┘
//! ```
//!
//! One thread owns all of it ([`PolicyAgent`]). A plugin that has attached a pod knocks at the [door](DOOR) before it answers its
//! runtime, and is told when the rules for that pod stand: so nothing of the pod's is ever heard before its policies are.
//! Addresses of this node's ranges that belong to no known pod are kept silent meanwhile.
//!
//! Some of what the rules drop the kernel shows to the same thread, which tells it with the names of both pods.
//!
//! Whoever wishes has connections ended that a new program forbids; else they outlive the policy that allowed them.
//!
//! The agent is on the way of no packet. It may be killed: rules stay as they are, and it starts from the pods in the
//! plugins' ledger. Until its source has told everything once, it changes nothing.

#![forbid(unsafe_code)]

mod agent;
mod cluster_state;
mod connection_cleanup;
pub mod dataplane;
mod drop_log;
mod error;
mod objects;
mod reconciler;
mod recorded;
mod server;
mod source;
mod source_claims;
mod update;

pub use agent::{PolicyAgent, PolicyAgentOptions, PolicyStatus};
pub use dataplane::{DropCounts, TableSize};
pub use error::{Error, Result};
pub use podwire_agent_ipc::policy::SOCKET;
pub use server::open as serve_plugins;
pub use source::{timestamp, yaml_documents, PolicyFiles, Source};
pub use update::{Kind, Update};
