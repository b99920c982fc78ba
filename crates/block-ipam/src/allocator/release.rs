//! Releases addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Allocator, Block, Error, Record};
use crate::{Handle, IpFamily, Rules};

/// An address to release, and what the caller expects about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The address.
    pub ip: IpAddr,
    /// The expected handle; `None` for any.
    pub handle: Option<String>,
    /// The expected sequence number of the assignment; `None` for any. It differs if the address was assigned again.
    pub sequence: Option<u64>,
}

impl Release {
    /// A release without expectations.
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

    /// Releases all addresses of a handle, and deletes the handle. Idempotent. It also cleans up an interrupted
    /// assignment.
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
            // If the count is increased concurrently, this write fails and everything is retried.
            self.save_handle(&mut handle).map(Some)
        })?;
        Ok(released.into_iter().collect())
    }

    /// Frees a handle's addresses in a block. The block is written even if there are none: that fails a concurrent
    /// assignment that has increased the count and has not written the block yet.
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

    /// Releases addresses, and returns those that were not in use. If an expectation does not hold, no address of its
    /// block is released.
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
            match block
                .value
                .allocation(release.ip)
                .filter(|allocation| !allocation.attribute.is_in_cooldown())
            {
                None => unknown.push(release.ip),
                Some(allocation) => {
                    check_expectation(release, allocation.attribute.handle(), allocation.sequence)?;
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
            self.decrease_count(&id, handle, cidr, held)?;
        }
        Ok(Some(unknown))
    }

    fn free(&self, block: &mut Record<Block>, ips: &[IpAddr], rules: &Rules) -> Result<(), Error> {
        let cooldown = rules.config.ip_cooldown_seconds;
        block.value.release(ips, self.now(), cooldown);
        block.value.free_cooled_down(self.now(), cooldown);
        self.save_block(block)
    }

    /// The block that contains an address: by its pool, or, if the pool is gone, by the keys of all blocks.
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

fn check_expectation(release: &Release, handle: Option<&str>, sequence: u64) -> Result<(), Error> {
    let why = match (&release.handle, release.sequence) {
        (Some(wanted), _) if handle != Some(wanted) => {
            format!("it belongs to {}, not to {wanted}", handle.unwrap_or("no handle"))
        }
        (_, Some(wanted)) if wanted != sequence => {
            format!("it was assigned again since then (sequence number {sequence}, not {wanted})")
        }
        _ => return Ok(()),
    };
    Err(Error::Stale { ip: release.ip, why })
}

/// The blocks that a handle names.
pub(super) fn named_blocks(handle: &Record<Handle>) -> Result<Vec<IpNet>, Error> {
    let read = |(name, _): (&str, usize)| {
        name.parse().map_err(|_| Error::Malformed {
            key: handle.key.clone(),
            why: format!("{name:?} is not a block"),
        })
    };
    handle.value.blocks().map(read).collect()
}
