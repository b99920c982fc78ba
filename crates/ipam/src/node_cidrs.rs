//! Ranges for nodes: what the NodeIpamController of Kubernetes decides, without the controller.
//!
//! A cluster has one network of each family at most, and each node gets a range of each. Every range has owners, and is
//! free again only when the last of them is gone: two nodes that were given the same range, by hand or by two controllers,
//! are found and named, and deleting one of them does not hand the other's range to a third.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::node_pool::{meet, NodePool};

/// Why cluster networks cannot be cut into ranges, or why there is none left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeCidrsError {
    /// A network's address is not its first.
    #[error("cluster network {network}: it is an address in {}, write that", network.trunc())]
    HostBits {
        /// The network.
        network: IpNet,
    },
    /// A range cannot be that large, or that small.
    #[error("cluster network {network}: a node's range cannot be /{len}: it must be from /{} to /{}", network.prefix_len(), network.max_prefix_len())]
    Mask {
        /// The network.
        network: IpNet,
        /// The length that was asked for.
        len: u8,
    },
    /// Not one network of each family.
    #[error("cluster networks must be one, or one of each family, and are {given}")]
    Families {
        /// What was given.
        given: String,
    },
    /// All ranges have owners.
    #[error("{network} has no range left for node {node:?} (CIDRNotAvailable): delete nodes that are gone, or add a larger cluster network")]
    Exhausted {
        /// The network.
        network: IpNet,
        /// The node that gets none.
        node: String,
    },
}

/// Something odd about a range that a node was seen with. It is kept in mind, and changes no other node's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CidrProblem {
    /// It is of none of the cluster's networks.
    Outside {
        /// The node.
        node: String,
        /// Its range.
        range: IpNet,
    },
    /// It has addresses that no node is to get: the services'.
    KeptOut {
        /// The node.
        node: String,
        /// Its range.
        range: IpNet,
        /// What is kept out.
        kept: IpNet,
    },
    /// Others have addresses of it, too.
    Shared {
        /// The node.
        node: String,
        /// Its range.
        range: IpNet,
        /// The others.
        with: Vec<String>,
    },
}

impl CidrProblem {
    /// The node that it is about.
    pub fn node(&self) -> &str {
        match self {
            CidrProblem::Outside { node, .. }
            | CidrProblem::KeptOut { node, .. }
            | CidrProblem::Shared { node, .. } => node,
        }
    }
}

/// How full a cluster's network is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// The network.
    pub network: IpNet,
    /// How many ranges it has: an IPv6 network may have more than an integer can tell.
    pub capacity: f64,
    /// How many of them are a node's, or kept out.
    pub taken: f64,
    /// How many ranges became somebody's that were nobody's, ever.
    pub allocations: u64,
    /// How many became nobody's again.
    pub releases: u64,
}

/// Which node has which ranges, and which are free.
///
/// ```
/// use podwire_ipam::NodeCidrs;
///
/// let mut ranges = NodeCidrs::new(&[("10.244.0.0/16".parse()?, 24)], &["10.244.0.0/20".parse()?])?;
/// assert_eq!(ranges.assign("a")?, ["10.244.16.0/24".parse()?]);
/// assert!(ranges.observe("b", &["10.244.17.0/24".parse()?]).is_empty());
/// assert_eq!(ranges.assign("c")?, ["10.244.18.0/24".parse()?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeCidrs {
    pools: Vec<NodePool>,
    owned: BTreeMap<String, Vec<IpNet>>,
}

impl NodeCidrs {
    /// The length of a node's IPv4 range unless something else is asked for.
    pub const DEFAULT_LEN_V4: u8 = 24;
    /// The length of a node's IPv6 range unless something else is asked for.
    pub const DEFAULT_LEN_V6: u8 = 64;

    /// Cluster networks with the length of nodes' ranges, and what no node gets: the services' networks.
    pub fn new(networks: &[(IpNet, u8)], kept_out: &[IpNet]) -> Result<NodeCidrs, NodeCidrsError> {
        let families: BTreeSet<bool> = networks.iter().map(|(network, _)| network.addr().is_ipv4()).collect();
        if networks.is_empty() || families.len() != networks.len() {
            let given: Vec<String> = networks.iter().map(|(network, _)| network.to_string()).collect();
            return Err(NodeCidrsError::Families { given: format!("[{}]", given.join(", ")) });
        }
        let pools =
            networks.iter().map(|(network, len)| NodePool::new(*network, *len)).collect::<Result<_, _>>()?;
        let mut ranges = NodeCidrs { pools, owned: BTreeMap::new() };
        kept_out.iter().for_each(|range| ranges.exclude(*range));
        Ok(ranges)
    }

    /// From now on no node gets any of this. Who has some keeps it.
    pub fn exclude(&mut self, range: IpNet) {
        self.pools.iter_mut().for_each(|pool| pool.exclude(range));
    }

    /// A node and the ranges that it has according to somebody else: how all is learned again after a restart.
    ///
    /// A range that makes no sense is told and stops nothing: the node of one mistake must not cost all others their
    /// controller.
    pub fn observe(&mut self, node: &str, ranges: &[IpNet]) -> Vec<CidrProblem> {
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        if self.owned.get(node) != Some(&ranges) {
            self.release(node);
            if !ranges.is_empty() {
                for range in &ranges {
                    self.pools
                        .iter_mut()
                        .filter(|pool| meet(pool.network(), *range))
                        .for_each(|pool| pool.hold(node, *range));
                }
                self.owned.insert(node.into(), ranges.clone());
            }
        }
        let outside = |range: &IpNet| !self.pools.iter().any(|pool| pool.contains(*range));
        let mut problems = Vec::new();
        for range in ranges {
            if outside(&range) {
                problems.push(CidrProblem::Outside { node: node.into(), range });
            }
            if let Some(kept) = self.pools.iter().find_map(|pool| pool.kept_of(range)) {
                problems.push(CidrProblem::KeptOut { node: node.into(), range, kept });
            }
            let with: BTreeSet<String> =
                self.pools.iter().flat_map(|pool| pool.other_holders(node, range)).collect();
            if !with.is_empty() {
                problems.push(CidrProblem::Shared {
                    node: node.into(),
                    range,
                    with: with.into_iter().collect(),
                });
            }
        }
        problems
    }

    /// Gives a node a range of each network: all or none. One that has some gets those again.
    pub fn assign(&mut self, node: &str) -> Result<Vec<IpNet>, NodeCidrsError> {
        if let Some(owned) = self.owned.get(node) {
            return Ok(owned.clone());
        }
        let mut given = Vec::new();
        for index in 0..self.pools.len() {
            let Some(range) = self.pools[index].next() else {
                let network = self.pools[index].network();
                // What the other networks gave goes back.
                self.owned.insert(node.into(), given);
                self.release(node);
                return Err(NodeCidrsError::Exhausted { network, node: node.into() });
            };
            self.pools[index].hold(node, range);
            given.push(range);
        }
        self.owned.insert(node.into(), given.clone());
        Ok(given)
    }

    /// The node is gone, and its ranges are free if no other has them.
    pub fn release(&mut self, node: &str) {
        for range in self.owned.remove(node).into_iter().flatten() {
            self.pools
                .iter_mut()
                .filter(|pool| meet(pool.network(), range))
                .for_each(|pool| pool.release(node, range));
        }
    }

    /// What a node has.
    pub fn find(&self, node: &str) -> Option<&[IpNet]> {
        self.owned.get(node).map(Vec::as_slice)
    }

    /// Who has exactly this range.
    pub fn owners(&self, range: IpNet) -> Vec<&str> {
        let owners: BTreeSet<&str> = self.pools.iter().flat_map(|pool| pool.holders(range)).collect();
        owners.into_iter().collect()
    }

    /// How full each network is.
    pub fn usage(&self) -> Vec<Usage> {
        let usage = |pool: &NodePool| {
            let (capacity, taken, (allocations, releases)) = (pool.capacity(), pool.taken(), pool.turnover());
            Usage { network: pool.network(), capacity, taken, allocations, releases }
        };
        self.pools.iter().map(usage).collect()
    }

    /// How many places of each network were looked at when a node was last given ranges.
    pub fn tries(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        self.pools.iter().map(|pool| (pool.network(), pool.tries()))
    }

    /// Every problem there is now.
    pub fn problems(&mut self) -> Vec<CidrProblem> {
        let owned: Vec<(String, Vec<IpNet>)> =
            self.owned.iter().map(|(node, ranges)| (node.clone(), ranges.clone())).collect();
        owned.iter().flat_map(|(node, ranges)| self.observe(node, ranges)).collect()
    }
}

#[cfg(test)]
mod tests;
