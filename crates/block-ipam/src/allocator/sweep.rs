//! Finding what nobody will ever give back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Allocator, Block, Error, Release};
use crate::Rules;

/// What was swept up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Addresses, and the handles that had them.
    pub addresses: Vec<(IpAddr, String)>,
    /// Handles that had nothing.
    pub handles: Vec<String>,
    /// What could not be swept, and why.
    pub errors: Vec<Error>,
}

impl Allocator<'_> {
    /// Frees addresses that have cooled down in blocks where nothing else happens. How many blocks were written.
    pub fn free_cooled_down(&self, rules: &Rules) -> Result<usize, Error> {
        let cooldown = rules.config.ip_cooldown_seconds;
        let mut written = 0;
        for block in self.blocks()?.into_iter().flatten() {
            let is_cooled_down = |block: &Block| {
                block.allocations().any(|one| one.attribute.is_cooled_down(self.now(), cooldown))
            };
            if is_cooled_down(&block) {
                written += self.retry("freeing cold addresses", || match self.block(block.cidr())? {
                    Some(mut found) if is_cooled_down(&found.value) => {
                        found.value.free_cooled_down(self.now(), cooldown);
                        self.save_block(&mut found).map(|()| Some(1))
                    }
                    _ => Ok(Some(0)),
                })?;
            }
        }
        Ok(written)
    }

    /// Gives back every address, and removes every handle, that `is_alive` does not know. Addresses are found in the blocks
    /// themselves, and are given back only if they are still what they were when they were looked at. It goes on past errors.
    ///
    /// Whoever is being started right now must count as alive.
    pub fn sweep(&self, rules: &Rules, is_alive: impl Fn(&str) -> bool) -> Result<SweepReport, Error> {
        let mut swept = SweepReport::default();
        for block in self.blocks()? {
            let block = match block {
                Ok(block) => block,
                Err(error) => {
                    swept.errors.push(error);
                    continue;
                }
            };
            let mut stale: BTreeMap<String, Vec<Release>> = BTreeMap::new();
            for allocation in block.allocations().filter(|allocation| !allocation.attribute.is_reserved()) {
                let Some(handle) = allocation.attribute.handle().filter(|handle| !is_alive(handle)) else {
                    continue;
                };
                let sequence = Some(allocation.sequence).filter(|sequence| *sequence > 0);
                let release = Release { ip: allocation.ip, handle: Some(handle.into()), sequence };
                stale.entry(handle.into()).or_default().push(release);
            }
            for (handle, releases) in stale {
                match self.release(rules, &releases) {
                    Ok(_) => {
                        swept.addresses.extend(releases.iter().map(|release| (release.ip, handle.clone())))
                    }
                    Err(error) => swept.errors.push(error),
                }
            }
        }
        for (handle, _) in self.handles()?.into_iter().filter(|(handle, _)| !is_alive(handle)) {
            match self.release_handle(rules, &handle) {
                Ok(_) => swept.handles.push(handle),
                Err(error) => swept.errors.push(error),
            }
        }
        Ok(swept)
    }
}
