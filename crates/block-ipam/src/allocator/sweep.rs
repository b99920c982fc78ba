//! Releases addresses of unknown holders, and frees cooled-down addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Allocator, Block, Error, Release};
use crate::Rules;

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Released addresses, with their handles.
    pub addresses: Vec<(IpAddr, String)>,
    /// Deleted handles.
    pub handles: Vec<String>,
    /// Errors about single records.
    pub errors: Vec<Error>,
}

impl Allocator<'_> {
    /// Frees cooled-down addresses in blocks that are not written otherwise. Returns the number of written blocks.
    pub fn free_cooled_down(&self, rules: &Rules) -> Result<usize, Error> {
        let cooldown = rules.config.ip_cooldown_seconds;
        let mut written = 0;
        for block in self.blocks()?.into_iter().flatten() {
            let has_cooled_down = |block: &Block| {
                block.allocations().any(|one| one.attribute.is_cooled_down(self.now(), cooldown))
            };
            if has_cooled_down(&block) {
                written +=
                    self.retry("freeing cooled-down addresses", || match self.block(block.cidr())? {
                        Some(mut found) if has_cooled_down(&found.value) => {
                            found.value.free_cooled_down(self.now(), cooldown);
                            self.save_block(&mut found).map(|()| Some(1))
                        }
                        _ => Ok(Some(0)),
                    })?;
            }
        }
        Ok(written)
    }

    /// Releases all addresses and deletes all handles for which `is_alive` is false. Addresses are found in the blocks,
    /// and are released only if they have not been assigned again since. Errors about single records are collected.
    ///
    /// `is_alive` must be true for containers that are being started.
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
