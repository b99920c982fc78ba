//! The protocol between short-lived processes (plugins, CLI) and the daemons of a node.
//!
//! A plugin runs for milliseconds and links no async runtime, TLS or Kubernetes client. A daemon keeps the state that
//! outlives a call. The plugin connects to a unix socket ([`client`]), writes a request as one line of JSON and reads
//! one line as the response ([`server`], [`message`]). If the daemon does not answer, the plugin records what is still
//! to be done as a file in the daemon's state directory ([`pending`]).
//!
//! One module for each domain: [`addresses`] and [`pods`] (the agent's block IPAM), [`policy`], [`dhcp`]. Two one-way
//! channels complete it: [`calls`] (plugins report call durations) and [`readiness`] (the agent publishes its state).

#![forbid(unsafe_code)]

pub mod addresses;
pub mod calls;
pub mod client;
pub mod dhcp;
pub mod message;
pub mod pending;
pub mod pods;
pub mod policy;
pub mod readiness;
pub mod server;
pub mod status;

pub use podwire_cni_spec::ValidAttachment;
pub use podwire_kernel::Owner;
