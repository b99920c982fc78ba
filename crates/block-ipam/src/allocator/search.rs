//! Finds a free block.
//!
//! Usually there is one that does not exist yet, and the keys of all blocks are enough to find it: a thousand nodes
//! have 20 MB of blocks and 50 KB of keys. Only if there is none, the blocks are read, to find an own block without an
//! affinity or an empty one to reclaim.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{key, Allocator, Block, Error};
use crate::store::Store;
use crate::walk::Walk;
use crate::{IpFamily, Pool, Request, Rules};

/// How often another block is tried after another node was faster.
const MAX_RETRIES: usize = 100;

/// The result of a search.
enum Found {
    /// A block without an owner, or an own block with free addresses.
    Free(IpNet),
    /// All blocks are taken, but these are empty.
    Empty(Vec<Block>),
}

impl Allocator<'_> {
    /// Claims a block with free addresses, if there is any.
    pub(super) fn find_and_claim(
        &self,
        rules: &Rules,
        request: &Request,
        pools: &[&Pool],
    ) -> Result<Option<IpNet>, Error> {
        for _ in 0..MAX_RETRIES {
            let found = match self.first_absent(rules, request, pools)? {
                Some(cidr) => Found::Free(cidr),
                None => self.search(rules, request, pools)?,
            };
            match found {
                Found::Free(cidr) => match self.claim(&request.owner, cidr) {
                    Ok(()) => return Ok(Some(cidr)),
                    Err(Error::NotOwner { .. }) => {}
                    Err(error) => return Err(error),
                },
                Found::Empty(blocks) => return self.reclaim_one(request, &blocks),
            }
        }
        Err(Error::Busy { what: "finding a free block".into() })
    }

    /// Whether there is a block to claim.
    pub(super) fn has_free_block(
        &self,
        rules: &Rules,
        request: &Request,
        pools: &[&Pool],
    ) -> Result<bool, Error> {
        if self.first_absent(rules, request, pools)?.is_some() {
            return Ok(true);
        }
        Ok(match self.search(rules, request, pools)? {
            Found::Free(_) => true,
            Found::Empty(blocks) => !blocks.is_empty(),
        })
    }

    /// Reclaims one of these blocks.
    fn reclaim_one(&self, request: &Request, blocks: &[Block]) -> Result<Option<IpNet>, Error> {
        for block in blocks {
            match self.reclaim(block).and_then(|()| self.claim(&request.owner, block.cidr())) {
                Ok(()) => return Ok(Some(block.cidr())),
                Err(Error::NotEmpty { .. } | Error::NotOwner { .. } | Error::Busy { .. }) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The first block in the node's order that does not exist. The walk ends at the first free block, so its length
    /// depends on how many blocks are taken.
    fn first_absent(
        &self,
        rules: &Rules,
        request: &Request,
        pools: &[&Pool],
    ) -> Result<Option<IpNet>, Error> {
        let taken = self.cidrs(request.family)?;
        Ok(pools.iter().find_map(|pool| {
            let other_sizes = of_other_sizes(taken.iter(), pool);
            let is_free = |cidr: &IpNet| {
                !taken.contains(cidr) && !other_sizes.iter().any(|other| overlap(*other, *cidr))
            };
            Walk::new(pool, &request.owner, self.now(), &rules.reservations).find(is_free)
        }))
    }

    /// All blocks of a family, from their keys.
    pub(super) fn cidrs(&self, family: IpFamily) -> Result<BTreeSet<IpNet>, Error> {
        let keys = self.store.keys(&key::blocks(family))?;
        Ok(keys.iter().filter_map(|key| key::parse_block(key)).collect())
    }

    fn search(&self, rules: &Rules, request: &Request, pools: &[&Pool]) -> Result<Found, Error> {
        let taken = Taken::read(self.store)?;
        let now = self.now();
        let mut empty = Vec::new();
        for pool in pools {
            let other_sizes = of_other_sizes(taken.0.keys(), pool);
            for cidr in Walk::new(pool, &request.owner, now, &rules.reservations) {
                match taken.0.get(&cidr) {
                    None if other_sizes.iter().any(|other| overlap(*other, cidr)) => {}
                    None => return Ok(Found::Free(cidr)),
                    Some(None) => {}
                    Some(Some(block)) => {
                        let mut block = block.clone();
                        block.free_cooled_down(now, rules.config.ip_cooldown_seconds);
                        let is_ours = block.owner().as_ref() == Some(&request.owner);
                        if is_ours && block.free(&rules.reservations) > 0 {
                            return Ok(Found::Free(cidr));
                        }
                        let age = block.claimed_at().map_or(u64::MAX, |then| now.seconds_since(then));
                        if !is_ours && block.is_empty() && age >= self.reclaim_age {
                            empty.push(block);
                        }
                    }
                }
            }
        }
        Ok(Found::Empty(empty))
    }

    /// Rejects a block that overlaps one of another size: it would assign the same addresses twice.
    pub(super) fn check_overlap(&self, block: IpNet) -> Result<(), Error> {
        let taken = self.cidrs(IpFamily::of(block.addr()))?;
        match taken.into_iter().find(|other| *other != block && overlap(*other, block)) {
            Some(other) => Err(Error::Overlap { block, other }),
            None => Ok(()),
        }
    }
}

/// The existing blocks; `None` for a malformed one.
struct Taken(BTreeMap<IpNet, Option<Block>>);

impl Taken {
    fn read(store: &dyn Store) -> Result<Taken, Error> {
        let entries = store.list(key::BLOCKS)?;
        let keyed = entries.into_iter().filter_map(|entry| Some((key::parse_block(&entry.key)?, entry)));
        let read = |(cidr, entry): (IpNet, crate::store::Entry)| {
            let block = <Block as crate::record::Value>::decode(&entry.value).ok();
            (cidr, block.filter(|block| block.cidr() == cidr))
        };
        Ok(Taken(keyed.map(read).collect()))
    }
}

/// Blocks in a pool that do not have its block size, because the size was changed.
fn of_other_sizes<'a>(taken: impl Iterator<Item = &'a IpNet>, pool: &Pool) -> Vec<IpNet> {
    let has_other_size =
        |cidr: &&IpNet| cidr.prefix_len() != pool.block_size() && overlap(**cidr, pool.cidr());
    taken.filter(has_other_size).copied().collect()
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}
