//! Entering what somebody has got elsewhere: a running pod keeps its address, and from then on it is a block's.

use std::net::IpAddr;

use super::claim::not_owner;
use super::{Allocator, Error};
use crate::{Request, Rules};

/// What became of an address that was to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is written down now.
    Now,
    /// It was written down already, for the same handle.
    Before,
}

impl Allocator<'_> {
    /// Writes down that the request's handle has an address. It may be told twice. [`Error::Taken`] if somebody else has it.
    pub fn adopt(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<Adopted, Error> {
        match self.would_adopt(rules, request, ip)? {
            Adopted::Now => self.assign_address(rules, request, ip).map(|_| Adopted::Now),
            Adopted::Before => Ok(Adopted::Before),
        }
    }

    /// What [`Allocator::adopt`] would do at this moment. Nothing is written.
    pub fn would_adopt(&self, rules: &Rules, request: &Request, ip: IpAddr) -> Result<Adopted, Error> {
        let outside = Error::OutsideOfPools { ip, allowed: request.wanted_for.name() };
        let cidr = rules.pool_of(ip, request.wanted_for)?.block_of(ip).ok_or(outside)?;
        let Some(block) = self.block(cidr)?.map(|record| record.value) else {
            return self.refuse_overlap(cidr).map(|()| Adopted::Now);
        };
        match block.allocation(ip).map(|allocation| allocation.attribute.handle()) {
            Some(Some(holder)) if holder == request.handle => Ok(Adopted::Before),
            Some(holder) => {
                Err(Error::Taken { ip, holder: holder.unwrap_or("nobody: it cools down").into() })
            }
            None if rules.config.strict_affinity && block.owner().as_ref() != Some(&request.owner) => {
                Err(not_owner(&block))
            }
            None => Ok(Adopted::Now),
        }
    }
}
