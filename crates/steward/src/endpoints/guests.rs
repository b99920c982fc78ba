//! One more network of a container on an interface that it has by another one: a guest of that network's endpoint.
//!
//! Calico knows this where there are no pods. The container keeps its addresses, and the guest's profile is added to the endpoint's.

use std::net::IpAddr;

use api::pods::Endpoint;
use ipam::blocks::Error as Blocks;
use ipam::store::{Store, StoreError};
use ipnet::IpNet;
use serde_json::{json, Value};

use super::telling::{decode, ensure_profile, of, TRIES};
use super::{Book, Endpoints};
use crate::Error;

impl Book {
    /// The endpoint that the container of a guest has by another network.
    fn host(&self, guest: &Endpoint) -> Option<&Endpoint> {
        let place = |one: &Endpoint| (one.owner.container.clone(), one.owner.ifname.clone());
        let is_host = |one: &&Endpoint| {
            one.pod.is_empty() && place(one) == place(guest) && one.owner.network != guest.owner.network
        };
        self.known.values().find(is_host).filter(|_| guest.pod.is_empty())
    }
}

impl Endpoints {
    /// Adds the guest's profile to the endpoint of its container, which is told to others again.
    pub(crate) fn join(&self, guest: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let mut book = self.book();
        let Some(mut host) = book.host(guest).cloned() else { return Ok(None) };
        if !host.profiles.contains(&guest.owner.network) {
            host.profiles.push(guest.owner.network.clone());
            self.enter(&mut book, &host)?;
        }
        Ok(Some(host))
    }

    /// Takes the guest's profile away again. Whether it was one.
    pub(super) fn see_off(&self, guest: &Endpoint) -> Result<bool, Error> {
        let mut book = self.book();
        let is_joined = |host: &&Endpoint| host.profiles.contains(&guest.owner.network);
        let Some(mut host) = book.host(guest).filter(is_joined).cloned() else { return Ok(false) };
        host.profiles.retain(|one| *one != guest.owner.network);
        self.enter(&mut book, &host).map(|()| true)
    }

    /// The guests that are of a network.
    pub(crate) fn guests_of(&self, network: &str) -> Vec<Endpoint> {
        let is_host = |one: &&Endpoint| {
            one.pod.is_empty()
                && one.owner.network != network
                && one.profiles.iter().any(|profile| profile == network)
        };
        let guest = |host: &Endpoint| {
            let owner = api::Owner { network: network.to_owned(), ..host.owner.clone() };
            Endpoint { owner, is_guest: true, ..Endpoint::default() }
        };
        self.book().known.values().filter(is_host).map(guest).collect()
    }
}

/// Adds the guest's profile to the endpoint of its container in the store. What that endpoint is, or nothing, if there is none or it is the guest's own.
pub(crate) fn join(store: &dyn Store, node: &str, guest: &Endpoint) -> Result<Option<Endpoint>, Blocks> {
    let network = &guest.owner.network;
    let joining = Endpoint { profiles: vec![network.clone()], ..guest.clone() };
    ensure_profile(store, &joining, false)?;
    let object = change(store, node, guest, |profiles| {
        let is_new = !profiles.contains(network);
        profiles.extend(is_new.then(|| network.clone()));
        is_new
    })?;
    Ok(object.map(|object| read(&object, guest)))
}

/// Takes the guest's profile away again.
pub(super) fn leave(store: &dyn Store, node: &str, guest: &Endpoint) -> Result<(), Blocks> {
    change(store, node, guest, |profiles| {
        let before = profiles.len();
        profiles.retain(|one| *one != guest.owner.network);
        profiles.len() < before
    })
    .map(drop)
}

/// Changes the profiles of the endpoint of the guest's container. The endpoint, if there was something to change.
fn change(
    store: &dyn Store,
    node: &str,
    guest: &Endpoint,
    edit: impl Fn(&mut Vec<String>) -> bool,
) -> Result<Option<Value>, Blocks> {
    let Some((_, key)) = of(guest, node) else { return Ok(None) };
    for _ in 0..TRIES {
        let Some(there) = store.get(&key)? else { return Ok(None) };
        let mut object = decode(&there)?;
        let mut profiles = texts(&object["spec"]["profiles"]);
        if !edit(&mut profiles) {
            return Ok(None);
        }
        object["spec"]["profiles"] = json!(profiles);
        let bytes = ipam::blocks::encode_as_go(&object)
            .map_err(|error| Blocks::Malformed { key: key.clone(), why: error.to_string() })?;
        match store.update(&key, &bytes, there.revision) {
            Ok(_) => return Ok(Some(object)),
            Err(StoreError::Changed { .. } | StoreError::Exists { .. }) => {}
            Err(StoreError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Blocks::Busy { what: format!("changing the profiles of {key}") })
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
