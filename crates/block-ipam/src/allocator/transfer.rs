//! The warm pool: addresses that a node holds before their pods start.
//!
//! A node's agent assigns itself some addresses in advance with [`Allocator::assign`], under its own handle
//! ([`Handle::for_warm_pool`](crate::Handle)). For all other nodes, Calico's included, they are in use. A pod then gets
//! one without a request to the store, and the agent transfers it afterwards from the warm pool's handle to the pod's.
//! A transfer is idempotent: an agent that was restarted may repeat it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::assign::net;
use super::release::named_blocks;
use super::{key, Allocator, Block, Error, Handle, Record};
use crate::{Attribute, Request, Rules};

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

/// What fills the place of a transferred address in the warm pool.
#[derive(Clone, Copy)]
pub struct Refill<'a> {
    /// Pools and settings.
    pub rules: &'a Rules,
    /// The requests of the warm pool: from which pools it is filled.
    pub requests: &'a [Request],
}

/// The transfers that failed, and the addresses that filled the places of the others. The store has recorded all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferOutcome {
    /// Addresses that the warm pool got in the same writes.
    pub refilled: Vec<IpNet>,
    /// Addresses that the warm pool had lost before: another holder has the address, it cools down, or its block does
    /// not exist.
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

    /// Records transfers, with one write for each block and one for each handle. Malformed blocks and handles are
    /// skipped and reported. With a refill, the warm pool gets as many free addresses of the node's own block in the
    /// same write, so that its handle keeps its count and needs no write.
    pub fn transfer(
        &self,
        warm_pool: &str,
        transfers: &[Transfer],
        refill: Option<Refill<'_>>,
    ) -> Result<TransferOutcome, Error> {
        let mut by_block: BTreeMap<IpNet, Vec<&Transfer>> = BTreeMap::new();
        for transfer in transfers {
            by_block.entry(transfer.address.trunc()).or_default().push(transfer);
        }
        let mut all = TransferOutcome::default();
        for (cidr, mut transfers) in by_block {
            while !transfers.is_empty() {
                match self.retry("transferring addresses", || {
                    self.try_to_transfer(warm_pool, cidr, &transfers, refill)
                }) {
                    Ok(TransferOutcome { refilled, lost, .. }) => {
                        all.refilled.extend(refilled);
                        all.lost.extend(lost);
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
        refill: Option<Refill<'_>>,
    ) -> Result<Option<TransferOutcome>, Error> {
        let mut outcome = TransferOutcome::default();
        let Some(mut block) = self.block(cidr)? else {
            outcome.lost.extend(transfers.iter().map(|transfer| (*transfer).clone()));
            return Ok(Some(outcome));
        };
        let warm_before = block.value.of_handle(warm_pool).len();
        let mut handles = BTreeSet::new();
        for transfer in transfers {
            match block.value.transfer(transfer.address.addr(), warm_pool, &attribute(transfer)) {
                TransferStep::Done => drop(handles.insert(&transfer.handle)),
                TransferStep::DoneBefore => {}
                TransferStep::Lost => outcome.lost.push((*transfer).clone()),
            }
        }
        if !handles.is_empty() {
            let taken = warm_before - block.value.of_handle(warm_pool).len();
            let ips = refill.map_or_else(Vec::new, |refill| self.refill(&mut block.value, refill, taken));
            self.write_transfers(&handles, &mut block, warm_pool, warm_before)?;
            outcome.refilled.extend(ips.into_iter().map(|ip| net(ip, cidr)));
        }
        Ok(Some(outcome))
    }

    /// Assigns up to `count` free addresses of a block to the warm pool, if it is the node's own and one of the pools
    /// that the warm pool is filled from has it.
    fn refill(&self, block: &mut Block, refill: Refill<'_>, count: usize) -> Vec<IpAddr> {
        let Refill { rules, requests } = refill;
        let has_block = |request: &&Request| {
            let pools = rules.qualified(request).unwrap_or_default();
            pools.iter().any(|pool| pool.cidr().contains(&block.cidr()))
                && block.owner().as_ref() == Some(&request.owner)
        };
        let Some(request) = requests.iter().find(has_block) else { return Vec::new() };
        block.free_cooled_down(self.now(), rules.config.ip_cooldown_seconds);
        block.assign(count, &request.attribute(), &rules.reservations)
    }

    /// 1. Increases the counts of the pods' handles. 2. Writes the block. 3. Decreases the count of the warm pool, if it
    ///    has fewer addresses now. 4. Subtracts what step 1 added too much. So every handle counts at least its own
    ///    addresses at every moment.
    fn write_transfers(
        &self,
        handles: &BTreeSet<&String>,
        block: &mut Record<Block>,
        warm_pool: &str,
        warm_before: usize,
    ) -> Result<(), Error> {
        let cidr = block.value.cidr();
        let mut counted = Vec::new();
        for handle in handles {
            let held = block.value.of_handle(handle).len();
            counted.push((handle, held, self.raise_count(handle, cidr, held)?));
        }
        let warm = block.value.of_handle(warm_pool).len();
        let before = if warm < warm_before { self.handle(warm_pool)? } else { None };
        self.save_block(block)?;
        self.decrease_count(warm_pool, before, cidr, warm)?;
        for (handle, held, record) in counted {
            self.decrease_count(handle, Some(record), cidr, held)?;
        }
        Ok(())
    }

    /// Increases a count to `needed`. If an earlier attempt has made it that high, one is added: only a changed handle
    /// makes a concurrent decrease fail. Usually the pod is new, so the first attempt creates the handle without a read.
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
    /// Another holder has it, or it cools down.
    Lost,
}

impl Block {
    /// Transfers an address of the handle `from`. If an administrator has released the warm pool, its addresses are
    /// free: such an address is assigned.
    fn transfer(&mut self, ip: IpAddr, from: &str, to: &Attribute) -> TransferStep {
        let holder = self.allocation(ip).map(|allocation| allocation.attribute.handle().map(str::to_owned));
        match holder {
            None if self.assign_address(ip, to) => TransferStep::Done,
            Some(Some(holder)) if Some(&*holder) == to.handle() => TransferStep::DoneBefore,
            Some(Some(holder)) if holder == from => {
                self.reassign(ip, to);
                TransferStep::Done
            }
            _ => TransferStep::Lost,
        }
    }
}
