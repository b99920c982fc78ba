//! Typed records in a store.

use crate::store::{Entry, Revision, Store};

use super::Error;

/// A typed value with its key and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<T> {
    pub key: String,
    pub value: T,
    pub revision: Revision,
}

/// A type that is stored.
pub(super) trait Value: Sized {
    fn decode(bytes: &[u8]) -> Result<Self, String>;
    fn encode(&self) -> Result<Vec<u8>, String>;

    /// Whether it is marked as deleted. A store that cannot compare and delete in one step (the Kubernetes API) sets
    /// the mark by compare-and-swap first. The mark counts as the deletion, and the removal follows.
    fn is_deleted(&self) -> bool;
}

impl<T: Value> Record<T> {
    fn decode(entry: Entry) -> Result<Record<T>, Error> {
        let Entry { key, value, revision } = entry;
        match T::decode(&value) {
            Ok(value) => Ok(Record { key, value, revision }),
            Err(why) => Err(Error::Malformed { key, why }),
        }
    }

    /// Reads a record. One that is marked as deleted is removed, and counts as missing.
    pub(super) fn find(store: &dyn Store, key: &str) -> Result<Option<Record<T>>, Error> {
        let Some(entry) = store.get(key)? else {
            return Ok(None);
        };
        let record = Record::<T>::decode(entry)?;
        if record.value.is_deleted() {
            match store.delete(key, record.revision) {
                Err(error) if !error.is_conflict() => return Err(error.into()),
                _ => return Ok(None),
            }
        }
        Ok(Some(record))
    }

    /// All records whose keys begin with `prefix`, with an error for each malformed one.
    pub(super) fn list(store: &dyn Store, prefix: &str) -> Result<Vec<Result<Record<T>, Error>>, Error> {
        let records = store.list(prefix)?.into_iter().map(Record::<T>::decode);
        Ok(records.filter(|record| !matches!(record, Ok(record) if record.value.is_deleted())).collect())
    }

    /// Creates a record.
    pub(super) fn create(store: &dyn Store, key: String, value: T) -> Result<Record<T>, Error> {
        let bytes = value.encode().map_err(|why| Error::Malformed { key: key.clone(), why })?;
        let revision = store.create(&key, &bytes)?;
        Ok(Record { key, value, revision })
    }

    /// Writes the value, if the record has not changed since it was read.
    pub(super) fn save(&mut self, store: &dyn Store) -> Result<(), Error> {
        let bytes = self.value.encode().map_err(|why| Error::Malformed { key: self.key.clone(), why })?;
        self.revision = store.update(&self.key, &bytes, self.revision)?;
        Ok(())
    }

    /// Deletes the record, if it has not changed since it was read. That it does not exist is fine.
    pub(super) fn delete(&self, store: &dyn Store) -> Result<(), Error> {
        match store.delete(&self.key, self.revision) {
            Err(crate::store::StoreError::Missing { .. }) => Ok(()),
            done => Ok(done?),
        }
    }
}
