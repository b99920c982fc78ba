//! Telling the store: by compare-and-swap, so that nobody's word is lost.

use podwire_agent_ipc::pods::Endpoint;
use podwire_block_ipam::key::PROFILES;
use podwire_block_ipam::store::{Entry, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::Error as Blocks;
use serde_json::Value;
use tracing::warn;

use super::guests::{set_profiles, Place};
use super::name::Name;
use super::record;

/// How often others may be faster.
pub(super) const TRIES: usize = 10;

/// Tells of a connected pod. The object that is there of the pod's sandbox before, or of another interface of the pod, is gone on with.
pub(crate) fn publish(store: &dyn Store, node: &str, endpoint: &Endpoint) -> Result<(), Blocks> {
    let Some((name, key)) = of(endpoint, node) else { return Ok(()) };
    ensure_profile(store, endpoint, name.is_pod())?;
    let mut was_missing = false;
    for _ in 0..TRIES {
        let (name, there) = find(store, &name, &key)?;
        let key = name.key().unwrap_or_else(|| key.clone());
        let before = there.as_ref().map(decode).transpose()?;
        // In Kubernetes a pod may have its name on another node by now.
        let elsewhere = |object: &Value| {
            object["spec"]["node"].as_str().is_some_and(|there| !there.is_empty() && there != node)
        };
        if before.as_ref().is_some_and(elsewhere) {
            return Ok(());
        }
        let object = record::object(endpoint, &name, before.as_ref(), Timestamp::now());
        let bytes = podwire_block_ipam::encode_as_go(&object)
            .map_err(|error| Blocks::Malformed { key: key.clone(), why: error.to_string() })?;
        let written = match &there {
            Some(there) => store.update(&key, &bytes, there.revision),
            None => store.create(&key, &bytes),
        };
        match written {
            Ok(_) => return Ok(()),
            // In Kubernetes an endpoint is a part of its pod. The pod is gone, and another may have its name.
            Err(StoreError::Missing { .. }) if was_missing || there.is_none() => return Ok(()),
            Err(StoreError::Missing { .. }) => was_missing = true,
            Err(StoreError::Changed { .. } | StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Blocks::Busy { what: format!("telling of {key}") })
}

/// Tells that a pod is gone, unless the object is another sandbox's by now.
pub(crate) fn withdraw(store: &dyn Store, node: &str, gone: &Endpoint) -> Result<(), Blocks> {
    let Some((name, key)) = of(gone, node) else { return Ok(()) };
    for _ in 0..TRIES {
        let (name, there) = find(store, &name, &key)?;
        let Some(there) = there else { return Ok(()) };
        let object = decode(&there)?;
        let differs = |text: &Value, own: &str| {
            let text = text.as_str().unwrap_or_default();
            !text.is_empty() && !own.is_empty() && text != own
        };
        let is_anothers = differs(&object["spec"]["containerID"], &gone.owner.container)
            || differs(&object["metadata"]["uid"], &gone.metadata.uid);
        if is_anothers {
            return Ok(());
        }
        match Place::of(&object, &gone.owner.network) {
            Place::Stranger if !name.is_pod() => return Ok(()),
            Place::Guest { others } if !name.is_pod() => {
                match set_profiles(store, &there, object, &others)? {
                    true => return Ok(()),
                    false => continue,
                }
            }
            _ => {}
        }
        match store.delete(&name.key().unwrap_or_else(|| key.clone()), there.revision) {
            Ok(()) | Err(StoreError::Missing { .. }) => return Ok(()),
            Err(StoreError::Changed { .. } | StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Blocks::Busy { what: format!("withdrawing {key}") })
}

pub(super) fn of(endpoint: &Endpoint, node: &str) -> Option<(Name, String)> {
    let name = Name::of(endpoint, node);
    let key = name.key();
    if key.is_none() {
        warn!(owner = %endpoint.owner, "Calico has no name for this endpoint: nobody is told of it");
    }
    key.map(|key| (name, key))
}

/// The object under its own name, or else the first one of this pod.
fn find(store: &dyn Store, name: &Name, key: &str) -> Result<(Name, Option<Entry>), Blocks> {
    if let Some(entry) = store.get(key)? {
        return Ok((name.clone(), Some(entry)));
    }
    let others = store.list(&name.prefix().unwrap_or_else(|| key.to_owned()))?;
    let mut others = others.into_iter().filter_map(|entry| Some((name.found(&entry.key)?, Some(entry))));
    Ok(others.next().unwrap_or_else(|| (name.clone(), None)))
}

pub(super) fn decode(entry: &Entry) -> Result<Value, Blocks> {
    let wrong = |why: String| Blocks::Malformed { key: entry.key.clone(), why };
    match serde_json::from_slice(&entry.value) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) => Err(wrong("it is no object".into())),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// Without policies a network's pods have a profile with its name, and so have its guests. It is made once, and never changed.
pub(super) fn ensure_profile(store: &dyn Store, endpoint: &Endpoint, is_pod: bool) -> Result<(), Blocks> {
    // Those of a pod with policies are Kubernetes' own.
    let has_policies = endpoint.profiles.first() != Some(&endpoint.owner.network);
    for network in endpoint.profiles.iter().filter(|_| !has_policies) {
        let key = format!("{PROFILES}{network}");
        if store.get(&key)?.is_some() {
            continue;
        }
        let bytes = podwire_block_ipam::encode_as_go(&record::profile(network, is_pod, Timestamp::now()))
            .map_err(|error| Blocks::Malformed { key: key.clone(), why: error.to_string() })?;
        match store.create(&key, &bytes) {
            Ok(_) | Err(StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
