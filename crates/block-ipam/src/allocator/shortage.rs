//! Why a pod would get no address. It reads what [`Allocator::assign`] would use, and assigns nothing.

use super::assign::full;
use super::{Allocator, Error};
use crate::{IpFamily, Request, Rules};

impl Allocator<'_> {
    /// Why a request for one address would fail; `None` if it would not, unless other nodes are faster.
    pub fn find_shortage(&self, rules: &Rules, request: &Request) -> Result<Option<Error>, Error> {
        let pools = match rules.qualified(request) {
            Err(error @ (Error::NoPool { .. } | Error::UnknownPool { .. })) => return Ok(Some(error)),
            pools => pools?,
        };
        let own = self.affinities(Some(&request.owner))?.into_iter().map(|(_, cidr, _)| cidr);
        let own: Vec<_> = own.filter(|cidr| IpFamily::of(cidr.addr()) == request.family).collect();
        for cidr in own.iter().filter(|cidr| pools.iter().any(|pool| pool.cidr().contains(*cidr))) {
            match self.block(*cidr) {
                Ok(Some(mut block)) if block.value.owner().as_ref() == Some(&request.owner) => {
                    block.value.free_cooled_down(self.now(), rules.config.ip_cooldown_seconds);
                    if block.value.free(&rules.reservations) > 0 {
                        return Ok(None);
                    }
                }
                Err(error @ Error::Store(_)) => return Err(error),
                // An affinity that is not finished, or a malformed block: no address comes from it.
                Ok(_) | Err(_) => {}
            }
        }
        let limit = rules.config.max_blocks_per_host;
        let shortage = if !rules.config.auto_allocate_blocks {
            Error::StrictAffinity
        } else if limit > 0 && own.len() >= limit {
            Error::BlockLimit { limit }
        } else if self.has_free_block(rules, request, &pools)? {
            return Ok(None);
        } else if rules.config.strict_affinity {
            Error::StrictAffinity
        } else {
            full(&pools)
        };
        let can_borrow = request.may_borrow && self.can_borrow(rules, request)?;
        Ok(Some(shortage).filter(|_| !can_borrow))
    }
}
