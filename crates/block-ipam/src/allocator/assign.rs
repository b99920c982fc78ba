//! Assigns addresses.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;

use super::claim::not_owner;
use super::{AffinityOwner, Allocator, Block, Error, Record, MAX_RETRIES};
use crate::{Assigned, Attribute, IpFamily, Pool, Request, Rules, Use};

impl Allocator<'_> {
    /// Assigns addresses: of the node's own blocks; if those are full, of a new block; if there is none and it is
    /// allowed, of blocks of other nodes.
    ///
    /// An error means that nothing was assigned, or that the store does not answer. In that case
    /// [`Allocator::release_handle`] finds what was assigned. If there are too few addresses, [`Assigned::shortage`]
    /// has the reason. Malformed blocks are skipped and reported in [`Assigned::unreadable`].
    pub fn assign(&self, rules: &Rules, request: &Request) -> Result<Assigned, Error> {
        let pools = rules.qualified(request)?;
        let mut progress = Progress { rules, request, holder: request.attribute(), addresses: Vec::new() };
        let own = self.own_cidrs(&progress, &pools)?;
        let (mut count, mut unreadable) = (own.len(), Vec::new());
        for cidr in own.into_iter().filter(|cidr| pools.iter().any(|pool| pool.cidr().contains(cidr))) {
            match self.assign_from_own(&mut progress, cidr) {
                Err(error @ Error::Malformed { .. }) => unreadable.push(error),
                done => done?,
            }
            if progress.missing() == 0 {
                break;
            }
        }
        let (mut shortage, mut idle) = (None, 0);
        while progress.missing() > 0 && shortage.is_none() {
            let limit = rules.config.max_blocks_per_host;
            if !rules.config.auto_allocate_blocks {
                shortage = Some(Error::StrictAffinity);
            } else if limit > 0 && count >= limit {
                shortage = Some(Error::BlockLimit { limit });
            } else {
                let before = progress.missing();
                match self.find_and_claim(rules, request, &pools)? {
                    Some(cidr) => self.assign_from_own(&mut progress, cidr)?,
                    None => shortage = Some(full(&pools)),
                }
                count += 1;
                // Other nodes may have filled or reclaimed the block before this node could use it.
                idle = if progress.missing() < before { 0 } else { idle + 1 };
                if idle > MAX_RETRIES {
                    return Err(Error::Busy { what: "claiming blocks".into() });
                }
            }
        }
        // A borrowed tunnel address would be routed to the block's owner.
        let may_borrow = request.may_borrow && request.intended_use != Use::Tunnel;
        if progress.missing() > 0 && !rules.config.strict_affinity && may_borrow {
            self.borrow(&mut progress, &pools)?;
        } else if rules.config.strict_affinity && matches!(shortage, Some(Error::Full { .. })) {
            shortage = Some(Error::StrictAffinity);
        }
        let shortage = shortage.filter(|_| progress.missing() > 0);
        Ok(Assigned { addresses: progress.addresses, shortage, unreadable })
    }

    /// Like [`Allocator::assign`], one at a time within this process: two concurrent calls for a node without a block
    /// would claim one block each.
    pub fn assign_serialized(&self, rules: &Rules, request: &Request) -> Result<Assigned, Error> {
        static LOCK: Mutex<()> = Mutex::new(());
        let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        self.assign(rules, request)
    }

    /// Assigns a specific address, reserved or not.
    pub fn assign_address(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<IpNet, Error> {
        let pool = rules.pool_of(ip, request.intended_use)?;
        let cidr =
            pool.block_of(ip).ok_or(Error::OutsideOfPools { ip, allowed: request.intended_use.name() })?;
        let holder = request.attribute();
        self.retry("assigning an address", || {
            let Some(mut block) = self.block(cidr)? else {
                self.check_overlap(cidr)?;
                return match self.claim(&request.owner, cidr) {
                    Ok(()) | Err(Error::NotOwner { .. }) => Ok(None),
                    Err(error) => Err(error),
                };
            };
            if rules.config.strict_affinity && block.value.owner().as_ref() != Some(&request.owner) {
                return Err(not_owner(&block.value));
            }
            block.value.free_cooled_down(self.now(), rules.config.ip_cooldown_seconds);
            if !block.value.assign_address(ip, &holder) {
                let current = block.value.allocation(ip).and_then(|allocation| allocation.attribute.handle());
                return Err(Error::Taken {
                    ip,
                    holder: current.unwrap_or("no handle: it cools down").into(),
                });
            }
            self.write(block, &request.handle, 1).map(|written| written.then(|| net(ip, cidr)))
        })
    }

    /// The blocks with an affinity of the node. Empty blocks of pools that no longer select the node are released.
    fn own_cidrs(&self, progress: &Progress<'_>, pools: &[&Pool]) -> Result<Vec<IpNet>, Error> {
        let Progress { rules, request, .. } = progress;
        let mut own = Vec::new();
        for (owner, cidr, _) in self.affinities(Some(&request.owner))? {
            if IpFamily::of(cidr.addr()) != request.family {
                continue;
            }
            let holds = |pool: &&Pool| pool.cidr().contains(&cidr);
            if !pools.iter().any(&holds) {
                let pool = rules.pools.iter().find(holds);
                let selected = pool.map(|pool| pool.selects_node(&request.node_labels)).transpose()?;
                if selected == Some(false) && self.release_unwanted(&owner, cidr)? {
                    continue;
                }
            }
            own.push(cidr);
        }
        Ok(own)
    }

    fn release_unwanted(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<bool, Error> {
        match self.release_affinity_if_empty(owner, cidr) {
            Ok(()) => Ok(true),
            Err(Error::NotEmpty { .. } | Error::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn assign_from_own(&self, progress: &mut Progress<'_>, cidr: IpNet) -> Result<(), Error> {
        let assigned = self.retry("assigning from an own block", || {
            match self.own_block(&progress.request.owner, cidr)? {
                None => Ok(Some(Vec::new())),
                Some(block) => self.assign_from(block, progress),
            }
        })?;
        progress.addresses.extend(assigned);
        Ok(())
    }

    /// Whether a pod could borrow an address from a block of another node.
    pub fn can_borrow(&self, rules: &Rules, request: &Request) -> Result<bool, Error> {
        if rules.config.strict_affinity {
            return Ok(false);
        }
        Ok(!self.lenders(rules, &rules.qualified(request)?)?.is_empty())
    }

    /// Borrows from blocks of other nodes.
    fn borrow(&self, progress: &mut Progress<'_>, pools: &[&Pool]) -> Result<(), Error> {
        for cidr in self.lenders(progress.rules, pools)? {
            if progress.missing() == 0 {
                break;
            }
            let borrowed = self.retry("borrowing an address", || match self.block(cidr)? {
                None => Ok(Some(Vec::new())),
                Some(block) => self.assign_from(block, progress),
            })?;
            progress.addresses.extend(borrowed);
        }
        Ok(())
    }

    /// The blocks of these pools with free addresses, those with the most first.
    fn lenders(&self, rules: &Rules, pools: &[&Pool]) -> Result<Vec<IpNet>, Error> {
        let blocks = self.blocks()?.into_iter().flatten();
        let mut lenders: Vec<(usize, IpNet)> = blocks
            .filter(|block| pools.iter().any(|pool| pool.cidr().contains(&block.cidr())))
            .map(|mut block| {
                block.free_cooled_down(self.now(), rules.config.ip_cooldown_seconds);
                (block.free(&rules.reservations), block.cidr())
            })
            .filter(|(free, _)| *free > 0)
            .collect();
        lenders.sort_by_key(|(free, cidr)| (std::cmp::Reverse(*free), *cidr));
        Ok(lenders.into_iter().map(|(_, cidr)| cidr).collect())
    }

    /// Assigns missing addresses from a block. `None` if the block has changed since it was read.
    fn assign_from(
        &self,
        mut block: Record<Block>,
        progress: &Progress<'_>,
    ) -> Result<Option<Vec<IpNet>>, Error> {
        let cidr = block.value.cidr();
        block.value.free_cooled_down(self.now(), progress.rules.config.ip_cooldown_seconds);
        let ips = block.value.assign(progress.missing(), &progress.holder, &progress.rules.reservations);
        if ips.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let written = self.write(block, &progress.request.handle, ips.len())?;
        Ok(written.then(|| ips.into_iter().map(|ip| net(ip, cidr)).collect()))
    }

    /// Increases the handle's count, then writes the block. `false` if the block has changed since it was read.
    ///
    /// If the store does not answer, the block may have been written, so the count is not decreased.
    fn write(&self, mut block: Record<Block>, handle: &str, count: usize) -> Result<bool, Error> {
        let cidr = block.value.cidr();
        let counted = self.increase_count(handle, cidr, count)?;
        match self.save_block(&mut block) {
            Ok(()) => Ok(true),
            Err(error) if error.is_conflict() => self.undo_increase(counted, cidr, count).map(|()| false),
            Err(error) => Err(error),
        }
    }
}

/// A request and the addresses assigned so far.
struct Progress<'a> {
    rules: &'a Rules,
    request: &'a Request,
    holder: Attribute,
    addresses: Vec<IpNet>,
}

impl Progress<'_> {
    fn missing(&self) -> usize {
        self.request.count - self.addresses.len()
    }
}

pub(super) fn net(ip: IpAddr, block: IpNet) -> IpNet {
    // The block's prefix length fits its family, which is the family of `ip`.
    IpNet::new(ip, block.prefix_len()).unwrap_or_else(|_| ip.into())
}

pub(super) fn full(pools: &[&Pool]) -> Error {
    Error::Full { pools: pools.iter().map(|pool| pool.name()).collect::<Vec<_>>().join(", ") }
}
