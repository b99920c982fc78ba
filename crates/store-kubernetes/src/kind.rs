//! The kinds of custom resources, their keys and names.

use podwire_block_ipam::{key, Key};

use crate::group::ApiGroup;
use crate::name;

/// A kind of custom resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Block,
    Affinity,
    Handle,
    Config,
    Pool,
    Reservation,
    BgpConfiguration,
    BgpPeer,
    BgpFilter,
    /// The owner of a node's blocks: an annotation of a handle without addresses. The role of Calico's plugin allows to
    /// write handles, and nothing watches them.
    NodeOwner,
}

/// The name of the only IPAM configuration object.
pub(crate) const CONFIG_NAME: &str = "default";

/// The prefix of the names of handles that record the owner of a node.
pub(crate) const NODE_OWNER_PREFIX: &str = "podwire-owner-";

impl Kind {
    pub(crate) const ALL: [Kind; 10] = [
        Kind::Block,
        Kind::Affinity,
        Kind::Handle,
        Kind::Config,
        Kind::Pool,
        Kind::Reservation,
        Kind::BgpConfiguration,
        Kind::BgpPeer,
        Kind::BgpFilter,
        Kind::NodeOwner,
    ];

    /// The kind and the name of a key's object. Nodes, endpoints and profiles are not custom resources.
    pub(crate) fn of(key: &Key) -> Option<(Kind, String)> {
        Some(match key {
            Key::Block(cidr) => (Kind::Block, name::of_block(*cidr)),
            Key::Affinity(owner, cidr) => (Kind::Affinity, name::of_affinity(owner, *cidr)),
            Key::Handle(id) => (Kind::Handle, id.to_lowercase()),
            Key::Config => (Kind::Config, CONFIG_NAME.into()),
            Key::Pool(name) => (Kind::Pool, name.clone()),
            Key::Reservation(name) => (Kind::Reservation, name.clone()),
            Key::BgpConfiguration(name) => (Kind::BgpConfiguration, name.clone()),
            Key::BgpPeer(name) => (Kind::BgpPeer, name.clone()),
            Key::BgpFilter(name) => (Kind::BgpFilter, name.clone()),
            Key::NodeOwner(name) => (Kind::NodeOwner, format!("{NODE_OWNER_PREFIX}{name}")),
            Key::Node(_) | Key::Endpoint(..) | Key::Profile(_) => return None,
        })
    }

    /// The `kind` of an object.
    pub(crate) fn name(self, group: ApiGroup) -> &'static str {
        match (self, group) {
            (Kind::Block, _) => "IPAMBlock",
            (Kind::Affinity, _) => "BlockAffinity",
            (Kind::Handle | Kind::NodeOwner, _) => "IPAMHandle",
            (Kind::Config, ApiGroup::V1) => "IPAMConfig",
            (Kind::Config, ApiGroup::V3) => "IPAMConfiguration",
            (Kind::Pool, _) => "IPPool",
            (Kind::Reservation, _) => "IPReservation",
            (Kind::BgpConfiguration, _) => "BGPConfiguration",
            (Kind::BgpPeer, _) => "BGPPeer",
            (Kind::BgpFilter, _) => "BGPFilter",
        }
    }

    /// The plural name, for paths.
    pub(crate) fn plural(self, group: ApiGroup) -> &'static str {
        match (self, group) {
            (Kind::Block, _) => "ipamblocks",
            (Kind::Affinity, _) => "blockaffinities",
            (Kind::Handle | Kind::NodeOwner, _) => "ipamhandles",
            (Kind::Config, ApiGroup::V1) => "ipamconfigs",
            (Kind::Config, ApiGroup::V3) => "ipamconfigurations",
            (Kind::Pool, _) => "ippools",
            (Kind::Reservation, _) => "ipreservations",
            (Kind::BgpConfiguration, _) => "bgpconfigurations",
            (Kind::BgpPeer, _) => "bgppeers",
            (Kind::BgpFilter, _) => "bgpfilters",
        }
    }

    /// The path of the collection.
    pub(crate) fn path(self, group: ApiGroup) -> String {
        format!("/apis/{group}/{}", self.plural(group))
    }

    /// Whether Calico marks an object before it deletes it. When Calico introduced this, the API could not compare and
    /// delete in one step.
    pub(crate) fn is_marked_when_deleted(self) -> bool {
        matches!(self, Kind::Block | Kind::Affinity | Kind::Handle | Kind::NodeOwner)
    }

    /// Whether administrators write it. Such a record is a whole object in etcd too.
    pub(crate) fn is_resource(self) -> bool {
        !self.is_marked_when_deleted() && self != Kind::Config
    }

    /// The prefixes of the keys of this kind.
    pub(crate) fn roots(self) -> &'static [&'static str] {
        match self {
            Kind::Block => &[key::BLOCKS],
            Kind::Affinity => &key::AFFINITIES,
            Kind::Handle => &[key::HANDLES],
            Kind::Config => &[key::CONFIG],
            Kind::Pool => &[key::POOLS],
            Kind::Reservation => &[key::RESERVATIONS],
            Kind::BgpConfiguration => &key::BGP[..1],
            Kind::BgpPeer => &key::BGP[1..2],
            Kind::BgpFilter => &key::BGP[2..],
            Kind::NodeOwner => &[key::NODE_OWNERS],
        }
    }

    /// The label selectors of the lists that together contain every object whose key begins with `prefix`. No list is
    /// needed if the result is empty; `None` is a list without a selector.
    pub(crate) fn selectors(self, prefix: &str) -> Vec<Option<String>> {
        // BGP objects are listed only on explicit request: other clients may not have the right to list them.
        let is_bgp = matches!(self, Kind::BgpConfiguration | Kind::BgpPeer | Kind::BgpFilter);
        let is_requested = |root: &&str| prefix.starts_with(*root) || (root.starts_with(prefix) && !is_bgp);
        let roots: Vec<&str> = self.roots().iter().filter(|root| is_requested(root)).copied().collect();
        match (self, &roots[..]) {
            (_, []) => Vec::new(),
            (Kind::Affinity, [root]) => affinity_selectors(root, prefix),
            _ => vec![None],
        }
    }
}

/// A node's affinities are listed by label, so that a node does not list those of all others. Before Calico 3.31,
/// affinities had no labels. Those are listed too, and first, because an affinity may get its labels between the two
/// requests.
fn affinity_selectors(root: &str, prefix: &str) -> Vec<Option<String>> {
    let owner = prefix.strip_prefix(root).and_then(|rest| rest.split_once('/'));
    let selector = match owner {
        Some((owner, _)) => {
            let hash = name::hash_of(owner);
            return vec![
                Some(format!("!{}", name::HOSTNAME_HASH)),
                Some(format!("{}={hash}", name::HOSTNAME_HASH)),
            ];
        }
        // Everything that is not labeled with the other type: objects without labels match too.
        None if root == key::HOST_AFFINITIES => format!("{}!=virtual", name::AFFINITY_TYPE),
        None => format!("{}!=host", name::AFFINITY_TYPE),
    };
    vec![Some(selector)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_selects_the_kinds_whose_keys_may_begin_with_it() {
        let kinds = |prefix: &str| -> Vec<Kind> {
            Kind::ALL.into_iter().filter(|kind| !kind.selectors(prefix).is_empty()).collect()
        };
        assert_eq!(kinds("").len(), 7);
        assert_eq!(kinds(key::BGP[1]), [Kind::BgpPeer]);
        assert_eq!(kinds("/calico/ipam/v2/assignment/"), [Kind::Block]);
        assert_eq!(kinds("/calico/ipam/v2/assignment/ipv4/"), [Kind::Block]);
        assert_eq!(kinds("/calico/ipam/v2/h"), [Kind::Affinity, Kind::Handle]);
        assert_eq!(kinds("/calico/ipam/v2/config"), [Kind::Config]);
        assert_eq!(kinds("/calico/bgp/"), []);
    }

    #[test]
    fn a_nodes_affinities_are_listed_by_label() {
        let selectors = |prefix: &str| Kind::Affinity.selectors(prefix);
        let hash = "projectcalico.org/hostname-hash";
        let node1 = "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A";
        assert_eq!(
            selectors("/calico/ipam/v2/host/node1/"),
            [Some(format!("!{hash}")), Some(format!("{hash}={node1}"))]
        );
        assert_eq!(
            selectors("/calico/ipam/v2/host/node1"),
            [Some("projectcalico.org/affinity-type!=virtual".into())],
            "the prefix of node10 too"
        );
        let others = [Some("projectcalico.org/affinity-type!=host".into())];
        assert_eq!(selectors("/calico/ipam/v2/virtual/"), others);
        assert_eq!(selectors("/calico/ipam/"), [None]);
    }
}
