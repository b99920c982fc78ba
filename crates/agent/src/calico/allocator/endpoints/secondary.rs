//! One more network of a container on an interface that it has by another one: a guest of that network's endpoint.
//!
//! Calico knows this where there are no pods. The container keeps its addresses, and the guest's profile stands behind the one of the network that the
//! container has its interface by.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_agent_ipc::pods::{self, Endpoint};
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::{Entry, Store, StoreError};
use podwire_block_ipam::Error as Blocks;
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
        self.known.values().find(|one| is_host(one, guest))
    }
}

/// Whether a container, which is no pod, has by one network the interface that it is to have by another, too.
fn is_host(one: &Endpoint, guest: &Endpoint) -> bool {
    let (own, other) = (&one.owner, &guest.owner);
    one.pod.is_empty()
        && guest.pod.is_empty()
        && (&own.container, &own.ifname) == (&other.container, &other.ifname)
        && own.network != other.network
}

/// Where an endpoint of this node is noted, and where it is noted that it is gone.
fn noted(state: &Path, owner: &Owner) -> PathBuf {
    pending::leases_dir(&pods::endpoints_dir(state)).join(pending::file_name(owner))
}

fn noted_gone(state: &Path, owner: &Owner) -> PathBuf {
    pending::released_dir(&pods::endpoints_dir(state)).join(pending::file_name(owner))
}

impl Endpoints {
    /// The endpoint that the container of a guest has by another network. One that a plugin has moved, since it found nobody at the door, is none any more.
    fn host(&self, book: &mut Book, guest: &Endpoint) -> Option<Endpoint> {
        let host = book.host(guest).cloned()?;
        if noted(&self.state, &host.owner).exists() {
            return Some(host);
        }
        book.known.remove(&host.owner);
        book.untold.remove(&host.owner);
        None
    }

    /// Adds the guest's profile to the endpoint of its container, which is told to others again. That it was gone once counts no longer.
    pub(crate) fn join(&self, guest: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let mut book = self.book();
        let Some(mut host) = self.host(&mut book, guest) else { return Ok(None) };
        let _ = fs::remove_file(noted_gone(&self.state, &guest.owner));
        if !host.profiles.contains(&guest.owner.network) {
            host.profiles.push(guest.owner.network.clone());
            self.enter(&mut book, &host)?;
        }
        Ok(Some(host))
    }

    /// Takes the guest's profile away again. Whether it was one, or would have been: another network has the interface.
    pub(super) fn see_off(&self, guest: &Endpoint) -> Result<bool, Error> {
        self.see_off_in(&mut self.book(), guest)
    }

    fn see_off_in(&self, book: &mut Book, guest: &Endpoint) -> Result<bool, Error> {
        let Some(mut host) = self.host(book, guest) else { return Ok(false) };
        if host.profiles.contains(&guest.owner.network) {
            host.profiles.retain(|one| *one != guest.owner.network);
            self.enter(book, &host)?;
        }
        Ok(true)
    }

    /// The same for a guest that has left while nobody listened, unless it has joined again since: then its note is gone.
    pub(super) fn see_off_noted(&self, guest: &Endpoint, note: &Path) -> Result<bool, Error> {
        let mut book = self.book();
        if !note.exists() {
            return Ok(true);
        }
        let was_guest = self.see_off_in(&mut book, guest)?;
        if was_guest {
            let _ = fs::remove_file(note);
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

/// Changes the profiles in what an agent, who is away now, has noted of the endpoint of the guest's container: he would tell them again.
pub(crate) fn revise_note(state: &Path, guest: &Endpoint, joins: bool) -> std::io::Result<()> {
    let folder = pending::leases_dir(&pods::endpoints_dir(state));
    let all = pending::read_all::<Endpoint>(&folder).into_iter().filter_map(|(_, read)| read.ok());
    for mut host in all.filter(|one| is_host(one, guest)) {
        host.profiles.retain(|one| *one != guest.owner.network);
        host.profiles.extend(joins.then(|| guest.owner.network.clone()));
        pending::write(&folder, &pending::file_name(&host.owner), &host)?;
    }
    Ok(())
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

/// What a network is to a container's endpoint.
pub(super) enum Place {
    /// The container has its interface by this network, or nobody can tell.
    Host,
    /// It has it by another, and this one has joined: the profiles of the others.
    Guest {
        /// In their order.
        others: Vec<String>,
    },
    /// It has it by another.
    Stranger,
}

impl Place {
    pub(super) fn of(object: &Value, network: &str) -> Place {
        let mut profiles = texts(&object["spec"]["profiles"]);
        match profiles.iter().position(|one| one == network) {
            Some(0) => Place::Host,
            Some(place) => {
                profiles.remove(place);
                Place::Guest { others: profiles }
            }
            // With policies, profiles are not called after networks.
            None if profiles.is_empty() || profiles.iter().any(|one| one.starts_with("kns.")) => Place::Host,
            None => Place::Stranger,
        }
    }
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
    let bytes = podwire_block_ipam::encode_as_go(&object).map_err(|error| wrong(error.to_string()))?;
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
