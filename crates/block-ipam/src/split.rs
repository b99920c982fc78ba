//! Splits a pool into smaller ones while pods run and start.

use ipnet::IpNet;

use super::record::Value;
use super::{Allocator, Error, Pool, Record};
use crate::store::StoreError;

impl Allocator<'_> {
    /// Replaces a pool by `parts` pools of equal size with the same settings: `split-<name>-0` and so on. Blocks and
    /// addresses do not change.
    ///
    /// 1. The new pools are created disabled, so that routes and NAT apply to them.
    /// 2. The old pool is deleted. No new address is assigned from here to step 3.
    /// 3. The new pools are enabled.
    ///
    /// After an interruption it can be repeated.
    pub fn split(&self, pool: &Pool, parts: usize) -> Result<Vec<Pool>, Error> {
        let bits = parts.checked_ilog2().unwrap_or(0) as u8;
        let (cidr, length) = (pool.cidr(), pool.cidr().prefix_len() + bits);
        let why = match parts {
            parts if parts < 2 || !parts.is_power_of_two() => format!("{parts} is not 2, 4, 8, 16 …"),
            _ if length > pool.block_size() => {
                format!("a part of {cidr} would be smaller than its blocks, /{}", pool.block_size())
            }
            _ => String::new(),
        };
        if !why.is_empty() {
            return Err(Error::Settings { why });
        }
        let nets: Vec<IpNet> =
            cidr.subnets(length).map_err(|error| Error::Settings { why: error.to_string() })?.collect();
        let names = nets.iter().enumerate().map(|(index, _)| format!("split-{}-{index}", pool.name()));
        let wanted: Vec<Pool> = names.zip(&nets).map(|(name, net)| pool.part(&name, *net)).collect();
        for part in &wanted {
            match Record::create(self.store, part.key(), part.clone().disabled()) {
                Err(Error::Store(StoreError::Exists { .. })) => self.expect_part(part)?,
                made => drop(made?),
            }
        }
        if let Some(old) = Record::<Pool>::find(self.store, &pool.key())? {
            old.delete(self.store)?;
        }
        self.enable(&wanted)?;
        Ok(wanted)
    }

    /// Finishes a split of the pool `name` that was interrupted after step 2. `None` if there is none.
    pub fn resume_split(&self, pools: &[Pool], name: &str, parts: usize) -> Result<Option<Vec<Pool>>, Error> {
        let named = |index| pools.iter().find(|pool| pool.name() == format!("split-{name}-{index}")).cloned();
        let Some(found) = (0..parts).map(named).collect::<Option<Vec<Pool>>>() else { return Ok(None) };
        if found.iter().all(Pool::is_enabled) {
            return Ok(None);
        }
        let wanted: Vec<Pool> = found.into_iter().map(Pool::enabled).collect();
        self.enable(&wanted)?;
        Ok(Some(wanted))
    }

    fn enable(&self, parts: &[Pool]) -> Result<(), Error> {
        for part in parts {
            self.retry("enabling a pool", || {
                let found = Record::<Pool>::find(self.store, &part.key())?;
                let mut found = found.ok_or_else(|| StoreError::Missing { key: part.key() })?;
                found.value = part.clone();
                found.save(self.store).map(Some)
            })?;
        }
        Ok(())
    }

    /// Accepts an existing part only if it is from an earlier attempt.
    fn expect_part(&self, part: &Pool) -> Result<(), Error> {
        let found = Record::<Pool>::find(self.store, &part.key())?;
        match found {
            Some(found) if found.value.encode() == part.clone().disabled().encode() => Ok(()),
            _ => Err(Error::Settings { why: format!("another pool {} exists", part.name()) }),
        }
    }
}
