//! One more network of a container on an interface that it has by another one: a guest of that network's endpoint.
//!
//! Calico knows this where there are no pods. The container keeps its addresses, and the guest's profile stands behind the one of the network that the
//! container has its interface by.

use std::net::IpAddr;
use std::path::Path;

use api::pods::{self, Endpoint};
use api::{notes, Owner};
use ipam::blocks::Error as Blocks;
use ipam::store::{Entry, Store, StoreError};
use ipnet::IpNet;
use serde_json::{json, Value};

use super::telling::{decode, ensure_profile, of, TRIES};
use super::{Book, Endpoints};
use crate::Error;

impl Book {
    /// The endpoint that the container of a guest has by another network.
    fn host(&self, guest: &Endpoint) -> Option<&Endpoint> {
        if !guest.pod.is_empty() || self.known.contains_key(&guest.owner) {
            return None;
        }
        let place =
            |owner: &Owner| owner.container == guest.owner.container && owner.ifname == guest.owner.ifname;
        self.known.values().find(|one| one.pod.is_empty() && place(&one.owner))
    }
}

impl Endpoints {
    /// Adds the guest's profile to the endpoint of its container, which is told to others again. That it was gone once counts no longer.
    pub(crate) fn join(&self, guest: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let mut book = self.book();
        let Some(mut host) = book.host(guest).cloned() else { return Ok(None) };
        let note = notes::released(&pods::endpoints(&self.state)).join(notes::file_name(&guest.owner));
        let _ = std::fs::remove_file(note);
        if !host.profiles.contains(&guest.owner.network) {
            host.profiles.push(guest.owner.network.clone());
            self.enter(&mut book, &host)?;
        }
        Ok(Some(host))
    }

    /// Takes the guest's profile away again. Whether it was one, or would have been: another network has the interface.
    pub(super) fn see_off(&self, guest: &Endpoint) -> Result<bool, Error> {
        let mut book = self.book();
        let Some(mut host) = book.host(guest).cloned() else { return Ok(false) };
        if host.profiles.contains(&guest.owner.network) {
            host.profiles.retain(|one| *one != guest.owner.network);
            self.enter(&mut book, &host)?;
        }
        Ok(true)
    }

    /// The same for a guest that has left while nobody listened, unless it has joined again since: then its note is gone.
    pub(super) fn see_off_noted(&self, guest: &Endpoint, note: &Path) -> Result<bool, Error> {
        if !note.exists() {
            return Ok(true);
        }
        let was_guest = self.see_off(guest)?;
        if was_guest {
            let _ = std::fs::remove_file(note);
        }
        Ok(was_guest)
    }

    /// The guests that are of a network.
    pub(crate) fn guests_of(&self, network: &str) -> Vec<Endpoint> {
        let is_host = |one: &&Endpoint| {
            one.pod.is_empty()
                && one.owner.network != network
                && one.profiles.iter().any(|profile| profile == network)
        };
        let guest = |host: &Endpoint| {
            let owner = Owner { network: network.to_owned(), ..host.owner.clone() };
            Endpoint { owner, ..Endpoint::default() }
        };
        self.book().known.values().filter(is_host).map(guest).collect()
    }
}

/// Adds the guest's profile to the endpoint of its container in the store. What that endpoint is, or nothing, if there is none or it is the guest's own.
pub(crate) fn join(store: &dyn Store, node: &str, guest: &Endpoint) -> Result<Option<Endpoint>, Blocks> {
    let network = &guest.owner.network;
    let Some((_, key)) = of(guest, node) else { return Ok(None) };
    for _ in 0..TRIES {
        let Some(there) = store.get(&key)? else { return Ok(None) };
        let object = decode(&there)?;
        let mut profiles = texts(&object["spec"]["profiles"]);
        match profiles.iter().position(|one| one == network) {
            Some(0) => return Ok(None),
            Some(_) => return Ok(Some(read(&object, guest))),
            None => profiles.push(network.clone()),
        }
        ensure_profile(store, &Endpoint { profiles: vec![network.clone()], ..guest.clone() }, false)?;
        if set_profiles(store, &there, object.clone(), &profiles)? {
            return Ok(Some(Endpoint { profiles, ..read(&object, guest) }));
        }
    }
    Err(Blocks::Busy { what: format!("joining {key}") })
}

/// The profiles of a container's endpoint without that of a network which is only a guest there.
pub(super) fn without_guest(object: &Value, network: &str) -> Option<Vec<String>> {
    let mut profiles = texts(&object["spec"]["profiles"]);
    let place = profiles.iter().position(|one| one == network).filter(|place| *place > 0)?;
    profiles.remove(place);
    Some(profiles)
}

/// Writes other profiles into an endpoint, unless somebody else was faster: whether it was done.
pub(super) fn set_profiles(
    store: &dyn Store,
    there: &Entry,
    mut object: Value,
    profiles: &[String],
) -> Result<bool, Blocks> {
    let wrong = |why: String| Blocks::Malformed { key: there.key.clone(), why };
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    spec.ok_or_else(|| wrong("spec is no object".into()))?.insert("profiles".into(), json!(profiles));
    let bytes = ipam::blocks::encode_as_go(&object).map_err(|error| wrong(error.to_string()))?;
    match store.update(&there.key, &bytes, there.revision) {
        Ok(_) => Ok(true),
        Err(StoreError::Changed { .. } | StoreError::Exists { .. } | StoreError::Missing { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read(object: &Value, guest: &Endpoint) -> Endpoint {
    let spec = &object["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let address = |text: &String| -> Option<IpAddr> {
        text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse()).ok()
    };
    Endpoint {
        profiles: texts(&spec["profiles"]),
        addresses: texts(&spec["ipNetworks"]).iter().filter_map(address).collect(),
        interface: text("interfaceName"),
        mac: text("mac"),
        ..guest.clone()
    }
}
