//! The logic: claiming blocks, giving addresses, taking them back, over any store.
//!
//! Any number of nodes do this at once, and each may die between two writes. Three records are involved, and no write touches two
//! of them. What holds all the same, at every moment:
//!
//! 1. A **confirmed affinity** has its block, and the block names the same owner. So at most one node announces a route.
//! 2. A **block** gives an address to one handle at a time.
//! 3. A **handle** counts every address that a block gives to it. (It may count more.)
//!
//! `tests/model.rs` of this crate looks at every interleaving of some nodes, and finds these true in each.

mod adopt;
mod assign;
mod claim;
mod collect;
mod counting;
mod release;
mod search;
mod sweep;
mod transfer;

use ipnet::IpNet;

pub use adopt::AdoptOutcome;
pub use collect::CollectReport;
pub use release::Release;
pub use sweep::SweepReport;
pub use transfer::{Transfer, TransferOutcome};

use super::{key, Affinity, AffinityOwner, Block, Config, Error, Handle, Pool, Record};
use crate::store::Store;
use crate::timestamp::Timestamp;

/// How often something is tried again because somebody else was faster.
const MAX_RETRIES: usize = 100;

/// How old a claim must be before another node may take an empty block away, in seconds.
const RECLAIM_AGE: u64 = 60;

/// Gives addresses to pods and takes them back.
pub struct Allocator<'a> {
    pub(crate) store: &'a dyn Store,
    clock: Box<dyn Fn() -> Timestamp + 'a>,
    reclaim_age: u64,
}

impl<'a> Allocator<'a> {
    /// Over a store, by a clock.
    pub fn new(store: &'a dyn Store, clock: impl Fn() -> Timestamp + 'a) -> Allocator<'a> {
        Allocator { store, clock: Box::new(clock), reclaim_age: RECLAIM_AGE }
    }

    /// Lets a node take an empty block away when its claim is that many seconds old.
    pub fn with_reclaim_age(self, seconds: u64) -> Allocator<'a> {
        Allocator { reclaim_age: seconds, ..self }
    }

    /// All blocks: those that can be read, and what is wrong with the others.
    pub fn blocks(&self) -> Result<Vec<Result<Block, Error>>, Error> {
        let all = Record::<Block>::list(self.store, key::BLOCKS)?.into_iter();
        Ok(all.map(|record| Ok(record.and_then(named_by_its_key)?.value)).collect())
    }

    /// Makes a pool.
    pub fn add_pool(&self, pool: &Pool) -> Result<(), Error> {
        Record::create(self.store, pool.key(), pool.clone()).map(drop)
    }

    /// All handles by their ids.
    pub fn handles(&self) -> Result<Vec<(String, Handle)>, Error> {
        let all = Record::<Handle>::list(self.store, key::HANDLES)?.into_iter();
        all.map(|record| {
            record.map(|record| (key::parse_handle(&record.key).unwrap_or_default().into(), record.value))
        })
        .collect()
    }

    /// All claims, or those of one owner.
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
                // Other records of Calico stand in the same place.
                if let Some((owner, cidr)) = key::parse_affinity(&name) {
                    all.push((owner, cidr, record?.value));
                }
            }
        }
        Ok(all)
    }

    /// Changes the settings of the cluster.
    pub fn configure(&self, change: impl Fn(&mut Config)) -> Result<Config, Error> {
        self.retry("the settings", || {
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
        Record::find(self.store, &key::block(cidr))?.map(named_by_its_key).transpose()
    }

    fn affinity(&self, owner: &AffinityOwner, cidr: IpNet) -> Result<Option<Record<Affinity>>, Error> {
        Record::find(self.store, &key::affinity(owner, cidr))
    }

    /// Writes a block back, with another number. One that is empty and nobody's goes.
    fn save_block(&self, block: &mut Record<Block>) -> Result<(), Error> {
        if block.value.owner().is_none() && block.value.is_empty() {
            return Ok(self.store.delete(&block.key, block.revision)?);
        }
        block.value.count_write();
        block.save(self.store)
    }

    /// Tries until `attempt` has an answer: `None`, and a write that came too late, mean that the world has changed.
    pub(crate) fn retry<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        for _ in 0..MAX_RETRIES {
            match attempt() {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy { what: what.into() })
    }
}

/// A block must be what its key says: a copy under another key would give addresses twice.
pub(super) fn named_by_its_key(record: Record<Block>) -> Result<Record<Block>, Error> {
    match key::parse_block(&record.key) == Some(record.value.cidr()) {
        true => Ok(record),
        false => Err(Error::Malformed { why: format!("it holds {}", record.value.cidr()), key: record.key }),
    }
}
