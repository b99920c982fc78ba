//! The assignment of CIDRs to nodes: the decisions of Kubernetes' NodeIpamController without the controller.
//!
//! A cluster has at most one network of each family, and each node gets one CIDR of each network. A CIDR becomes free
//! when the last node that has it is gone. So two nodes with the same CIDR, assigned by hand or by two controllers, are
//! found and reported, and deleting one of them does not give the other's CIDR to a third node.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podwire_ip::IpFamily;

use crate::error::NodeCidrsError;
use crate::node_pool::{overlap, NodePool};

/// A problem with an observed CIDR of a node. The CIDR stays reserved for the node, and other nodes are not affected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CidrProblem {
    /// It is in none of the cluster networks.
    OutsideNetworks {
        /// The node.
        node: String,
        /// Its CIDR.
        cidr: IpNet,
    },
    /// It overlaps excluded addresses, such as the service range.
    Excluded {
        /// The node.
        node: String,
        /// Its CIDR.
        cidr: IpNet,
        /// The excluded network.
        excluded: IpNet,
    },
    /// It overlaps the CIDRs of other nodes.
    Duplicate {
        /// The node.
        node: String,
        /// Its CIDR.
        cidr: IpNet,
        /// The other nodes.
        with: Vec<String>,
    },
}

impl CidrProblem {
    /// The affected node.
    pub fn node(&self) -> &str {
        match self {
            CidrProblem::OutsideNetworks { node, .. }
            | CidrProblem::Excluded { node, .. }
            | CidrProblem::Duplicate { node, .. } => node,
        }
    }
}

/// The usage of a cluster network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// The network.
    pub network: IpNet,
    /// The number of node CIDRs in it: for IPv6 it may exceed an integer.
    pub capacity: f64,
    /// How many of them are assigned or excluded.
    pub taken: f64,
    /// How many free CIDRs were assigned, in total.
    pub allocations: u64,
    /// How many CIDRs became free again, in total.
    pub releases: u64,
}

/// Which node has which CIDRs, and which are free.
///
/// ```
/// use podwire_ipam::NodeCidrs;
///
/// let mut cidrs = NodeCidrs::new(&[("10.244.0.0/16".parse()?, 24)], &["10.244.0.0/20".parse()?])?;
/// assert_eq!(cidrs.assign("a")?, ["10.244.16.0/24".parse()?]);
/// assert!(cidrs.observe("b", &["10.244.17.0/24".parse()?]).is_empty());
/// assert_eq!(cidrs.assign("c")?, ["10.244.18.0/24".parse()?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeCidrs {
    pools: Vec<NodePool>,
    owned: BTreeMap<String, Vec<IpNet>>,
}

impl NodeCidrs {
    /// The default prefix length of an IPv4 node CIDR.
    pub const DEFAULT_LEN_V4: u8 = 24;
    /// The default prefix length of an IPv6 node CIDR.
    pub const DEFAULT_LEN_V6: u8 = 64;

    /// Creates the allocator of cluster networks, each with the prefix length of node CIDRs. No node gets any of
    /// `excluded`.
    pub fn new(networks: &[(IpNet, u8)], excluded: &[IpNet]) -> Result<NodeCidrs, NodeCidrsError> {
        let families: BTreeSet<IpFamily> =
            networks.iter().map(|(network, _)| IpFamily::of_net(*network)).collect();
        if networks.is_empty() || families.len() != networks.len() {
            let given: Vec<String> = networks.iter().map(|(network, _)| network.to_string()).collect();
            return Err(NodeCidrsError::Families { given: format!("[{}]", given.join(", ")) });
        }
        let pools =
            networks.iter().map(|(network, len)| NodePool::new(*network, *len)).collect::<Result<_, _>>()?;
        let mut cidrs = NodeCidrs { pools, owned: BTreeMap::new() };
        excluded.iter().for_each(|network| cidrs.exclude(*network));
        Ok(cidrs)
    }

    /// Excludes a network. Nodes that have some of it keep it.
    pub fn exclude(&mut self, network: IpNet) {
        self.pools.iter_mut().for_each(|pool| pool.exclude(network));
    }

    /// Records the CIDRs that a node has according to the cluster. The controller restores its state with it after a
    /// restart.
    ///
    /// An invalid CIDR is reported and does not fail: one bad node must not stop the controller for all others.
    pub fn observe(&mut self, node: &str, cidrs: &[IpNet]) -> Vec<CidrProblem> {
        let cidrs: Vec<IpNet> = cidrs.iter().map(IpNet::trunc).collect();
        if self.owned.get(node) != Some(&cidrs) {
            self.release(node);
            if !cidrs.is_empty() {
                for cidr in &cidrs {
                    self.pools
                        .iter_mut()
                        .filter(|pool| overlap(pool.network(), *cidr))
                        .for_each(|pool| pool.hold(node, *cidr));
                }
                self.owned.insert(node.into(), cidrs.clone());
            }
        }
        let is_outside = |cidr: &IpNet| !self.pools.iter().any(|pool| pool.contains(*cidr));
        let mut problems = Vec::new();
        for cidr in cidrs {
            if is_outside(&cidr) {
                problems.push(CidrProblem::OutsideNetworks { node: node.into(), cidr });
            }
            if let Some(excluded) = self.pools.iter().find_map(|pool| pool.excluded_in(cidr)) {
                problems.push(CidrProblem::Excluded { node: node.into(), cidr, excluded });
            }
            let with: BTreeSet<String> =
                self.pools.iter().flat_map(|pool| pool.other_holders(node, cidr)).collect();
            if !with.is_empty() {
                let with = with.into_iter().collect();
                problems.push(CidrProblem::Duplicate { node: node.into(), cidr, with });
            }
        }
        problems
    }

    /// Assigns a node one CIDR of each network: all or none. A node that has CIDRs gets the same again.
    pub fn assign(&mut self, node: &str) -> Result<Vec<IpNet>, NodeCidrsError> {
        if let Some(owned) = self.owned.get(node) {
            return Ok(owned.clone());
        }
        let mut assigned = Vec::new();
        for index in 0..self.pools.len() {
            let Some(cidr) = self.pools[index].next() else {
                let network = self.pools[index].network();
                // The CIDRs of the other networks become free again.
                self.owned.insert(node.into(), assigned);
                self.release(node);
                return Err(NodeCidrsError::Exhausted { network, node: node.into() });
            };
            self.pools[index].hold(node, cidr);
            assigned.push(cidr);
        }
        self.owned.insert(node.into(), assigned.clone());
        Ok(assigned)
    }

    /// Removes a node. Its CIDRs become free if no other node has them.
    pub fn release(&mut self, node: &str) {
        for cidr in self.owned.remove(node).into_iter().flatten() {
            self.pools
                .iter_mut()
                .filter(|pool| overlap(pool.network(), cidr))
                .for_each(|pool| pool.release(node, cidr));
        }
    }

    /// The CIDRs of a node.
    pub fn find(&self, node: &str) -> Option<&[IpNet]> {
        self.owned.get(node).map(Vec::as_slice)
    }

    /// The nodes that have exactly this CIDR.
    pub fn owners(&self, cidr: IpNet) -> Vec<&str> {
        let owners: BTreeSet<&str> = self.pools.iter().flat_map(|pool| pool.holders(cidr)).collect();
        owners.into_iter().collect()
    }

    /// The usage of each network.
    pub fn usage(&self) -> Vec<Usage> {
        let usage = |pool: &NodePool| Usage {
            network: pool.network(),
            capacity: pool.capacity(),
            taken: pool.taken(),
            allocations: pool.allocations(),
            releases: pool.releases(),
        };
        self.pools.iter().map(usage).collect()
    }

    /// The number of candidates that the last assignment examined in each network.
    pub fn tries(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        self.pools.iter().map(|pool| (pool.network(), pool.tries()))
    }

    /// All current problems.
    pub fn problems(&mut self) -> Vec<CidrProblem> {
        let owned: Vec<(String, Vec<IpNet>)> =
            self.owned.iter().map(|(node, cidrs)| (node.clone(), cidrs.clone())).collect();
        owned.iter().flat_map(|(node, cidrs)| self.observe(node, cidrs)).collect()
    }
}

#[cfg(test)]
mod tests;
