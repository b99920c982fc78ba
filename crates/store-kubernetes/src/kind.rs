//! The kinds of objects: which keys are theirs, and what they are called.

use podwire_block_ipam::{key, Key};

use crate::name;
use crate::ApiGroup;

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
}

/// The name of the only object with settings.
pub(crate) const SETTINGS: &str = "default";

impl Kind {
    pub(crate) const ALL: [Kind; 9] = [
        Kind::Block,
        Kind::Affinity,
        Kind::Handle,
        Kind::Config,
        Kind::Pool,
        Kind::Reservation,
        Kind::BgpConfiguration,
        Kind::BgpPeer,
        Kind::BgpFilter,
    ];

    /// The kind and the name of a key's object. Nodes, endpoints and profiles are no custom resources.
    pub(crate) fn of(key: &Key) -> Option<(Kind, String)> {
        Some(match key {
            Key::Block(cidr) => (Kind::Block, name::of_block(*cidr)),
            Key::Affinity(owner, cidr) => (Kind::Affinity, name::of_affinity(owner, *cidr)),
            Key::Handle(id) => (Kind::Handle, id.to_lowercase()),
            Key::Config => (Kind::Config, SETTINGS.into()),
            Key::Pool(name) => (Kind::Pool, name.clone()),
            Key::Reservation(name) => (Kind::Reservation, name.clone()),
            Key::BgpConfiguration(name) => (Kind::BgpConfiguration, name.clone()),
            Key::BgpPeer(name) => (Kind::BgpPeer, name.clone()),
            Key::BgpFilter(name) => (Kind::BgpFilter, name.clone()),
            Key::Node(_) | Key::Endpoint(..) | Key::Profile(_) => return None,
        })
    }

    /// The `kind` of an object.
    pub(crate) fn name(self, group: ApiGroup) -> &'static str {
        match (self, group) {
            (Kind::Block, _) => "IPAMBlock",
            (Kind::Affinity, _) => "BlockAffinity",
            (Kind::Handle, _) => "IPAMHandle",
            (Kind::Config, ApiGroup::V1) => "IPAMConfig",
            (Kind::Config, ApiGroup::V3) => "IPAMConfiguration",
            (Kind::Pool, _) => "IPPool",
            (Kind::Reservation, _) => "IPReservation",
            (Kind::BgpConfiguration, _) => "BGPConfiguration",
            (Kind::BgpPeer, _) => "BGPPeer",
            (Kind::BgpFilter, _) => "BGPFilter",
        }
    }

    /// What objects of this kind are called in a path.
    pub(crate) fn plural(self, group: ApiGroup) -> &'static str {
        match (self, group) {
            (Kind::Block, _) => "ipamblocks",
            (Kind::Affinity, _) => "blockaffinities",
            (Kind::Handle, _) => "ipamhandles",
            (Kind::Config, ApiGroup::V1) => "ipamconfigs",
            (Kind::Config, ApiGroup::V3) => "ipamconfigurations",
            (Kind::Pool, _) => "ippools",
            (Kind::Reservation, _) => "ipreservations",
            (Kind::BgpConfiguration, _) => "bgpconfigurations",
            (Kind::BgpPeer, _) => "bgppeers",
            (Kind::BgpFilter, _) => "bgpfilters",
        }
    }

    /// Where they are.
    pub(crate) fn path(self, group: ApiGroup) -> String {
        format!("/apis/{group}/{}", self.plural(group))
    }

    /// Whether a deletion is a mark first. The API could not compare and delete in one step when Calico began with this.
    pub(crate) fn is_marked_when_deleted(self) -> bool {
        matches!(self, Kind::Block | Kind::Affinity | Kind::Handle)
    }

    /// Whether administrators write it: a whole object in etcd, too.
    pub(crate) fn is_resource(self) -> bool {
        !self.is_marked_when_deleted() && self != Kind::Config
    }

    /// What the keys of this kind begin with.
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
        }
    }

    /// The questions whose answers together hold every object whose key begins with `prefix`: none, or one without a selector,
    /// or some with selectors by labels.
    pub(crate) fn questions(self, prefix: &str) -> Vec<Option<String>> {
        // What is about BGP is told to who asks for it: who asks for everything may have no right to see it.
        let is_bgp = matches!(self, Kind::BgpConfiguration | Kind::BgpPeer | Kind::BgpFilter);
        let asked = |root: &&str| prefix.starts_with(*root) || (root.starts_with(prefix) && !is_bgp);
        let roots: Vec<&str> = self.roots().iter().filter(|root| asked(root)).copied().collect();
        match (self, &roots[..]) {
            (_, []) => Vec::new(),
            (Kind::Affinity, [root]) => affinities(root, prefix),
            _ => vec![None],
        }
    }
}

/// A node's own claims are asked for by its label, so that nobody has to list everybody's. Before Calico 3.31 claims had no labels: they are
/// asked for too, and first, because a claim may get its labels between the two questions.
fn affinities(root: &str, prefix: &str) -> Vec<Option<String>> {
    let owner = prefix.strip_prefix(root).and_then(|rest| rest.split_once('/'));
    let selector = match owner {
        Some((owner, _)) => {
            let hash = name::hash_of(owner);
            return vec![
                Some(format!("!{}", name::HOSTNAME_HASH)),
                Some(format!("{}={hash}", name::HOSTNAME_HASH)),
            ];
        }
        // Whatever is not said to be of the other type, which no label is needed for.
        None if root == key::AFFINITIES[0] => format!("{}!=virtual", name::AFFINITY_TYPE),
        None => format!("{}!=host", name::AFFINITY_TYPE),
    };
    vec![Some(selector)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_asks_for_what_may_begin_with_it() {
        let asked = |prefix: &str| -> Vec<Kind> {
            Kind::ALL.into_iter().filter(|kind| !kind.questions(prefix).is_empty()).collect()
        };
        assert_eq!(asked("").len(), 6);
        assert_eq!(asked(key::BGP[1]), [Kind::BgpPeer]);
        assert_eq!(asked("/calico/ipam/v2/assignment/"), [Kind::Block]);
        assert_eq!(asked("/calico/ipam/v2/assignment/ipv4/"), [Kind::Block]);
        assert_eq!(asked("/calico/ipam/v2/h"), [Kind::Affinity, Kind::Handle]);
        assert_eq!(asked("/calico/ipam/v2/config"), [Kind::Config]);
        assert_eq!(asked("/calico/bgp/"), []);
    }

    #[test]
    fn a_nodes_claims_are_asked_for_by_their_label() {
        let questions = |prefix: &str| Kind::Affinity.questions(prefix);
        let hash = "projectcalico.org/hostname-hash";
        let node1 = "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A";
        assert_eq!(
            questions("/calico/ipam/v2/host/node1/"),
            [Some(format!("!{hash}")), Some(format!("{hash}={node1}"))]
        );
        assert_eq!(
            questions("/calico/ipam/v2/host/node1"),
            [Some("projectcalico.org/affinity-type!=virtual".into())],
            "node10 begins so, too"
        );
        let others = [Some("projectcalico.org/affinity-type!=host".into())];
        assert_eq!(questions("/calico/ipam/v2/virtual/"), others);
        assert_eq!(questions("/calico/ipam/"), [None]);
    }
}
