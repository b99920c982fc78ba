//! Addresses in stock: a node has them before their pods come.
//!
//! A node's agent assigns itself some addresses ahead, under a handle of its own ([`Handle::for_warm_pool`](crate::Handle)), with
//! [`Allocator::assign`]. To everybody else they are taken, borrowers and Calico's nodes included. A pod then gets one without
//! a word to the store, and the store is told afterwards: the address is handed over from the stock's handle to the pod's. It
//! may be told twice, by an agent that died meanwhile and does not know how far it had come.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::release::named_blocks;
use super::{key, Allocator, Block, Error, Handle, Record};
use crate::Attribute;

/// An address that a pod has got out of the stock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The address, with the prefix length of its block.
    pub address: IpNet,
    /// The pod's handle.
    pub handle: String,
    /// What else is known about the pod.
    pub attributes: BTreeMap<String, String>,
}

/// What became of what was to be handed over. Of what is not named here, the store knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferOutcome {
    /// What somebody else has: the stock had lost it before it was given.
    pub lost: Vec<Transfer>,
    /// What could not be told because its block or its handle makes no sense, and why.
    pub failed: Vec<(Transfer, Error)>,
}

impl Allocator<'_> {
    /// What is in stock: addresses with the prefix lengths of their blocks. Blocks that make no sense hold none.
    pub fn warm_addresses(&self, stock: &str) -> Result<Vec<IpNet>, Error> {
        let Some(record) = self.handle(stock)? else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for cidr in named_blocks(&record)? {
            let block = match self.block(cidr) {
                Err(Error::Malformed { .. }) => None,
                found => found?,
            };
            let ips = block.map(|block| block.value.of_handle(stock)).unwrap_or_default();
            all.extend(ips.into_iter().filter_map(|ip| IpNet::new(ip, cidr.prefix_len()).ok()));
        }
        Ok(all)
    }

    /// Writes down who has got which address of the stock, in one write for each block. It goes on past blocks and handles that make no
    /// sense.
    pub fn transfer(&self, stock: &str, transfers: &[Transfer]) -> Result<TransferOutcome, Error> {
        let mut by_block: BTreeMap<IpNet, Vec<&Transfer>> = BTreeMap::new();
        for transfer in transfers {
            by_block.entry(transfer.address.trunc()).or_default().push(transfer);
        }
        let mut all = TransferOutcome::default();
        for (cidr, mut transfers) in by_block {
            while !transfers.is_empty() {
                match self.retry("handing addresses over", || self.try_to_transfer(stock, cidr, &transfers)) {
                    Ok(refused) => {
                        all.lost.extend(refused);
                        break;
                    }
                    Err(error @ Error::Malformed { .. }) => {
                        let aside = take_affected(&mut transfers, &error);
                        all.failed
                            .extend(aside.into_iter().map(|transfer| (transfer.clone(), error.clone())));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(all)
    }

    fn try_to_transfer(
        &self,
        stock: &str,
        cidr: IpNet,
        transfers: &[&Transfer],
    ) -> Result<Option<Vec<Transfer>>, Error> {
        let Some(mut block) = self.block(cidr)? else {
            return Ok(Some(transfers.iter().map(|transfer| (*transfer).clone()).collect()));
        };
        let mut refused = Vec::new();
        let mut is_news = false;
        for transfer in transfers {
            match block.value.pass_on(transfer.address.addr(), stock, &attribute(transfer)) {
                Passed::Now => is_news = true,
                Passed::Before => {}
                Passed::Not => refused.push((*transfer).clone()),
            }
        }
        if is_news {
            self.write_passed(stock, &mut block, transfers)?;
        }
        Ok(Some(refused))
    }

    /// Counts the new handles up, writes the block, counts the stock down: every handle counts all of its addresses at each moment.
    fn write_passed(
        &self,
        stock: &str,
        block: &mut Record<Block>,
        transfers: &[&Transfer],
    ) -> Result<(), Error> {
        let cidr = block.value.cidr();
        let mut counted = Vec::new();
        for handle in transfers.iter().map(|transfer| &transfer.handle).collect::<BTreeSet<_>>() {
            let held = block.value.of_handle(handle).len();
            counted.push((handle, held, self.count_to(handle, cidr, held)?));
        }
        let before = self.handle(stock)?;
        self.save_block(block)?;
        self.settle(stock, before, cidr, block.value.of_handle(stock).len())?;
        for (handle, held, record) in counted {
            self.settle(handle, Some(record), cidr, held)?;
        }
        Ok(())
    }

    /// Counts up to what is needed, and by one more if a handle promises that much already, from an earlier try: it has to be written,
    /// and be another than before, to turn back whoever is about to count it down.
    fn count_to(&self, id: &str, block: IpNet, needed: usize) -> Result<Record<Handle>, Error> {
        self.retry("counting a handle up", || match self.handle(id)? {
            None => self.count_up(id, block, needed).map(Some),
            Some(mut handle) => {
                let missing = needed.saturating_sub(handle.value.count(block));
                handle.value.add(block, missing.max(1));
                handle.save(self.store)?;
                Ok(Some(handle))
            }
        })
    }
}

/// Takes out the transfers that a record which makes no sense keeps from being told: those of that handle, or, if it is the block or the
/// stock's own handle, all.
fn take_affected<'a>(transfers: &mut Vec<&'a Transfer>, error: &Error) -> Vec<&'a Transfer> {
    let is_of_it = |transfer: &&Transfer| matches!(error, Error::Malformed { key, .. } if *key == key::handle(&transfer.handle));
    let (aside, rest): (Vec<_>, Vec<_>) = transfers.drain(..).partition(is_of_it);
    match aside.is_empty() {
        true => rest,
        false => {
            *transfers = rest;
            aside
        }
    }
}

fn attribute(transfer: &Transfer) -> Attribute {
    Attribute::new(&transfer.handle, transfer.attributes.clone())
}

/// What became of an address that was to be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// It is the pod's from now on.
    Now,
    /// It was the pod's already.
    Before,
    /// It is somebody else's.
    Not,
}

impl Block {
    /// Hands an address of `from` over. One that is free, since somebody released the stock by hand, is taken.
    fn pass_on(&mut self, ip: IpAddr, from: &str, to: &Attribute) -> Passed {
        let holder = self.allocation(ip).map(|allocation| allocation.attribute.handle().map(str::to_owned));
        match holder {
            None if self.take_address(ip, to) => Passed::Now,
            Some(Some(holder)) if Some(&*holder) == to.handle() => Passed::Before,
            Some(Some(holder)) if holder == from => {
                self.give_instead(ip, to);
                Passed::Now
            }
            _ => Passed::Not,
        }
    }
}
