//! Claiming a block and giving it up.
//!
//! ```text
//!            claim                                      give up
//!   affinity pending ──┐                     affinity pendingDeletion ──┐
//!                      ▼                                                ▼
//!                 block made, naming us                       block deleted, or nobody's
//!                      │                                                │
//!   affinity confirmed ◀                     affinity deleted ◀─────────┘
//! ```
//!
//! Each arrow is a compare-and-swap with what was read before, so of two who meet one is turned back by the other's write. Who gives
//! a block up looks at the block *before* the affinity: if the owner confirms its claim again after that, it has to write the
//! block too, and the one who gives up comes too late.

use ipnet::IpNet;

use super::{key, Affinity, AffinityOwner, Allocator, Block, Error, Record};
use crate::store::StoreError;
use crate::State;

impl Allocator<'_> {
    /// Makes a block the owner's. [`Error::NotOwner`] if somebody else has it.
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
                // It is ours from an earlier life. Somebody may be about to take it away: this write stops them.
                Some(mut block) => self.save_block(&mut block)?,
            },
            Err(error) => return Err(error),
        }
        affinity.value.state = State::Confirmed;
        affinity.save(self.store)?;
        Ok(Some(()))
    }

    /// Our affinity with a block: a new one that is pending, or the one that is there.
    fn pending_affinity(
        &self,
        owner: &AffinityOwner,
        cidr: IpNet,
    ) -> Result<Option<Record<Affinity>>, Error> {
        match Record::create(self.store, key::affinity(owner, cidr), Affinity::pending()) {
            Err(Error::Store(StoreError::Exists { .. })) => {}
            made => return made.map(Some),
        }
        let Some(mut affinity) = self.affinity(owner, cidr)? else {
            return Ok(None);
        };
        // A confirmed claim stays as it is if the block is there; if not, it was a lie, and is told anew.
        let is_true = affinity.value.state == State::Confirmed && self.block(cidr)?.is_some();
        if !is_true && affinity.value.state != State::Pending {
            affinity.value.state = State::Pending;
            affinity.save(self.store)?;
        }
        Ok(Some(affinity))
    }

    /// Gives a block up: an empty one is deleted, one with pods in it is nobody's from then on.
    pub fn release_affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<(), Error> {
        self.retry("giving a block up", || self.try_to_release_affinity(owner, cidr, |_| Ok(())))
    }

    /// Gives a block up if it is empty, else [`Error::NotEmpty`].
    pub fn release_affinity_if_empty(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<(), Error> {
        self.retry("giving a block up", || self.try_to_release_affinity(owner, cidr, must_be_empty))
    }

    /// Gives up whatever a node has, when the node is gone. With `if_empty`, blocks with addresses in use stay.
    pub fn release_all_affinities(&self, owner: &AffinityOwner, if_empty: bool) -> Result<(), Error> {
        let blocks = self.blocks()?.into_iter().flatten();
        let named = blocks.filter(|block| block.owner().as_ref() == Some(owner)).map(|block| block.cidr());
        let claimed = self.affinities(Some(owner))?.into_iter().map(|(_, cidr, _)| cidr);
        for cidr in claimed.chain(named).collect::<std::collections::BTreeSet<_>>() {
            match if_empty {
                true => match self.release_affinity_if_empty(owner, cidr) {
                    Err(Error::NotEmpty { .. }) => {}
                    done => done?,
                },
                false => self.release_affinity(owner, cidr)?,
            }
        }
        Ok(())
    }

    /// Takes an empty block away from whoever has it, as it was seen: one write to it since then, and it stays.
    pub(super) fn take_away(&self, seen: &Block) -> Result<(), Error> {
        let untouched = |block: &Block| match block.sequence() == seen.sequence() {
            true => must_be_empty(block),
            false => Err(Error::NotEmpty { block: block.cidr() }),
        };
        let Some(owner) = seen.owner() else {
            let block = self.block(seen.cidr())?;
            return match block {
                Some(block) if block.value.owner().is_none() => {
                    untouched(&block.value).and_then(|()| block.delete(self.store))
                }
                _ => Ok(()),
            };
        };
        self.retry("taking a block away", || self.try_to_release_affinity(&owner, seen.cidr(), untouched))
    }

    fn try_to_release_affinity(
        &self,
        owner: &AffinityOwner,
        cidr: IpNet,
        may_go: impl Fn(&Block) -> Result<(), Error>,
    ) -> Result<Option<()>, Error> {
        let block = self.block(cidr)?;
        let affinity = self.affinity(owner, cidr)?;
        let Some(mut block) = block.filter(|block| block.value.owner().as_ref() == Some(owner)) else {
            return self.drop_stale_affinity(affinity, cidr).map(|done| done.then_some(()));
        };
        may_go(&block.value)?;
        let affinity = match affinity {
            None => None,
            Some(mut affinity) => {
                affinity.value.state = State::PendingDeletion;
                affinity.save(self.store)?;
                Some(affinity)
            }
        };
        block.value.disown();
        self.save_block(&mut block)?;
        affinity.map_or(Ok(()), |affinity| affinity.delete(self.store))?;
        Ok(Some(()))
    }

    /// Removes an affinity whose block is not there, or not the owner's. Whether that was so when the affinity was read.
    fn drop_stale_affinity(&self, affinity: Option<Record<Affinity>>, cidr: IpNet) -> Result<bool, Error> {
        let Some(affinity) = affinity else {
            return Ok(true);
        };
        // The block was looked at before the affinity. Between the two the owner may have come to have it.
        if affinity.value.state == State::Confirmed {
            let owner = key::parse_affinity(&affinity.key).map(|(owner, _)| owner);
            if self.block(cidr)?.is_some_and(|block| block.value.owner() == owner) {
                return Ok(false);
            }
        }
        affinity.delete(self.store)?;
        Ok(true)
    }

    /// Removes a claim whose block is not there, or not the owner's. Whether that was so.
    pub(crate) fn forget_stale_affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<bool, Error> {
        self.retry("forgetting a claim", || {
            let block = self.block(cidr)?;
            let affinity = self.affinity(owner, cidr)?;
            if block.is_some_and(|block| block.value.owner().as_ref() == Some(owner)) {
                return Ok(Some(false));
            }
            self.drop_stale_affinity(affinity, cidr).map(|done| done.then_some(true))
        })
    }

    /// Our own block, if it is really ours. What a death has left half done is finished first.
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

fn must_be_empty(block: &Block) -> Result<(), Error> {
    match block.is_empty() {
        true => Ok(()),
        false => Err(Error::NotEmpty { block: block.cidr() }),
    }
}

pub(super) fn not_owner(block: &Block) -> Error {
    let holder = block.owner().map_or_else(|| "nobody".into(), |owner| owner.to_string());
    Error::NotOwner { block: block.cidr(), holder }
}
