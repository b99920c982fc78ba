//! What is wanted, and what was given.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{AffinityOwner, Attribute, Error, IpFamily, Use};
use crate::selector::Labels;

/// A wish for addresses.
#[derive(Clone, Debug)]
pub struct Request {
    /// For whose pods.
    pub owner: AffinityOwner,
    /// The handle by which they are given back.
    pub handle: String,
    /// What else is known about who gets them: pod, namespace, node.
    pub attributes: BTreeMap<String, String>,
    /// How many.
    pub count: usize,
    /// IPv4 or IPv6.
    pub family: IpFamily,
    /// What for.
    pub intended_use: Use,
    /// Pools by name or CIDR, instead of those that the selectors choose.
    pub pools: Vec<String>,
    /// The node's labels.
    pub node_labels: Labels,
    /// The namespace's labels.
    pub namespace_labels: Labels,
    /// Whether they may be of other nodes' blocks, if there is nothing else and the settings allow it.
    pub may_borrow: bool,
}

impl Request {
    /// One IPv4 address for a pod on a node.
    pub fn new(owner: AffinityOwner, handle: impl Into<String>) -> Request {
        Request {
            attributes: [("node".to_owned(), owner.name().to_owned())].into(),
            owner,
            handle: handle.into(),
            count: 1,
            family: IpFamily::V4,
            intended_use: Use::Workload,
            pools: Vec::new(),
            node_labels: Labels::new(),
            namespace_labels: Labels::new(),
            may_borrow: true,
        }
    }

    /// What the block will say about the addresses.
    pub(super) fn attribute(&self) -> Attribute {
        Attribute::new(&self.handle, self.attributes.clone())
    }
}

/// What was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The addresses, each with the prefix length of its block.
    pub addresses: Vec<IpNet>,
    /// Why there are not more, if there are fewer than wanted.
    pub shortage: Option<Error>,
    /// Blocks of the node's own that make no sense: nothing is taken from them.
    pub unreadable: Vec<Error>,
}

impl Assigned {
    /// The addresses alone.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(IpNet::addr)
    }
}
