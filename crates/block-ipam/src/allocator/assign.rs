//! Giving addresses to a pod.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;

use super::claim::not_owner;
use super::{AffinityOwner, Allocator, Block, Error, Record, MAX_RETRIES};
use crate::{Assigned, Attribute, IpFamily, Pool, Request, Rules, Use};

impl Allocator<'_> {
    /// Addresses of the node's own blocks; if those are full, of a new block; if there is none to be had and it is
    /// allowed, of somebody else's.
    ///
    /// An error means that nothing was given, or that the store does not answer, in which case [`Allocator::release_handle`]
    /// finds whatever was given. If there were too few addresses, [`Assigned::shortage`] says why. A block that makes no sense is left
    /// alone, and told ([`Assigned::unreadable`]).
    pub fn assign(&self, rules: &Rules, request: &Request) -> Result<Assigned, Error> {
        let pools = rules.qualified(request)?;
        let mut given = Giving { rules, request, who: request.attribute(), addresses: Vec::new() };
        let own = self.own_cidrs(&given, &pools)?;
        let (mut count, mut unreadable) = (own.len(), Vec::new());
        for cidr in own.into_iter().filter(|cidr| pools.iter().any(|pool| pool.cidr().contains(cidr))) {
            match self.give_from_own(&mut given, cidr) {
                Err(error @ Error::Malformed { .. }) => unreadable.push(error),
                done => done?,
            }
            if given.missing() == 0 {
                break;
            }
        }
        let (mut shortage, mut idle) = (None, 0);
        while given.missing() > 0 && shortage.is_none() {
            let limit = rules.config.max_blocks_per_host;
            if !rules.config.auto_allocate_blocks {
                shortage = Some(Error::StrictAffinity);
            } else if limit > 0 && count >= limit {
                shortage = Some(Error::BlockLimit { limit });
            } else {
                let before = given.missing();
                match self.find_and_claim(rules, request, &pools)? {
                    Some(cidr) => self.give_from_own(&mut given, cidr)?,
                    None => shortage = Some(full(&pools)),
                }
                count += 1;
                // A block that others have filled or taken away before we could use it.
                idle = if given.missing() < before { 0 } else { idle + 1 };
                if idle > MAX_RETRIES {
                    return Err(Error::Busy { what: "claiming blocks".into() });
                }
            }
        }
        // A tunnel's end at a borrowed address would be routed to the block's owner.
        let may_borrow = request.may_borrow && request.intended_use != Use::Tunnel;
        if given.missing() > 0 && !rules.config.strict_affinity && may_borrow {
            self.borrow(&mut given, &pools)?;
        } else if rules.config.strict_affinity && matches!(shortage, Some(Error::Full { .. })) {
            shortage = Some(Error::StrictAffinity);
        }
        let shortage = shortage.filter(|_| given.missing() > 0);
        Ok(Assigned { addresses: given.addresses, shortage, unreadable })
    }

    /// The same, one after the other within a program: of two who find no block of their node at the same time, each would claim one.
    pub fn assign_serialized(&self, rules: &Rules, request: &Request) -> Result<Assigned, Error> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.assign(rules, request)
    }

    /// This very address, reserved or not.
    pub fn assign_address(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<IpNet, Error> {
        let pool = rules.pool_of(ip, request.intended_use)?;
        let cidr =
            pool.block_of(ip).ok_or(Error::OutsideOfPools { ip, allowed: request.intended_use.name() })?;
        let who = request.attribute();
        self.retry("assigning an address", || {
            let Some(mut block) = self.block(cidr)? else {
                self.refuse_overlap(cidr)?;
                return match self.claim(&request.owner, cidr) {
                    Ok(()) | Err(Error::NotOwner { .. }) => Ok(None),
                    Err(error) => Err(error),
                };
            };
            if rules.config.strict_affinity && block.value.owner().as_ref() != Some(&request.owner) {
                return Err(not_owner(&block.value));
            }
            block.value.free_cooled_down(self.now(), rules.config.ip_cooldown_seconds);
            if !block.value.take_address(ip, &who) {
                let holder = block.value.allocation(ip).and_then(|allocation| allocation.attribute.handle());
                return Err(Error::Taken { ip, holder: holder.unwrap_or("nobody: it cools down").into() });
            }
            self.write_down(block, &request.handle, 1).map(|written| written.then(|| net(ip, cidr)))
        })
    }

    /// The blocks that the node has a claim to. Empty ones of pools that no longer want this node are given up.
    fn own_cidrs(&self, given: &Giving<'_>, pools: &[&Pool]) -> Result<Vec<IpNet>, Error> {
        let Giving { rules, request, .. } = given;
        let mut own = Vec::new();
        for (owner, cidr, _) in self.affinities(Some(&request.owner))? {
            if IpFamily::of(cidr.addr()) != request.family {
                continue;
            }
            let holds = |pool: &&Pool| pool.cidr().contains(&cidr);
            if !pools.iter().any(&holds) {
                let home = rules.pools.iter().find(holds);
                let wanted = home.map(|pool| pool.selects_node(&request.node_labels)).transpose()?;
                if wanted == Some(false) && self.release_unwanted(&owner, cidr)? {
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

    fn give_from_own(&self, given: &mut Giving<'_>, cidr: IpNet) -> Result<(), Error> {
        let given_now = self.retry("assigning from an own block", || {
            match self.own_block(&given.request.owner, cidr)? {
                None => Ok(Some(Vec::new())),
                Some(block) => self.give_from(block, given),
            }
        })?;
        given.addresses.extend(given_now);
        Ok(())
    }

    /// Blocks of others, those with the most free addresses first.
    fn borrow(&self, given: &mut Giving<'_>, pools: &[&Pool]) -> Result<(), Error> {
        let blocks = self.blocks()?.into_iter().flatten();
        let free = |block: &Block| block.free(&given.rules.reservations);
        let mut lenders: Vec<(usize, IpNet)> = blocks
            .filter(|block| pools.iter().any(|pool| pool.cidr().contains(&block.cidr())))
            .map(|mut block| {
                block.free_cooled_down(self.now(), given.rules.config.ip_cooldown_seconds);
                (free(&block), block.cidr())
            })
            .filter(|(free, _)| *free > 0)
            .collect();
        lenders.sort_by_key(|(free, cidr)| (std::cmp::Reverse(*free), *cidr));
        for (_, cidr) in lenders {
            if given.missing() == 0 {
                break;
            }
            let borrowed = self.retry("borrowing an address", || match self.block(cidr)? {
                None => Ok(Some(Vec::new())),
                Some(block) => self.give_from(block, given),
            })?;
            given.addresses.extend(borrowed);
        }
        Ok(())
    }

    /// Takes what is missing from a block as it was read. `None` if somebody else wrote the block meanwhile.
    fn give_from(&self, mut block: Record<Block>, given: &Giving<'_>) -> Result<Option<Vec<IpNet>>, Error> {
        let cidr = block.value.cidr();
        block.value.free_cooled_down(self.now(), given.rules.config.ip_cooldown_seconds);
        let ips = block.value.take(given.missing(), &given.who, &given.rules.reservations);
        if ips.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let written = self.write_down(block, &given.request.handle, ips.len())?;
        Ok(written.then(|| ips.into_iter().map(|ip| net(ip, cidr)).collect()))
    }

    /// Counts the handle up, then writes the block. Whether nobody else wrote the block meanwhile.
    ///
    /// If the store does not answer, the block may have been written: the handle is not counted back then.
    fn write_down(&self, mut block: Record<Block>, handle: &str, count: usize) -> Result<bool, Error> {
        let cidr = block.value.cidr();
        let counted = self.count_up(handle, cidr, count)?;
        match self.save_block(&mut block) {
            Ok(()) => Ok(true),
            Err(error) if error.is_conflict() => self.count_back(counted, cidr, count).map(|()| false),
            Err(error) => Err(error),
        }
    }
}

/// A request, and what it has got so far.
struct Giving<'a> {
    rules: &'a Rules,
    request: &'a Request,
    who: Attribute,
    addresses: Vec<IpNet>,
}

impl Giving<'_> {
    fn missing(&self) -> usize {
        self.request.count - self.addresses.len()
    }
}

fn net(ip: IpAddr, block: IpNet) -> IpNet {
    // The lengths of the block fit its family, which is also that of `ip`.
    IpNet::new(ip, block.prefix_len()).unwrap_or_else(|_| ip.into())
}

fn full(pools: &[&Pool]) -> Error {
    Error::Full { pools: pools.iter().map(|pool| pool.name()).collect::<Vec<_>>().join(", ") }
}
