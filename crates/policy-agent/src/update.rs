//! What a source tells.

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
    /// All of them.
    pub const ALL: [Kind; 5] =
        [Kind::Pod, Kind::Namespace, Kind::Node, Kind::NetworkPolicy, Kind::ClusterNetworkPolicy];
}

/// News of objects.
#[derive(Clone, Debug)]
pub enum Update {
    /// These are all objects of the kind.
    Listed(Kind, Snapshot),
    /// These are new, or are now like this.
    Changed(Snapshot),
    /// This one is gone: `name`, or `namespace/name`.
    Deleted(Kind, String),
}
