//! The utilization of pools and blocks.

use ipnet::IpNet;

use super::reservation::size;
use super::{AffinityOwner, Allocator, Block, Error, Pool, Reservations, Rules};

/// The utilization of all pools and blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utilization {
    /// Each pool, with its blocks.
    pub pools: Vec<PoolUse>,
    /// Blocks that are in no pool.
    pub outside_pools: Vec<BlockUse>,
}

/// The utilization of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Its name.
    pub name: String,
    /// The CIDR.
    pub cidr: IpNet,
    /// The number of addresses.
    pub total: u128,
    /// Addresses in use or in cooldown.
    pub in_use: u128,
    /// Reserved addresses that are not in use.
    pub reserved: u128,
    /// The existing blocks.
    pub blocks: Vec<BlockUse>,
}

/// The utilization of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// The CIDR.
    pub cidr: IpNet,
    /// The owner.
    pub owner: Option<AffinityOwner>,
    /// The number of addresses.
    pub total: usize,
    /// Addresses in use or in cooldown.
    pub in_use: usize,
    /// Addresses in cooldown.
    pub in_cooldown: usize,
    /// Reserved addresses that are not in use.
    pub reserved: usize,
    /// Addresses that pods of other nodes have, with the nodes.
    pub borrowed: Vec<(std::net::IpAddr, String)>,
}

impl PoolUse {
    /// The number of free addresses.
    pub fn free(&self) -> u128 {
        self.total.saturating_sub(self.in_use + self.reserved)
    }
}

impl BlockUse {
    /// The number of free addresses.
    pub fn free(&self) -> usize {
        self.total - self.in_use - self.reserved
    }

    fn of(block: &Block, reservations: &Reservations) -> BlockUse {
        let owner = block.owner();
        let borrowed = block.allocations().filter_map(|allocation| {
            let node = allocation.attribute.secondary.get("node")?;
            let is_foreign = owner.as_ref().is_some_and(|owner| owner.name() != node);
            is_foreign.then(|| (allocation.ip, node.clone()))
        });
        let in_use = block.allocations().count();
        BlockUse {
            cidr: block.cidr(),
            total: block.size(),
            in_use,
            in_cooldown: block
                .allocations()
                .filter(|allocation| allocation.attribute.is_in_cooldown())
                .count(),
            reserved: block.size() - in_use - block.free(reservations),
            borrowed: borrowed.collect(),
            owner,
        }
    }
}

impl Allocator<'_> {
    /// Reads all pools and blocks. Malformed blocks are skipped: [`Allocator::check`] reports them.
    pub fn utilization(&self, rules: &Rules) -> Result<Utilization, Error> {
        let mut all =
            Utilization { pools: rules.pools.iter().map(empty).collect(), outside_pools: Vec::new() };
        let mut reserved_in_use = vec![0; all.pools.len()];
        for block in self.blocks()?.into_iter().flatten() {
            let usage = BlockUse::of(&block, &rules.reservations);
            match all.pools.iter().position(|pool| pool.cidr.contains(&usage.cidr)) {
                None => all.outside_pools.push(usage),
                Some(index) => {
                    let is_reserved = block.allocations().filter(|one| rules.reservations.contains(one.ip));
                    reserved_in_use[index] += is_reserved.count() as u128;
                    all.pools[index].in_use += usage.in_use as u128;
                    all.pools[index].blocks.push(usage);
                }
            }
        }
        for (pool, in_use) in all.pools.iter_mut().zip(reserved_in_use) {
            pool.reserved = rules.reservations.size_within(pool.cidr).saturating_sub(in_use);
        }
        Ok(all)
    }
}

fn empty(pool: &Pool) -> PoolUse {
    let (name, cidr) = (pool.name().to_owned(), pool.cidr());
    PoolUse { name, cidr, total: size(cidr), in_use: 0, reserved: 0, blocks: Vec::new() }
}
