//! Writes endpoints to the store, by compare-and-swap.

use podwire_agent_ipc::pods::Endpoint;
use podwire_block_ipam::key::PROFILES;
use podwire_block_ipam::store::{Entry, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::Error as IpamError;
use serde_json::Value;
use tracing::warn;

use super::name::Name;
use super::profiles::{set_profiles, Role};
use super::record;

/// How often a write is retried when another client was faster.
pub(super) const MAX_TRIES: usize = 10;

/// Publishes the endpoint of an attached pod. An object of the pod's previous sandbox, or of another interface of it,
/// is updated.
pub(in super::super) fn publish(store: &dyn Store, node: &str, endpoint: &Endpoint) -> Result<(), IpamError> {
    if !store.has_endpoint_readers() {
        return Ok(());
    }
    let Some((name, key)) = name_and_key(endpoint, node) else { return Ok(()) };
    ensure_profile(store, endpoint, name.is_pod())?;
    if !endpoint.metadata.uid.is_empty() {
        let object = record::object(endpoint, &name, None, Timestamp::now());
        if store.publish_without_read(&key, &encode(&key, &object)?)? {
            return Ok(());
        }
    }
    let mut was_missing = false;
    for _ in 0..MAX_TRIES {
        let (name, entry) = find(store, &name, &key)?;
        let key = name.key().unwrap_or_else(|| key.clone());
        let before = entry.as_ref().map(decode).transpose()?;
        // In Kubernetes, a pod of this name may run on another node now.
        let is_elsewhere = |object: &Value| {
            object["spec"]["node"].as_str().is_some_and(|other| !other.is_empty() && other != node)
        };
        if before.as_ref().is_some_and(is_elsewhere) {
            return Ok(());
        }
        let object = record::object(endpoint, &name, before.as_ref(), Timestamp::now());
        let bytes = encode(&key, &object)?;
        let written = match &entry {
            Some(entry) => store.update(&key, &bytes, entry.revision),
            None => store.create(&key, &bytes),
        };
        match written {
            Ok(_) => return Ok(()),
            // In Kubernetes, an endpoint is a part of its pod. The pod is gone, and another pod may have its name.
            Err(StoreError::Missing { .. }) if was_missing || entry.is_none() => return Ok(()),
            Err(StoreError::Missing { .. }) => was_missing = true,
            Err(StoreError::Changed { .. } | StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(IpamError::Busy { what: format!("publish {key}") })
}

/// Withdraws the endpoint of a detached pod, unless the object belongs to another sandbox now.
pub(in super::super) fn withdraw(store: &dyn Store, node: &str, gone: &Endpoint) -> Result<(), IpamError> {
    if !store.has_endpoint_readers() {
        return Ok(());
    }
    let Some((name, key)) = name_and_key(gone, node) else { return Ok(()) };
    if !gone.owner.container.is_empty() && store.withdraw_without_read(&key, &gone.owner.container)? {
        return Ok(());
    }
    for _ in 0..MAX_TRIES {
        let (name, entry) = find(store, &name, &key)?;
        let Some(entry) = entry else { return Ok(()) };
        let object = decode(&entry)?;
        let differs = |text: &Value, own: &str| {
            let text = text.as_str().unwrap_or_default();
            !text.is_empty() && !own.is_empty() && text != own
        };
        let is_anothers = differs(&object["spec"]["containerID"], &gone.owner.container)
            || differs(&object["metadata"]["uid"], &gone.metadata.uid);
        if is_anothers {
            return Ok(());
        }
        match Role::of(&object, &gone.owner.network) {
            Role::None if !name.is_pod() => return Ok(()),
            Role::Secondary { others } if !name.is_pod() => {
                if set_profiles(store, &entry, object, &others)? {
                    return Ok(());
                }
                continue;
            }
            _ => {}
        }
        match store.delete(&name.key().unwrap_or_else(|| key.clone()), entry.revision) {
            Ok(()) | Err(StoreError::Missing { .. }) => return Ok(()),
            Err(StoreError::Changed { .. } | StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(IpamError::Busy { what: format!("withdraw {key}") })
}

/// The name and key of an endpoint's object; none if Calico has no name for it.
pub(super) fn name_and_key(endpoint: &Endpoint, node: &str) -> Option<(Name, String)> {
    let name = Name::of(endpoint, node);
    let key = name.key();
    if key.is_none() {
        warn!(owner = %endpoint.owner, "endpoint is not published: Calico has no name for it");
    }
    key.map(|key| (name, key))
}

/// The object with this key, or the first other object of the pod.
fn find(store: &dyn Store, name: &Name, key: &str) -> Result<(Name, Option<Entry>), IpamError> {
    if let Some(entry) = store.get(key)? {
        return Ok((name.clone(), Some(entry)));
    }
    let others = store.list(&name.prefix().unwrap_or_else(|| key.to_owned()))?;
    let mut others = others.into_iter().filter_map(|entry| Some((name.found(&entry.key)?, Some(entry))));
    Ok(others.next().unwrap_or_else(|| (name.clone(), None)))
}

pub(super) fn decode(entry: &Entry) -> Result<Value, IpamError> {
    let malformed = |why: String| IpamError::Malformed { key: entry.key.clone(), why };
    match serde_json::from_slice(&entry.value) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) => Err(malformed("it is not a JSON object".into())),
        Err(error) => Err(malformed(error.to_string())),
    }
}

fn encode(key: &str, object: &Value) -> Result<Vec<u8>, IpamError> {
    podwire_block_ipam::encode_as_go(object)
        .map_err(|error| IpamError::Malformed { key: key.into(), why: error.to_string() })
}

/// Creates the profile of a network without policies, which has the network's name, and those of its secondary
/// networks. An existing profile is not changed.
pub(super) fn ensure_profile(store: &dyn Store, endpoint: &Endpoint, is_pod: bool) -> Result<(), IpamError> {
    // The profiles of a pod with policies are Kubernetes' own.
    let has_policies = endpoint.profiles.first() != Some(&endpoint.owner.network);
    for network in endpoint.profiles.iter().filter(|_| !has_policies) {
        let key = format!("{PROFILES}{network}");
        if store.get(&key)?.is_some() {
            continue;
        }
        let bytes = encode(&key, &record::profile(network, is_pod, Timestamp::now()))?;
        match store.create(&key, &bytes) {
            Ok(_) | Err(StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
