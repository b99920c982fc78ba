//! The counts of handles.
//!
//! A count is increased before a block is written and decreased after, so that a crash in between leaves a count that
//! is too high. To correct a count that is too high, two writes are needed in this order: the block (which fails every
//! concurrent assignment that has increased the count but not written the block yet), then the handle as it was read
//! before that.

use ipnet::IpNet;

use super::{key, Allocator, Error, Handle, Record};

impl Allocator<'_> {
    pub(super) fn handle(&self, id: &str) -> Result<Option<Record<Handle>>, Error> {
        Record::find(self.store, &key::handle(id))
    }

    /// Increases a count. Returns the handle as it was written.
    pub(crate) fn increase_count(
        &self,
        id: &str,
        block: IpNet,
        count: usize,
    ) -> Result<Record<Handle>, Error> {
        self.retry("increasing the count of a handle", || match self.handle(id)? {
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

    /// Decreases a count because the block was not written. If the handle has changed meanwhile, the count stays too
    /// high, which does no harm.
    pub(super) fn undo_increase(
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

    /// Decreases a handle's count to the number of addresses in the block. `before` is the handle as it was read before
    /// the last write of the block, and `held` is the number of addresses after that write.
    pub(super) fn decrease_count(
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
            Err(error) if error.is_conflict() => self.correct_count(id, block),
            done => done,
        }
    }

    /// Corrects a count that is too high after the handle has changed: the block is written again without a change.
    pub(crate) fn correct_count(&self, id: &str, cidr: IpNet) -> Result<(), Error> {
        self.retry("correcting the count of a handle", || {
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

    /// Deletes a handle without counts. Returns `false` if it has counts, or gets one concurrently.
    pub(crate) fn delete_empty_handle(&self, id: &str) -> Result<bool, Error> {
        match self.handle(id)? {
            Some(mut handle) if handle.value.is_empty() => match self.save_handle(&mut handle) {
                Err(error) if error.is_conflict() => Ok(false),
                done => done.map(|()| true),
            },
            _ => Ok(false),
        }
    }

    /// Writes a handle. One without counts is deleted.
    pub(super) fn save_handle(&self, handle: &mut Record<Handle>) -> Result<(), Error> {
        if handle.value.is_empty() {
            return Ok(self.store.delete(&handle.key, handle.revision)?);
        }
        handle.save(self.store)
    }
}
