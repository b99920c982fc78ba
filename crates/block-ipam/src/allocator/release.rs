//! Taking addresses back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Allocator, Block, Error, Record};
use crate::{Handle, IpFamily, Rules};

/// An address to give back, and what the caller believes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The address.
    pub ip: IpAddr,
    /// The handle that has it; any, if nothing is said.
    pub handle: Option<String>,
    /// The block's number when it was given; any, if nothing is said. An address that was given to somebody else since
    /// then has another.
    pub sequence: Option<u64>,
}

impl Release {
    /// Whoever has it.
    pub fn of(ip: IpAddr) -> Release {
        Release { ip, handle: None, sequence: None }
    }
}

impl Allocator<'_> {
    /// The addresses of a handle.
    pub fn addresses_of(&self, handle: &str) -> Result<Vec<IpAddr>, Error> {
        let Some(record) = self.handle(handle)? else {
            return Ok(Vec::new());
        };
        let mut ips = Vec::new();
        for cidr in named_blocks(&record)? {
            ips.extend(self.block(cidr)?.map(|block| block.value.of_handle(handle)).unwrap_or_default());
        }
        Ok(ips)
    }

    /// Gives back whatever a handle has, and removes the handle. That it has nothing is fine: what is left of an assignment
    /// that was cut short goes, too.
    pub fn release_handle(&self, rules: &Rules, id: &str) -> Result<Vec<IpAddr>, Error> {
        let mut released = BTreeSet::new();
        self.retry("releasing by handle", || {
            let Some(mut handle) = self.handle(id)? else {
                return Ok(Some(()));
            };
            for cidr in named_blocks(&handle)? {
                released.extend(self.release_in_block(rules, cidr, id)?);
                handle.value.subtract(cidr, usize::MAX);
            }
            // If somebody counts up meanwhile, this write fails, and all is done again.
            self.save_handle(&mut handle).map(Some)
        })?;
        Ok(released.into_iter().collect())
    }

    /// Frees a handle's addresses in a block. The block is written even if there are none: an assignment that has counted
    /// the handle up and is about to write the block is turned back by that.
    fn release_in_block(&self, rules: &Rules, cidr: IpNet, id: &str) -> Result<Vec<IpAddr>, Error> {
        self.retry("releasing by handle", || {
            let Some(mut block) = self.block(cidr)? else {
                return Ok(Some(Vec::new()));
            };
            let ips = block.value.of_handle(id);
            self.free(&mut block, &ips, rules)?;
            Ok(Some(ips))
        })
    }

    /// Gives addresses back, and returns those that nobody had. If what the caller believes about one is no longer so, no
    /// address of its block is given back.
    pub fn release(&self, rules: &Rules, releases: &[Release]) -> Result<Vec<IpAddr>, Error> {
        let mut by_block: BTreeMap<Option<IpNet>, Vec<&Release>> = BTreeMap::new();
        for release in releases {
            by_block.entry(self.block_of(rules, release.ip)?).or_default().push(release);
        }
        let mut unknown = Vec::new();
        for (cidr, releases) in by_block {
            match cidr {
                None => unknown.extend(releases.iter().map(|release| release.ip)),
                Some(cidr) => unknown.extend(
                    self.retry("releasing addresses", || self.try_to_release(rules, cidr, &releases))?,
                ),
            }
        }
        Ok(unknown)
    }

    fn try_to_release(
        &self,
        rules: &Rules,
        cidr: IpNet,
        releases: &[&Release],
    ) -> Result<Option<Vec<IpAddr>>, Error> {
        let Some(mut block) = self.block(cidr)? else {
            return Ok(Some(releases.iter().map(|release| release.ip).collect()));
        };
        let (mut ips, mut unknown, mut handles) = (Vec::new(), Vec::new(), BTreeMap::new());
        for release in releases {
            match block.value.allocation(release.ip).filter(|allocation| !allocation.attribute.is_cooling()) {
                None => unknown.push(release.ip),
                Some(allocation) => {
                    refuse_stale(release, allocation.attribute.handle(), allocation.sequence)?;
                    ips.push(release.ip);
                    handles.extend(allocation.attribute.handle().map(|handle| (handle.to_owned(), None)));
                }
            }
        }
        if ips.is_empty() {
            return Ok(Some(unknown));
        }
        for (id, handle) in &mut handles {
            *handle = self.handle(id)?;
        }
        self.free(&mut block, &ips, rules)?;
        for (id, handle) in handles {
            let held = block.value.of_handle(&id).len();
            self.settle(&id, handle, cidr, held)?;
        }
        Ok(Some(unknown))
    }

    fn free(&self, block: &mut Record<Block>, ips: &[IpAddr], rules: &Rules) -> Result<(), Error> {
        let cooldown = rules.config.ip_cooldown_seconds;
        block.value.release(ips, self.now(), cooldown);
        block.value.free_cooled_down(self.now(), cooldown);
        self.save_block(block)
    }

    /// The block that an address lies in: by its pool, or, if that is gone, by looking at the keys of all blocks.
    fn block_of(&self, rules: &Rules, ip: IpAddr) -> Result<Option<IpNet>, Error> {
        let by_pool = rules.pools.iter().find_map(|pool| pool.block_of(ip));
        if let Some(cidr) = by_pool {
            if self.block(cidr)?.is_some() {
                return Ok(Some(cidr));
            }
        }
        Ok(self.cidrs(IpFamily::of(ip))?.into_iter().find(|cidr| cidr.contains(&ip)))
    }
}

fn refuse_stale(release: &Release, handle: Option<&str>, sequence: u64) -> Result<(), Error> {
    let why = match (&release.handle, release.sequence) {
        (Some(wanted), _) if handle != Some(wanted) => {
            format!("it belongs to {}, not to {wanted}", handle.unwrap_or("nobody"))
        }
        (_, Some(wanted)) if wanted != sequence => {
            format!("it was given again since then (number {sequence}, not {wanted})")
        }
        _ => return Ok(()),
    };
    Err(Error::Stale { ip: release.ip, why })
}

/// The blocks that a handle names.
pub(super) fn named_blocks(handle: &Record<Handle>) -> Result<Vec<IpNet>, Error> {
    let read = |(name, _): (&str, usize)| {
        name.parse()
            .map_err(|_| Error::Malformed { key: handle.key.clone(), why: format!("{name:?} is no block") })
    };
    handle.value.blocks().map(read).collect()
}
