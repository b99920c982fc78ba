//! What can go wrong with a source.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::choice::OutOfSubnets;

/// The result of asking a source.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something that a source could not do. Each says which object it is about, in whose words, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The network's config makes no sense.
    #[error("{origin}: {why}")]
    Config {
        /// Where it was read.
        origin: String,
        /// What is wrong, in flannel's words where it has some.
        why: String,
    },
    /// There is no config.
    #[error("flannel config not found in {place}: {hint}")]
    NoConfig {
        /// The key, table or file that was looked at.
        place: String,
        /// How to write one.
        hint: String,
    },
    /// The pool is used up.
    #[error("{0}")]
    OutOfSubnets(#[from] OutOfSubnets),
    /// Somebody else was faster, again and again.
    #[error("max retries reached trying to acquire a subnet in {place}: {tries} tries, each time another node took a range meanwhile; try again")]
    Raced {
        /// The prefix.
        place: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The node is unknown to a source that others fill.
    #[error("node {name:?} is not in {place}: {hint}")]
    UnknownNode {
        /// The node.
        name: String,
        /// Where it was looked for.
        place: String,
        /// What to do.
        hint: String,
    },
    /// Kubernetes has not given the node a range yet.
    #[error("node {name:?} pod cidr not assigned: kube-controller-manager needs --allocate-node-cidrs and --cluster-cidr, or podwire controller must run (docs/controller.md)")]
    PodCidrNotAssigned {
        /// The node.
        name: String,
    },
    /// The range that the node was given is not of the configured network.
    #[error("subnet {network} specified in the flannel net config doesn't contain {range} PodCIDR of the {name:?} node: make Network and the cluster's CIDR the same")]
    OutsideOfNetwork {
        /// The node.
        name: String,
        /// Its range.
        range: IpNet,
        /// The network, or that there is none of the family.
        network: String,
    },
    /// A node's facts cannot be read.
    #[error("{object}: {why}")]
    Unreadable {
        /// The key or node.
        object: String,
        /// What is wrong.
        why: String,
    },
    /// etcd's answer.
    #[error("etcd {endpoints}: {doing}: {why}")]
    Etcd {
        /// Whom we asked.
        endpoints: String,
        /// What for.
        doing: String,
        /// The server's or the kernel's words.
        why: String,
    },
    /// A request to the API server failed.
    #[error(transparent)]
    Kubernetes(#[from] podwire_kubernetes::Error),
    /// SQLite's answer.
    #[error("{path:?}: {doing}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// A file.
    #[error("{doing} {path:?}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: what was being done with a file.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }
}
