//! The objects of the Kubernetes API, as far as policies depend on them.
//!
//! Policies are read with all fields; unknown fields are kept ([`UnknownFields`]), so that the user gets a warning
//! about a misspelt name. Of pods, namespaces and nodes only the fields that policies use are read.

mod cluster_network_policy;
mod meta;
mod network_policy;
mod objects;

pub use cluster_network_policy::*;
pub use meta::*;
pub use network_policy::*;
pub use objects::*;
