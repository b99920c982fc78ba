//! The warm pool: addresses that a node holds before their pods start.
//!
//! A node's agent assigns itself some addresses in advance with [`Allocator::assign`], under its own handle
//! ([`Handle::for_warm_pool`](crate::Handle)). For all other nodes, Calico's included, they are in use. A pod then gets
//! one without a request to the store, and the agent transfers it afterwards from the warm pool's handle to the pod's.
//! A transfer is idempotent: an agent that was restarted may repeat it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::release::named_blocks;
use super::{key, Allocator, Block, Error, Handle, Record};
use crate::Attribute;

/// The transfer of an address from the warm pool to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The address, with the prefix length of its block.
    pub address: IpNet,
    /// The pod's handle.
    pub handle: String,
    /// The pod's attributes.
    pub attributes: BTreeMap<String, String>,
}

/// The transfers that failed. All others are recorded in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferOutcome {
    /// Addresses that another holder has: the warm pool had lost them before.
    pub lost: Vec<Transfer>,
    /// Transfers whose block or handle is malformed, with the error.
    pub failed: Vec<(Transfer, Error)>,
}

impl Allocator<'_> {
    /// The addresses of a warm pool, with the prefix lengths of their blocks. Malformed blocks are skipped.
    pub fn warm_addresses(&self, warm_pool: &str) -> Result<Vec<IpNet>, Error> {
        let Some(record) = self.handle(warm_pool)? else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for cidr in named_blocks(&record)? {
            let block = match self.block(cidr) {
                Err(Error::Malformed { .. }) => None,
                found => found?,
            };
            let ips = block.map(|block| block.value.of_handle(warm_pool)).unwrap_or_default();
            all.extend(ips.into_iter().filter_map(|ip| IpNet::new(ip, cidr.prefix_len()).ok()));
        }
        Ok(all)
    }

    /// Records transfers, with one write for each block. Malformed blocks and handles are skipped and reported.
    pub fn transfer(&self, warm_pool: &str, transfers: &[Transfer]) -> Result<TransferOutcome, Error> {
        let mut by_block: BTreeMap<IpNet, Vec<&Transfer>> = BTreeMap::new();
        for transfer in transfers {
            by_block.entry(transfer.address.trunc()).or_default().push(transfer);
        }
        let mut all = TransferOutcome::default();
        for (cidr, mut transfers) in by_block {
            while !transfers.is_empty() {
                match self
                    .retry("transferring addresses", || self.try_to_transfer(warm_pool, cidr, &transfers))
                {
                    Ok(refused) => {
                        all.lost.extend(refused);
                        break;
                    }
                    Err(error @ Error::Malformed { .. }) => {
                        let affected = take_affected(&mut transfers, &error);
                        all.failed
                            .extend(affected.into_iter().map(|transfer| (transfer.clone(), error.clone())));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }

    fn try_to_transfer(
        &self,
        warm_pool: &str,
        cidr: IpNet,
        transfers: &[&Transfer],
    ) -> Result<Option<Vec<Transfer>>, Error> {
        let Some(mut block) = self.block(cidr)? else {
            return Ok(Some(transfers.iter().map(|transfer| (*transfer).clone()).collect()));
        };
        let mut refused = Vec::new();
        let mut has_changed = false;
        for transfer in transfers {
            match block.value.transfer(transfer.address.addr(), warm_pool, &attribute(transfer)) {
                TransferStep::Done => has_changed = true,
                TransferStep::DoneBefore => {}
                TransferStep::Refused => refused.push((*transfer).clone()),
            }
        }
        if has_changed {
            self.write_transfers(warm_pool, &mut block, transfers)?;
        }
        Ok(Some(refused))
    }

    /// 1. Increases the counts of the new handles. 2. Writes the block. 3. Decreases the count of the warm pool. So
    ///    every handle counts all of its addresses at every moment.
    fn write_transfers(
        &self,
        warm_pool: &str,
        block: &mut Record<Block>,
        transfers: &[&Transfer],
    ) -> Result<(), Error> {
        let cidr = block.value.cidr();
        let mut counted = Vec::new();
        for handle in transfers.iter().map(|transfer| &transfer.handle).collect::<BTreeSet<_>>() {
            let held = block.value.of_handle(handle).len();
            counted.push((handle, held, self.raise_count(handle, cidr, held)?));
        }
        let before = self.handle(warm_pool)?;
        self.save_block(block)?;
        self.decrease_count(warm_pool, before, cidr, block.value.of_handle(warm_pool).len())?;
        for (handle, held, record) in counted {
            self.decrease_count(handle, Some(record), cidr, held)?;
        }
        Ok(())
    }

    /// Increases a count to `needed`, and by one if it is that high already from an earlier attempt: the handle must be
    /// written with a change, to fail a concurrent decrease. Usually the pod is new: the first attempt creates the
    /// handle without a read.
    fn raise_count(&self, id: &str, block: IpNet, needed: usize) -> Result<Record<Handle>, Error> {
        let mut new = Handle::default();
        new.add(block, needed);
        match Record::create(self.store, key::handle(id), new) {
            Err(error) if error.is_conflict() => {}
            created => return created,
        }
        self.retry("increasing the count of a handle", || match self.handle(id)? {
            None => self.increase_count(id, block, needed).map(Some),
            Some(mut handle) => {
                let missing = needed.saturating_sub(handle.value.count(block));
                handle.value.add(block, missing.max(1));
                handle.save(self.store)?;
                Ok(Some(handle))
            }
        })
    }
}

/// Removes the transfers that a malformed record affects: those of that handle, or all if it is the block or the warm
/// pool's handle.
fn take_affected<'a>(transfers: &mut Vec<&'a Transfer>, error: &Error) -> Vec<&'a Transfer> {
    let is_affected = |transfer: &&Transfer| matches!(error, Error::Malformed { key, .. } if *key == key::handle(&transfer.handle));
    let (affected, rest): (Vec<_>, Vec<_>) = transfers.drain(..).partition(is_affected);
    if affected.is_empty() {
        return rest;
    }
    *transfers = rest;
    affected
}

fn attribute(transfer: &Transfer) -> Attribute {
    Attribute::new(&transfer.handle, transfer.attributes.clone())
}

/// The outcome of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferStep {
    /// The pod has the address now.
    Done,
    /// The pod had the address before.
    DoneBefore,
    /// Another holder has it.
    Refused,
}

impl Block {
    /// Transfers an address of the handle `from`. A free address, of a warm pool that was released by hand, is
    /// assigned.
    fn transfer(&mut self, ip: IpAddr, from: &str, to: &Attribute) -> TransferStep {
        let holder = self.allocation(ip).map(|allocation| allocation.attribute.handle().map(str::to_owned));
        match holder {
            None if self.assign_address(ip, to) => TransferStep::Done,
            Some(Some(holder)) if Some(&*holder) == to.handle() => TransferStep::DoneBefore,
            Some(Some(holder)) if holder == from => {
                self.reassign(ip, to);
                TransferStep::Done
            }
            _ => TransferStep::Refused,
        }
    }
}
