//! The parser of policies: from the API's objects to rules, with a warning for each problem.
//!
//! An API server refuses invalid objects. If one gets here nevertheless (from a file, or from a newer API), it is
//! parsed in the strictest sense. A NetworkPolicy only allows, so an invalid part of it allows nothing. A rule of a
//! ClusterNetworkPolicy *fails closed*, in the API's own words: an invalid Accept matches no traffic, an invalid
//! Deny or Pass is a "Deny all".

mod cluster_network_policy;
mod fields;
mod network_policy;

use crate::api::{ClusterNetworkPolicy, NetworkPolicy};
use crate::rule::Policy;
use crate::warning::WarningSink;
use crate::Warning;

pub(crate) fn network_policy(policy: &NetworkPolicy, warnings: &mut Vec<Warning>) -> Policy {
    let object = format!("NetworkPolicy {}/{}", policy.metadata.namespace, policy.metadata.name);
    network_policy::parse(policy, &mut WarningSink::new(object, warnings))
}

pub(crate) fn cluster_network_policy(policy: &ClusterNetworkPolicy, warnings: &mut Vec<Warning>) -> Policy {
    let object = format!("ClusterNetworkPolicy {}", policy.metadata.name);
    cluster_network_policy::parse(policy, &mut WarningSink::new(object, warnings))
}
