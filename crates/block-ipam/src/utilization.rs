//! How full pools and blocks are.

use ipnet::IpNet;

use super::{AffinityOwner, Allocator, Block, Error, Pool, Reservations, Rules};
use podwire_ip::to_u128 as number;

/// How full everything is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utilization {
    /// Each pool, with its blocks.
    pub pools: Vec<PoolUse>,
    /// Blocks that lie in no pool.
    pub outside_pools: Vec<BlockUse>,
}

/// How full a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub cidr: IpNet,
    /// How many there are.
    pub total: u128,
    /// How many somebody has, and how many cool down.
    pub in_use: u128,
    /// How many are reserved, and nobody's.
    pub reserved: u128,
    /// The blocks that are there.
    pub blocks: Vec<BlockUse>,
}

/// How full a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// Its addresses.
    pub cidr: IpNet,
    /// Whose it is.
    pub owner: Option<AffinityOwner>,
    /// How many addresses it has.
    pub total: usize,
    /// How many somebody has, and how many cool down.
    pub in_use: usize,
    /// How many of those wait for being given again.
    pub cooling: usize,
    /// How many are reserved, and nobody's.
    pub reserved: usize,
    /// Addresses that pods of other nodes have, and those nodes.
    pub borrowed: Vec<(std::net::IpAddr, String)>,
}

impl PoolUse {
    /// How many addresses are left.
    pub fn free(&self) -> u128 {
        self.total.saturating_sub(self.in_use + self.reserved)
    }
}

impl BlockUse {
    /// How many addresses are left.
    pub fn free(&self) -> usize {
        self.total - self.in_use - self.reserved
    }

    fn of(block: &Block, reservations: &Reservations) -> BlockUse {
        let owner = block.owner();
        let borrowed = block.allocations().filter_map(|allocation| {
            let node = allocation.attribute.secondary.get("node")?;
            let foreign = owner.as_ref().is_some_and(|owner| owner.name() != node);
            foreign.then(|| (allocation.ip, node.clone()))
        });
        let in_use = block.allocations().count();
        BlockUse {
            cidr: block.cidr(),
            total: block.size(),
            in_use,
            cooling: block.allocations().filter(|allocation| allocation.attribute.is_cooling()).count(),
            reserved: block.size() - in_use - block.free(reservations),
            borrowed: borrowed.collect(),
            owner,
        }
    }
}

impl Allocator<'_> {
    /// Looks at all pools and blocks. Blocks that cannot be read are left out: [`Allocator::check`] tells them.
    pub fn utilization(&self, rules: &Rules) -> Result<Utilization, Error> {
        let mut all =
            Utilization { pools: rules.pools.iter().map(empty).collect(), outside_pools: Vec::new() };
        let mut reserved_in_use = vec![0; all.pools.len()];
        for block in self.blocks()?.into_iter().flatten() {
            let usage = BlockUse::of(&block, &rules.reservations);
            match all.pools.iter().position(|pool| pool.cidr.contains(&usage.cidr)) {
                None => all.outside_pools.push(usage),
                Some(place) => {
                    let is_reserved = block.allocations().filter(|one| rules.reservations.contains(one.ip));
                    reserved_in_use[place] += is_reserved.count() as u128;
                    all.pools[place].in_use += usage.in_use as u128;
                    all.pools[place].blocks.push(usage);
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

/// How many addresses a network has; all of IPv6 is one more than can be counted.
pub(super) fn size(cidr: IpNet) -> u128 {
    (number(cidr.broadcast()) - number(cidr.network())).saturating_add(1)
}
