//! Claims and releases blocks.
//!
//! ```text
//!            claim                                      release
//!   affinity pending ──┐                     affinity pendingDeletion ──┐
//!                      ▼                                                ▼
//!                 block created with our name                 block deleted, or without owner
//!                      │                                                │
//!   affinity confirmed ◀                     affinity deleted ◀─────────┘
//! ```
//!
//! Each step is a compare-and-swap with the record that was read before, so of two concurrent operations one fails. A
//! release reads the block *before* the affinity: if the owner confirms its affinity again after that, it also writes
//! the block, and the release fails.

use ipnet::IpNet;

use super::{key, Affinity, AffinityOwner, Allocator, Block, Error, Record};
use crate::store::StoreError;
use crate::State;

impl Allocator<'_> {
    /// Claims a block. Fails with [`Error::NotOwner`] if another owner has it.
    pub fn claim(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<(), Error> {
        self.retry("claiming a block", || self.try_to_claim(owner, cidr))
    }

    fn try_to_claim(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<Option<()>, Error> {
        let Some(mut affinity) = self.pending_affinity(owner, cidr)? else {
            return Ok(None);
        };
        let block = Block::new(cidr, owner, self.now());
        match Record::create(self.store, key::block(cidr), block) {
            Ok(_) => {}
            Err(Error::Store(StoreError::Exists { .. })) => match self.block(cidr)? {
                None => return Ok(None),
                Some(block) if block.value.owner().as_ref() != Some(owner) => {
                    affinity.delete(self.store)?;
                    return Err(not_owner(&block.value));
                }
                Some(_) if affinity.value.state == State::Confirmed => return Ok(Some(())),
                // The owner claimed it before a restart. This write stops a concurrent reclaim.
                Some(mut block) => self.save_block(&mut block)?,
            },
            Err(error) => return Err(error),
        }
        affinity.value.state = State::Confirmed;
        affinity.save(self.store)?;
        Ok(Some(()))
    }

    /// The owner's affinity: a new pending one, or the existing one.
    fn pending_affinity(
        &self,
        owner: &AffinityOwner,
        cidr: IpNet,
    ) -> Result<Option<Record<Affinity>>, Error> {
        match Record::create(self.store, key::affinity(owner, cidr), Affinity::pending()) {
            Err(Error::Store(StoreError::Exists { .. })) => {}
            created => return created.map(Some),
        }
        let Some(mut affinity) = self.affinity(owner, cidr)? else {
            return Ok(None);
        };
        // A confirmed affinity without a block is invalid and becomes pending again.
        let is_valid = affinity.value.state == State::Confirmed && self.block(cidr)?.is_some();
        if !is_valid && affinity.value.state != State::Pending {
            affinity.value.state = State::Pending;
            affinity.save(self.store)?;
        }
        Ok(Some(affinity))
    }

    /// Releases a block: an empty one is deleted; one with addresses in use loses its owner.
    pub fn release_affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<(), Error> {
        self.retry("releasing a block", || self.try_to_release_affinity(owner, cidr, |_| Ok(())))
    }

    /// Releases a block if it is empty. Fails with [`Error::NotEmpty`].
    pub fn release_affinity_if_empty(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<(), Error> {
        self.retry("releasing a block", || self.try_to_release_affinity(owner, cidr, check_empty))
    }

    /// Releases all blocks of an owner that does not exist any more. With `if_empty`, blocks with addresses in use
    /// stay.
    pub fn release_all_affinities(&self, owner: &AffinityOwner, if_empty: bool) -> Result<(), Error> {
        let blocks = self.blocks()?.into_iter().flatten();
        let named = blocks.filter(|block| block.owner().as_ref() == Some(owner)).map(|block| block.cidr());
        let claimed = self.affinities(Some(owner))?.into_iter().map(|(_, cidr, _)| cidr);
        for cidr in claimed.chain(named).collect::<std::collections::BTreeSet<_>>() {
            if !if_empty {
                self.release_affinity(owner, cidr)?;
                continue;
            }
            match self.release_affinity_if_empty(owner, cidr) {
                Err(Error::NotEmpty { .. }) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Reclaims an empty block from its owner, if it has not been written since it was read.
    pub(super) fn reclaim(&self, seen: &Block) -> Result<(), Error> {
        let check_unchanged = |block: &Block| {
            if block.sequence() != seen.sequence() {
                return Err(Error::NotEmpty { block: block.cidr() });
            }
            check_empty(block)
        };
        let Some(owner) = seen.owner() else {
            let block = self.block(seen.cidr())?;
            return match block {
                Some(block) if block.value.owner().is_none() => {
                    check_unchanged(&block.value).and_then(|()| block.delete(self.store))
                }
                _ => Ok(()),
            };
        };
        self.retry("reclaiming a block", || {
            self.try_to_release_affinity(&owner, seen.cidr(), check_unchanged)
        })
    }

    fn try_to_release_affinity(
        &self,
        owner: &AffinityOwner,
        cidr: IpNet,
        check: impl Fn(&Block) -> Result<(), Error>,
    ) -> Result<Option<()>, Error> {
        let block = self.block(cidr)?;
        let affinity = self.affinity(owner, cidr)?;
        let Some(mut block) = block.filter(|block| block.value.owner().as_ref() == Some(owner)) else {
            return self.drop_stale_affinity(affinity, cidr).map(|done| done.then_some(()));
        };
        check(&block.value)?;
        let affinity = match affinity {
            None => None,
            Some(mut affinity) => {
                affinity.value.state = State::PendingDeletion;
                affinity.save(self.store)?;
                Some(affinity)
            }
        };
        block.value.remove_owner();
        self.save_block(&mut block)?;
        affinity.map_or(Ok(()), |affinity| affinity.delete(self.store))?;
        Ok(Some(()))
    }

    /// Deletes an affinity whose block does not exist or has another owner. `false` if that has changed since it was
    /// read.
    fn drop_stale_affinity(&self, affinity: Option<Record<Affinity>>, cidr: IpNet) -> Result<bool, Error> {
        let Some(affinity) = affinity else {
            return Ok(true);
        };
        // The block was read before the affinity. The owner may have claimed it in between.
        if affinity.value.state == State::Confirmed {
            let owner = key::parse_affinity(&affinity.key).map(|(owner, _)| owner);
            if self.block(cidr)?.is_some_and(|block| block.value.owner() == owner) {
                return Ok(false);
            }
        }
        affinity.delete(self.store)?;
        Ok(true)
    }

    /// Deletes an affinity whose block does not exist or has another owner. Returns whether that was the case.
    pub(crate) fn delete_stale_affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<bool, Error> {
        self.retry("deleting an affinity", || {
            let block = self.block(cidr)?;
            let affinity = self.affinity(owner, cidr)?;
            if block.is_some_and(|block| block.value.owner().as_ref() == Some(owner)) {
                return Ok(Some(false));
            }
            self.drop_stale_affinity(affinity, cidr).map(|done| done.then_some(true))
        })
    }

    /// The owner's block, if it really owns it. An unfinished claim is finished first.
    pub(super) fn own_block(
        &self,
        owner: &AffinityOwner,
        cidr: IpNet,
    ) -> Result<Option<Record<Block>>, Error> {
        self.retry("using an own block", || {
            let block = self.block(cidr)?;
            let Some(affinity) = self.affinity(owner, cidr)? else {
                return Ok(Some(None));
            };
            match block {
                Some(block) if block.value.owner().as_ref() != Some(owner) => {
                    let dropped = self.drop_stale_affinity(Some(affinity), cidr)?;
                    Ok(dropped.then_some(None))
                }
                Some(block) if affinity.value.state == State::Confirmed => Ok(Some(Some(block))),
                _ => match self.claim(owner, cidr) {
                    Ok(()) => Ok(None),
                    Err(Error::NotOwner { .. }) => Ok(Some(None)),
                    Err(error) => Err(error),
                },
            }
        })
    }
}

fn check_empty(block: &Block) -> Result<(), Error> {
    if !block.is_empty() {
        return Err(Error::NotEmpty { block: block.cidr() });
    }
    Ok(())
}

pub(super) fn not_owner(block: &Block) -> Error {
    let holder = block.owner().map_or_else(|| "no owner".into(), |owner| owner.to_string());
    Error::NotOwner { block: block.cidr(), holder }
}
