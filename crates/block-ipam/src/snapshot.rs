//! A snapshot of all IPAM records.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::allocator::check_key;
use super::{key, Affinity, AffinityOwner, Allocator, Block, Error, Handle, Problem, Record};

/// All records, and the malformed ones.
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

    /// The names of the nodes that have an affinity or a block.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let host = |owner: &AffinityOwner| matches!(owner, AffinityOwner::Host(_));
        let with_affinity = self.affinities.iter().map(|(owner, ..)| owner).filter(|owner| host(owner));
        let with_block = self.blocks().filter_map(Block::owner_name);
        with_affinity.map(AffinityOwner::name).chain(with_block).collect()
    }

    /// Collects malformed records.
    fn accept<T>(&mut self, record: Result<T, Error>) -> Result<Option<T>, Error> {
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
    /// Reads all records. Handles first: their counts are increased before a block is written, so that no count is seen
    /// too low.
    pub fn snapshot(&self) -> Result<StoreSnapshot, Error> {
        let mut snapshot = StoreSnapshot::default();
        for record in Record::<Handle>::list(self.store, key::HANDLES)? {
            if let Some(record) = snapshot.accept(record)? {
                let id = key::parse_handle(&record.key).unwrap_or_default().to_owned();
                snapshot.handles.insert(id, record.value);
            }
        }
        for prefix in key::AFFINITIES {
            for record in Record::<Affinity>::list(self.store, prefix)? {
                // Calico has other records with the same prefix.
                let key = match &record {
                    Ok(record) => &record.key,
                    Err(Error::Malformed { key, .. }) => key,
                    Err(_) => "",
                };
                let Some((owner, cidr)) = key::parse_affinity(key) else { continue };
                if let Some(record) = snapshot.accept(record)? {
                    snapshot.affinities.push((owner, cidr, record.value));
                }
            }
        }
        for record in Record::<Block>::list(self.store, key::BLOCKS)? {
            if let Some(record) = snapshot.accept(record.and_then(check_key))? {
                snapshot.blocks.insert(record.value.cidr(), record.value);
            }
        }
        Ok(snapshot)
    }
}
