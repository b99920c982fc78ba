//! Everything that is in the store, as it was at about one moment.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::allocator::named_by_its_key;
use super::{key, Affinity, AffinityOwner, Allocator, Block, Error, Handle, Problem, Record};

/// All records, and those that make no sense.
#[derive(Clone, Debug, Default)]
pub struct StoreSnapshot {
    pub(super) handles: BTreeMap<String, Handle>,
    pub(super) affinities: Vec<(AffinityOwner, IpNet, Affinity)>,
    pub(super) blocks: BTreeMap<IpNet, Block>,
    pub(super) malformed: Vec<Problem>,
}

impl StoreSnapshot {
    /// The blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// The nodes that have a claim or a block, by name.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let host = |owner: &AffinityOwner| matches!(owner, AffinityOwner::Host(_));
        let claimants = self.affinities.iter().map(|(owner, ..)| owner).filter(|owner| host(owner));
        let owners = self.blocks().filter_map(Block::owner_name);
        claimants.map(AffinityOwner::name).chain(owners).collect()
    }

    fn put_aside<T>(&mut self, record: Result<T, Error>) -> Result<Option<T>, Error> {
        match record {
            Ok(record) => Ok(Some(record)),
            Err(Error::Malformed { key, why }) => {
                self.malformed.push(Problem::Malformed { key, why });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Allocator<'_> {
    /// Reads everything. Handles come first: they are counted up before a block is written, so that this order sees no lie.
    pub fn snapshot(&self) -> Result<StoreSnapshot, Error> {
        let mut snapshot = StoreSnapshot::default();
        for record in Record::<Handle>::list(self.store, key::HANDLES)? {
            if let Some(record) = snapshot.put_aside(record)? {
                let id = key::parse_handle(&record.key).unwrap_or_default().to_owned();
                snapshot.handles.insert(id, record.value);
            }
        }
        for prefix in key::AFFINITIES {
            for record in Record::<Affinity>::list(self.store, prefix)? {
                // Other records of Calico stand in the same place.
                let key = match &record {
                    Ok(record) => &record.key,
                    Err(Error::Malformed { key, .. }) => key,
                    Err(_) => "",
                };
                let Some((owner, cidr)) = key::parse_affinity(key) else { continue };
                if let Some(record) = snapshot.put_aside(record)? {
                    snapshot.affinities.push((owner, cidr, record.value));
                }
            }
        }
        for record in Record::<Block>::list(self.store, key::BLOCKS)? {
            if let Some(record) = snapshot.put_aside(record.and_then(named_by_its_key))? {
                snapshot.blocks.insert(record.value.cidr(), record.value);
            }
        }
        Ok(snapshot)
    }
}
