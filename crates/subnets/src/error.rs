//! Errors of sources.

use std::path::PathBuf;

use ipnet::IpNet;

use crate::subnet_choice::OutOfSubnets;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a source failed. Each text names the object, the cause and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The network config is invalid.
    #[error("{origin}: {why}")]
    Config {
        /// Its file or key.
        origin: String,
        /// What is wrong, in flannel's words where flannel has the same check.
        why: String,
    },
    /// There is no network config.
    #[error("flannel config not found in {place}: {hint}")]
    NoConfig {
        /// The key, table or file.
        place: String,
        /// How to create one.
        hint: String,
    },
    /// No subnet is free.
    #[error("{0}")]
    OutOfSubnets(#[from] OutOfSubnets),
    /// Other nodes were faster in every attempt.
    #[error("max retries reached trying to acquire a subnet in {place}: in each of {tries} attempts another node was faster; try again")]
    Raced {
        /// The prefix.
        place: String,
        /// The number of attempts.
        tries: u32,
    },
    /// A source that other programs write does not have the node.
    #[error("node {name:?} is not in {place}: {hint}")]
    UnknownNode {
        /// The node.
        name: String,
        /// The source.
        place: String,
        /// What to do.
        hint: String,
    },
    /// The node has no `spec.podCIDRs` yet.
    #[error("node {name:?} pod cidr not assigned: kube-controller-manager needs --allocate-node-cidrs and --cluster-cidr, or podwire controller must run (docs/controller.md)")]
    PodCidrNotAssigned {
        /// The node.
        name: String,
    },
    /// The node's pod CIDR is not in the configured network.
    #[error("subnet {network} specified in the flannel net config doesn't contain {pod_cidr} PodCIDR of the {name:?} node: make Network and the cluster's CIDR the same")]
    OutsideOfNetwork {
        /// The node.
        name: String,
        /// Its pod CIDR.
        pod_cidr: IpNet,
        /// The network, or `(none)`.
        network: String,
    },
    /// The node's subnet is larger than those that the config gives.
    #[error("subnet {pod_cidr} of node {name:?} is larger than /{len}, the SubnetLen of the flannel net config: delete its key, or restart the agent of that node, which gets another subnet")]
    LargerThanSubnet {
        /// The node.
        name: String,
        /// Its pod CIDR.
        pod_cidr: IpNet,
        /// The prefix length of a subnet.
        len: u8,
    },
    /// A node's record is invalid.
    #[error("{object}: {why}")]
    Unreadable {
        /// The key or node.
        object: String,
        /// What is wrong.
        why: String,
    },
    /// A request to etcd failed.
    #[error("etcd {endpoints}: {doing}: {why}")]
    Etcd {
        /// The endpoints.
        endpoints: String,
        /// The request.
        doing: String,
        /// The server's or the kernel's error.
        why: String,
    },
    /// A request to the API server failed.
    #[error(transparent)]
    Kubernetes(#[from] podwire_kubernetes::Error),
    /// An SQLite operation failed.
    #[error("{path:?}: {doing}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
}
