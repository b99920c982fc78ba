//! Events of a policy source.

use podwire_policy::Snapshot;

/// The kinds of objects that policies depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Pod,
    Namespace,
    Node,
    NetworkPolicy,
    ClusterNetworkPolicy,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] =
        [Kind::Pod, Kind::Namespace, Kind::Node, Kind::NetworkPolicy, Kind::ClusterNetworkPolicy];
}

/// An event of a policy source.
#[derive(Clone, Debug)]
pub enum Update {
    /// The complete list of the objects of a kind.
    Listed(Kind, Snapshot),
    /// New or changed objects.
    Changed(Snapshot),
    /// A deleted object: `name`, or `namespace/name`.
    Deleted(Kind, String),
}
