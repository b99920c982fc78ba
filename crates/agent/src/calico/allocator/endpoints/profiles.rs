//! The profiles of an endpoint's object. The first one is the primary network's, the others are those of secondary
//! networks.

use podwire_block_ipam::store::{Entry, Store, StoreError};
use podwire_block_ipam::Error as IpamError;
use serde_json::{json, Value};

/// The role of a network for a container's endpoint.
pub(super) enum Role {
    /// The container has its interface through this network, or that cannot be decided.
    Primary,
    /// The container has its interface through another network, and this one has joined.
    Secondary {
        /// The profiles of the other networks, in their order.
        others: Vec<String>,
    },
    /// The container has its interface through another network.
    None,
}

impl Role {
    pub(super) fn of(object: &Value, network: &str) -> Role {
        let mut profiles = profiles_of(object);
        match profiles.iter().position(|one| one == network) {
            Some(0) => Role::Primary,
            Some(at) => {
                profiles.remove(at);
                Role::Secondary { others: profiles }
            }
            // With policies, profiles do not have the names of networks.
            None if profiles.is_empty() || profiles.iter().any(|one| one.starts_with("kns.")) => {
                Role::Primary
            }
            None => Role::None,
        }
    }
}

/// The profiles of an object.
pub(super) fn profiles_of(object: &Value) -> Vec<String> {
    strings(&object["spec"]["profiles"])
}

/// The strings of a JSON list.
pub(super) fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Replaces the profiles of an object. Returns false if another client was faster.
pub(super) fn set_profiles(
    store: &dyn Store,
    entry: &Entry,
    mut object: Value,
    profiles: &[String],
) -> Result<bool, IpamError> {
    let malformed = |why: String| IpamError::Malformed { key: entry.key.clone(), why };
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    let spec = spec.ok_or_else(|| malformed("spec is not a JSON object".into()))?;
    spec.insert("profiles".into(), json!(profiles));
    let bytes = podwire_block_ipam::encode_as_go(&object).map_err(|error| malformed(error.to_string()))?;
    match store.update(&entry.key, &bytes, entry.revision) {
        Ok(_) => Ok(true),
        Err(StoreError::Changed { .. } | StoreError::Exists { .. } | StoreError::Missing { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
