//! Who gets what several Services claim: a frontend, or a port for health checks.

use std::collections::BTreeMap;

use crate::claims::ClaimKind;
use crate::objects::ObjectName;

/// The place of a claim among all claims of the same thing. The first one gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub kind: ClaimKind,
    pub age: Age,
    pub service: ObjectName,
    /// The number of the claim among those of its Service.
    pub number: usize,
}

/// The age of a Service: the oldest is the first. Files have no time of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age {
    is_unknown: bool,
    created: String,
}

impl Age {
    /// From the time of creation, as the API server writes it.
    pub fn new(created: &str) -> Age {
        Age { is_unknown: created.is_empty(), created: created.to_owned() }
    }
}

/// Claims of many things.
#[derive(Debug)]
pub(crate) struct Owners<K, V> {
    claims: BTreeMap<K, BTreeMap<Rank, V>>,
}

impl<K, V> Default for Owners<K, V> {
    fn default() -> Owners<K, V> {
        Owners { claims: BTreeMap::new() }
    }
}

impl<K: Ord, V> Owners<K, V> {
    pub fn add(&mut self, key: K, rank: Rank, value: V) {
        self.claims.entry(key).or_default().insert(rank, value);
    }

    pub fn remove(&mut self, key: &K, rank: &Rank) {
        let Some(claims) = self.claims.get_mut(key) else { return };
        claims.remove(rank);
        if claims.is_empty() {
            self.claims.remove(key);
        }
    }

    /// The claim of the owner.
    pub fn owner(&self, key: &K) -> Option<(&Rank, &V)> {
        self.claims.get(key).and_then(BTreeMap::first_key_value)
    }

    /// The claims of the others.
    pub fn others(&self, key: &K) -> impl Iterator<Item = &Rank> {
        self.claims.get(key).into_iter().flat_map(BTreeMap::keys).skip(1)
    }
}
