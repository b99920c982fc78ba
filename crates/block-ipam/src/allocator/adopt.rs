//! Adopts addresses that another IPAM has assigned: a running pod keeps its address, and a block records it from then
//! on.

use std::net::IpAddr;

use super::claim::not_owner;
use super::{Allocator, Error};
use crate::{Request, Rules};

/// The outcome of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptOutcome {
    /// The address was recorded now.
    Recorded,
    /// It was recorded before, for the same handle.
    AlreadyRecorded,
}

impl Allocator<'_> {
    /// Records that the request's handle has an address. Idempotent. Fails with [`Error::Taken`] if another handle has
    /// it.
    pub fn adopt(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<AdoptOutcome, Error> {
        match self.check_adopt(rules, request, ip)? {
            AdoptOutcome::Recorded => self.assign_address(rules, request, ip).map(|_| AdoptOutcome::Recorded),
            AdoptOutcome::AlreadyRecorded => Ok(AdoptOutcome::AlreadyRecorded),
        }
    }

    /// What [`Allocator::adopt`] would do now. Nothing is written.
    pub fn check_adopt(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<AdoptOutcome, Error> {
        let outside = Error::OutsideOfPools { ip, allowed: request.intended_use.name() };
        let cidr = rules.pool_of(ip, request.intended_use)?.block_of(ip).ok_or(outside)?;
        let Some(block) = self.block(cidr)?.map(|record| record.value) else {
            return self.check_overlap(cidr).map(|()| AdoptOutcome::Recorded);
        };
        match block.allocation(ip).map(|allocation| allocation.attribute.handle()) {
            Some(Some(holder)) if holder == request.handle => Ok(AdoptOutcome::AlreadyRecorded),
            Some(holder) => {
                Err(Error::Taken { ip, holder: holder.unwrap_or("no handle: it cools down").into() })
            }
            None if rules.config.strict_affinity && block.owner().as_ref() != Some(&request.owner) => {
                Err(not_owner(&block))
            }
            None => Ok(AdoptOutcome::Recorded),
        }
    }
}
