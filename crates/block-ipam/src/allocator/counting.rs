//! Counting a handle's addresses.
//!
//! The count goes up before a block is written and down after, so that a death in between leaves a handle that promises too
//! much. To bring a count down to what a block really holds, two writes are needed in this order: the block (which turns back
//! everybody who has counted up but not yet written it), then the handle as it was read before that.

use ipnet::IpNet;

use super::{key, Allocator, Error, Handle, Record};

impl Allocator<'_> {
    pub(super) fn handle(&self, id: &str) -> Result<Option<Record<Handle>>, Error> {
        Record::find(self.store, &key::handle(id))
    }

    /// Counts up, and returns the handle as it was written.
    pub(crate) fn count_up(&self, id: &str, block: IpNet, count: usize) -> Result<Record<Handle>, Error> {
        self.retry("counting a handle up", || match self.handle(id)? {
            None => {
                let mut handle = Handle::default();
                handle.add(block, count);
                Record::create(self.store, key::handle(id), handle).map(Some)
            }
            Some(mut handle) => {
                handle.value.add(block, count);
                handle.save(self.store)?;
                Ok(Some(handle))
            }
        })
    }

    /// Takes a count back because the block was not written. If somebody has changed the handle meanwhile, it is left as it is:
    /// it promises too much, which does no harm.
    pub(super) fn count_back(
        &self,
        mut handle: Record<Handle>,
        block: IpNet,
        count: usize,
    ) -> Result<(), Error> {
        handle.value.subtract(block, count);
        match self.save_handle(&mut handle) {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Brings a handle's count for a block down to what the block holds. `before` is the handle as it was read before the last
    /// write to the block, and `held` what the block has held since that write.
    pub(super) fn settle(
        &self,
        id: &str,
        before: Option<Record<Handle>>,
        block: IpNet,
        held: usize,
    ) -> Result<(), Error> {
        let Some(mut handle) = before else {
            return Ok(());
        };
        let surplus = handle.value.count(block).saturating_sub(held);
        if surplus == 0 {
            return Ok(());
        }
        handle.value.subtract(block, surplus);
        match self.save_handle(&mut handle) {
            Err(error) if error.is_conflict() => self.settle_anew(id, block),
            done => done,
        }
    }

    /// The same after somebody has changed the handle: the block is written once more, without a change.
    pub(crate) fn settle_anew(&self, id: &str, cidr: IpNet) -> Result<(), Error> {
        self.retry("settling a handle", || {
            let Some(mut handle) = self.handle(id)? else {
                return Ok(Some(()));
            };
            let block = self.block(cidr)?;
            let held = block.as_ref().map_or(0, |block| block.value.of_handle(id).len());
            let surplus = handle.value.count(cidr).saturating_sub(held);
            if surplus == 0 {
                return Ok(Some(()));
            }
            if let Some(mut block) = block {
                self.save_block(&mut block)?;
            }
            handle.value.subtract(cidr, surplus);
            self.save_handle(&mut handle).map(Some)
        })
    }

    /// Removes a handle that counts nothing. Whether it did so still. Whoever counts it up meanwhile is faster.
    pub(crate) fn forget_idle_handle(&self, id: &str) -> Result<bool, Error> {
        match self.handle(id)? {
            Some(mut handle) if handle.value.is_empty() => match self.save_handle(&mut handle) {
                Err(error) if error.is_conflict() => Ok(false),
                done => done.map(|()| true),
            },
            _ => Ok(false),
        }
    }

    /// Writes a handle back; one that counts nothing goes.
    pub(super) fn save_handle(&self, handle: &mut Record<Handle>) -> Result<(), Error> {
        match handle.value.is_empty() {
            true => Ok(self.store.delete(&handle.key, handle.revision)?),
            false => handle.save(self.store),
        }
    }
}
