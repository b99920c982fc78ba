//! Requests for addresses, and their results.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{AffinityOwner, Attribute, Error, IpFamily, Use};
use crate::selector::Labels;

/// A request for addresses.
#[derive(Clone, Debug)]
pub struct Request {
    /// The node.
    pub owner: AffinityOwner,
    /// The handle by which the addresses are released.
    pub handle: String,
    /// The attributes of the holder: pod, namespace, node.
    pub attributes: BTreeMap<String, String>,
    /// The number of addresses.
    pub count: usize,
    /// The IP family.
    pub family: IpFamily,
    /// What the addresses are for.
    pub intended_use: Use,
    /// Pools by name or CIDR, instead of the selected ones.
    pub pools: Vec<String>,
    /// The node's labels.
    pub node_labels: Labels,
    /// The namespace's labels.
    pub namespace_labels: Labels,
    /// Whether addresses may be borrowed from blocks of other nodes, if no others are free and the settings allow it.
    pub may_borrow: bool,
}

impl Request {
    /// A request for one IPv4 address for a pod.
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

    /// The attribute of the assigned addresses.
    pub(super) fn attribute(&self) -> Attribute {
        Attribute::new(&self.handle, self.attributes.clone())
    }
}

/// The result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The addresses, each with the prefix length of its block.
    pub addresses: Vec<IpNet>,
    /// Why there are fewer than requested, if so.
    pub shortage: Option<Error>,
    /// Malformed blocks of the node. They are skipped.
    pub unreadable: Vec<Error>,
}

impl Assigned {
    /// The addresses without prefix lengths.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(IpNet::addr)
    }
}
