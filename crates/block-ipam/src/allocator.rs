//! The allocator: claims blocks, assigns addresses and releases them, over any store.
//!
//! Any number of nodes do this concurrently, and each may die between two writes. Three kinds of records are involved,
//! and no write covers two of them. Nevertheless these invariants hold at every moment:
//!
//! 1. The block of a **confirmed affinity** exists and names the same owner. So at most one node announces a route.
//! 2. A **block** assigns an address to one handle at a time.
//! 3. A **handle** counts every address that a block assigns to it. (It may count more.)
//!
//! `tests/model` of this crate checks them in every interleaving of several nodes.

mod adopt;
mod assign;
mod claim;
mod collect;
mod counting;
mod release;
mod search;
mod shortage;
mod sweep;
mod transfer;

use ipnet::IpNet;

pub use adopt::AdoptOutcome;
pub use collect::CollectReport;
pub use release::Release;
pub use sweep::SweepReport;
pub use transfer::{Refill, Transfer, TransferOutcome};

use super::{key, Affinity, AffinityOwner, Block, Config, Error, Handle, Pool, Record};
use crate::store::Store;
use crate::timestamp::Timestamp;

/// How often an operation is retried after a conflict.
const MAX_RETRIES: usize = 100;

/// How old an affinity must be before another node may reclaim its empty block, in seconds.
const RECLAIM_AGE: u64 = 60;

/// Assigns and releases addresses.
pub struct Allocator<'a> {
    pub(crate) store: &'a dyn Store,
    clock: Box<dyn Fn() -> Timestamp + 'a>,
    reclaim_age: u64,
}

impl<'a> Allocator<'a> {
    /// An allocator over a store, with a clock.
    pub fn new(store: &'a dyn Store, clock: impl Fn() -> Timestamp + 'a) -> Allocator<'a> {
        Allocator { store, clock: Box::new(clock), reclaim_age: RECLAIM_AGE }
    }

    /// Sets the age of an affinity in seconds after which its empty block may be reclaimed.
    pub fn with_reclaim_age(self, seconds: u64) -> Allocator<'a> {
        Allocator { reclaim_age: seconds, ..self }
    }

    /// All blocks, with an error for each malformed one.
    pub fn blocks(&self) -> Result<Vec<Result<Block, Error>>, Error> {
        let all = Record::<Block>::list(self.store, key::BLOCKS)?.into_iter();
        Ok(all.map(|record| Ok(record.and_then(check_key)?.value)).collect())
    }

    /// Creates a pool.
    pub fn add_pool(&self, pool: &Pool) -> Result<(), Error> {
        Record::create(self.store, pool.key(), pool.clone()).map(drop)
    }

    /// All handles with their ids.
    pub fn handles(&self) -> Result<Vec<(String, Handle)>, Error> {
        let all = Record::<Handle>::list(self.store, key::HANDLES)?.into_iter();
        all.map(|record| {
            record.map(|record| (key::parse_handle(&record.key).unwrap_or_default().into(), record.value))
        })
        .collect()
    }

    /// All affinities, or those of one owner.
    pub fn affinities(
        &self,
        owner: Option<&AffinityOwner>,
    ) -> Result<Vec<(AffinityOwner, IpNet, Affinity)>, Error> {
        let prefixes = match owner {
            Some(owner) => vec![key::affinities(owner)],
            None => key::AFFINITIES.map(String::from).to_vec(),
        };
        let mut all = Vec::new();
        for prefix in prefixes {
            for record in Record::<Affinity>::list(self.store, &prefix)? {
                let name = match &record {
                    Ok(record) => record.key.clone(),
                    Err(Error::Malformed { key, .. }) => key.clone(),
                    Err(_) => String::new(),
                };
                // Calico has other records with the same prefix.
                if let Some((owner, cidr)) = key::parse_affinity(&name) {
                    all.push((owner, cidr, record?.value));
                }
            }
        }
        Ok(all)
    }

    /// Changes the IPAM configuration.
    pub fn configure(&self, change: impl Fn(&mut Config)) -> Result<Config, Error> {
        self.retry("changing the configuration", || {
            let found = Record::<Config>::find(self.store, key::CONFIG)?;
            let mut config = found.as_ref().map(|record| record.value.clone()).unwrap_or_default();
            change(&mut config);
            config.validate()?;
            match found {
                None => drop(Record::create(self.store, key::CONFIG.into(), config.clone())?),
                Some(record) => Record { value: config.clone(), ..record }.save(self.store)?,
            }
            Ok(Some(config))
        })
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn block(&self, cidr: IpNet) -> Result<Option<Record<Block>>, Error> {
        Record::find(self.store, &key::block(cidr))?.map(check_key).transpose()
    }

    fn affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<Option<Record<Affinity>>, Error> {
        Record::find(self.store, &key::affinity(owner, cidr))
    }

    /// Writes a block with a new sequence number. An empty block without an owner is deleted.
    fn save_block(&self, block: &mut Record<Block>) -> Result<(), Error> {
        if block.value.owner().is_none() && block.value.is_empty() {
            return Ok(self.store.delete(&block.key, block.revision)?);
        }
        block.value.increment_sequence();
        block.save(self.store)
    }

    /// Retries `attempt` until it returns a result. `None` and a conflict mean that the records have changed.
    pub(crate) fn retry<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        for _ in 0..MAX_RETRIES {
            match attempt() {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy { what: what.into() })
    }
}

/// Checks that a block's CIDR matches its key: a copy under another key would assign addresses twice.
pub(super) fn check_key(record: Record<Block>) -> Result<Record<Block>, Error> {
    if key::parse_block(&record.key) != Some(record.value.cidr()) {
        return Err(Error::Malformed {
            why: format!("its CIDR is {}", record.value.cidr()),
            key: record.key,
        });
    }
    Ok(record)
}
