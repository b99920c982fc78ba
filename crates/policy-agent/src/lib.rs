//! The policy agent of a node: it watches policies and pods and keeps the nftables rules equal to the compiled policy
//! program.
//!
//! ```text
//! Kubernetes API or policy files ── Update ──▶ ClusterState ─┐
//! CNI plugins, over the socket ──── attach ──▶ interfaces ───┼─▶ podwire_policy::Compiler ─▶ dataplane ─▶ kernel
//! the node agent ─── pod networks, addresses ────────────────┘                                  ▲
//! kernel notification: another program changed the table ─────────────────────────────────────┘
//! ```
//!
//! One thread owns all of it ([`PolicyAgent`] is its handle). A plugin that has attached a pod sends a request to the
//! [socket](SOCKET) and gets the answer when the rules of that pod are in the kernel. So the pod's first packet is
//! already checked. The rules drop packets of addresses in the node's pod networks that belong to no known pod.
//!
//! The kernel sends samples of dropped packets to the same thread, which logs them with the names of both pods, and of the
//! Services of the receiver.
//!
//! With `--policy-cut` the agent closes connections that a new program denies. Without it they outlive the policy that
//! allowed them.
//!
//! The data path does not depend on the agent. When it stops, the rules stay. When it starts, it takes the attached
//! pods from the plugins' ledger, and it changes no rule before its source has listed all objects once.

#![forbid(unsafe_code)]

mod agent;
mod cluster_state;
mod connection_cleanup;
pub mod dataplane;
mod device_indexes;
mod drop_log;
mod earlier_pods;
mod error;
mod message;
mod objects;
mod reconciler;
mod recorded;
mod released_addresses;
mod server;
mod service_names;
mod source;
mod source_claims;
mod status;
mod update;

pub use agent::PolicyAgent;
pub use dataplane::{DropCounts, TableSize};
pub use error::{Error, Result};
pub use podwire_agent_ipc::policy::SOCKET;
pub use reconciler::{OnClosed, PolicyAgentOptions};
pub use server::serve as serve_plugins;
pub use service_names::ServiceNames;
pub use source::{timestamp, yaml_documents, PolicyFiles, Source};
pub use status::PolicyStatus;
pub use update::{Kind, Update};
