//! Finding a block that nobody has.
//!
//! Most of the time there is one that does not exist yet, and the keys of all blocks tell which: a thousand nodes have 20 MB of blocks and
//! 50 KB of keys. Only if there is none, the blocks themselves are read: for one of ours without a claim, or an empty one to take over.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{key, Allocator, Block, Error};
use crate::store::Store;
use crate::walk::Walk;
use crate::{IpFamily, Pool, Request, Rules};

/// How often another block is tried because somebody else has just taken the one that was found.
const TRIES: usize = 100;

/// What one look at all blocks tells.
enum Found {
    /// Nobody has this block, or we have it and it has room.
    Free(IpNet),
    /// All are taken, but these are empty.
    Empty(Vec<Block>),
}

impl Allocator<'_> {
    /// A block that is ours from now on and has room, if there is any.
    pub(super) fn find_and_claim(
        &self,
        rules: &Rules,
        request: &Request,
        pools: &[&Pool],
    ) -> Result<Option<IpNet>, Error> {
        for _ in 0..TRIES {
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
                Found::Empty(blocks) => return self.take_over(request, &blocks),
            }
        }
        Err(Error::Busy { what: "finding a free block".into() })
    }

    /// Takes one of these away from its owner.
    fn take_over(&self, request: &Request, blocks: &[Block]) -> Result<Option<IpNet>, Error> {
        for block in blocks {
            match self.take_away(block).and_then(|()| self.claim(&request.owner, block.cidr())) {
                Ok(()) => return Ok(Some(block.cidr())),
                Err(Error::NotEmpty { .. } | Error::NotOwner { .. } | Error::Busy { .. }) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The first block of the node's walk that is not there. Behind the last block that anybody has, the first one is free: a walk is as
    /// long as the pool is used.
    fn first_absent(
        &self,
        rules: &Rules,
        request: &Request,
        pools: &[&Pool],
    ) -> Result<Option<IpNet>, Error> {
        let taken = self.cidrs(request.family)?;
        Ok(pools.iter().find_map(|pool| {
            let odd = of_other_sizes(taken.iter(), pool);
            let is_free = |cidr: &IpNet| !taken.contains(cidr) && !odd.iter().any(|odd| overlap(*odd, *cidr));
            Walk::new(pool, &request.owner, self.now(), &rules.reservations).find(is_free)
        }))
    }

    /// All blocks of a family, by their keys alone.
    pub(super) fn cidrs(&self, family: IpFamily) -> Result<BTreeSet<IpNet>, Error> {
        let keys = self.store.keys(&key::blocks(family))?;
        Ok(keys.iter().filter_map(|key| key::parse_block(key)).collect())
    }

    fn search(&self, rules: &Rules, request: &Request, pools: &[&Pool]) -> Result<Found, Error> {
        let taken = Taken::look(self.store)?;
        let now = self.now();
        let mut empty = Vec::new();
        for pool in pools {
            let odd = of_other_sizes(taken.0.keys(), pool);
            for cidr in Walk::new(pool, &request.owner, now, &rules.reservations) {
                match taken.0.get(&cidr) {
                    None if odd.iter().any(|other| overlap(*other, cidr)) => {}
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

    /// A block that overlaps with one of another size would give the same addresses twice.
    pub(super) fn refuse_overlap(&self, block: IpNet) -> Result<(), Error> {
        let taken = self.cidrs(IpFamily::of(block.addr()))?;
        match taken.into_iter().find(|other| *other != block && overlap(*other, block)) {
            Some(other) => Err(Error::Overlap { block, other }),
            None => Ok(()),
        }
    }
}

/// The blocks that are there; `None` for one that cannot be read.
struct Taken(BTreeMap<IpNet, Option<Block>>);

impl Taken {
    fn look(store: &dyn Store) -> Result<Taken, Error> {
        let entries = store.list(key::BLOCKS)?;
        let keyed = entries.into_iter().filter_map(|entry| Some((key::parse_block(&entry.key)?, entry)));
        let read = |(cidr, entry): (IpNet, crate::store::Entry)| {
            let block = <Block as crate::record::Value>::decode(&entry.value).ok();
            (cidr, block.filter(|block| block.cidr() == cidr))
        };
        Ok(Taken(keyed.map(read).collect()))
    }
}

/// Blocks in a pool that are not of its size: the size was changed when they were there.
fn of_other_sizes<'a>(taken: impl Iterator<Item = &'a IpNet>, pool: &Pool) -> Vec<IpNet> {
    let is_odd = |cidr: &&IpNet| cidr.prefix_len() != pool.block_size() && overlap(**cidr, pool.cidr());
    taken.filter(is_odd).copied().collect()
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}
