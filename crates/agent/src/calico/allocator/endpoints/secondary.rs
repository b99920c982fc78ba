//! A secondary network of a container: it uses the interface that the container has through its primary network, and
//! shares that network's endpoint.
//!
//! Calico supports this for runtimes without pods. The container keeps its addresses, and the secondary network's
//! profile follows the primary network's in the endpoint.

use std::fs;
use std::path::Path;

use podwire_agent_ipc::pods::{endpoints_dir, Endpoint};
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::Error as IpamError;

use super::profiles::{profiles_of, set_profiles};
use super::publish::{decode, ensure_profile, name_and_key, MAX_TRIES};
use super::record;
use super::{Endpoints, Inner};
use crate::calico::allocator::Error;

/// Whether `one` is the primary endpoint of the container of `secondary`, which is not a pod.
fn is_primary(one: &Endpoint, secondary: &Endpoint) -> bool {
    let (own, other) = (&one.owner, &secondary.owner);
    one.pod.is_empty()
        && secondary.pod.is_empty()
        && (&own.container, &own.ifname) == (&other.container, &other.ifname)
        && own.network != other.network
}

impl Endpoints {
    /// The primary endpoint of a secondary network. One whose file a plugin has moved, because it found no agent, is
    /// gone.
    fn primary(&self, inner: &mut Inner, secondary: &Endpoint) -> Option<Endpoint> {
        if !secondary.pod.is_empty() || inner.published.contains_key(&secondary.owner) {
            return None;
        }
        let primary = inner.published.values().find(|one| is_primary(one, secondary)).cloned()?;
        if self.file(&primary.owner).exists() {
            return Some(primary);
        }
        inner.forget(&primary.owner);
        None
    }

    /// Adds the profile of a secondary network to the primary endpoint. A pending withdrawal of the secondary network
    /// is dropped.
    pub(in super::super) fn join(&self, secondary: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let mut inner = self.lock();
        let Some(mut primary) = self.primary(&mut inner, secondary) else { return Ok(None) };
        let withdrawals = pending::released_dir(&endpoints_dir(&self.state_dir));
        let _ = fs::remove_file(withdrawals.join(pending::file_name(&secondary.owner)));
        if !primary.profiles.contains(&secondary.owner.network) {
            primary.profiles.push(secondary.owner.network.clone());
            self.write(&mut inner, &primary)?;
        }
        Ok(Some(primary))
    }

    /// Removes the profile of a secondary network. Returns whether the interface belongs to another network.
    pub(super) fn leave(&self, secondary: &Endpoint) -> Result<bool, Error> {
        self.leave_locked(&mut self.lock(), secondary)
    }

    fn leave_locked(&self, inner: &mut Inner, secondary: &Endpoint) -> Result<bool, Error> {
        let Some(mut primary) = self.primary(inner, secondary) else { return Ok(false) };
        if primary.profiles.contains(&secondary.owner.network) {
            primary.profiles.retain(|one| *one != secondary.owner.network);
            self.write(inner, &primary)?;
        }
        Ok(true)
    }

    /// The same for a withdrawal that a plugin recorded while no agent ran. If the network has joined again since, the
    /// record is gone.
    pub(super) fn leave_recorded(&self, secondary: &Endpoint, record: &Path) -> Result<bool, Error> {
        let mut inner = self.lock();
        if !record.exists() {
            return Ok(true);
        }
        let is_secondary = self.leave_locked(&mut inner, secondary)?;
        if is_secondary {
            let _ = fs::remove_file(record);
        }
        Ok(is_secondary)
    }

    /// The containers that have this network as a secondary one.
    pub(in super::super) fn secondaries_of(&self, network: &str) -> Vec<Endpoint> {
        let has_it = |one: &&Endpoint| {
            one.pod.is_empty()
                && one.owner.network != network
                && one.profiles.iter().any(|profile| profile == network)
        };
        let secondary = |primary: &Endpoint| {
            let owner = Owner { network: network.to_owned(), ..primary.owner.clone() };
            Endpoint { owner, ..Endpoint::default() }
        };
        self.lock().published.values().filter(has_it).map(secondary).collect()
    }
}

/// Adds or removes a secondary network's profile in the file of the primary endpoint, for an agent that is down: it
/// would publish the old profiles again.
pub(in super::super) fn set_recorded_profile(
    state_dir: &Path,
    secondary: &Endpoint,
    is_joined: bool,
) -> std::io::Result<()> {
    let dir = pending::leases_dir(&endpoints_dir(state_dir));
    let all = pending::read_all::<Endpoint>(&dir).into_iter().filter_map(|(_, read)| read.ok());
    for mut primary in all.filter(|one| is_primary(one, secondary)) {
        primary.profiles.retain(|one| *one != secondary.owner.network);
        primary.profiles.extend(is_joined.then(|| secondary.owner.network.clone()));
        pending::write(&dir, &pending::file_name(&primary.owner), &primary)?;
    }
    Ok(())
}

/// Adds the profile of a secondary network to the primary endpoint in the store. Returns that endpoint; none if there
/// is none, or if the network is the primary one.
pub(in super::super) fn join(
    store: &dyn Store,
    node: &str,
    secondary: &Endpoint,
) -> Result<Option<Endpoint>, IpamError> {
    let network = &secondary.owner.network;
    let Some((_, key)) = name_and_key(secondary, node) else { return Ok(None) };
    for _ in 0..MAX_TRIES {
        let Some(entry) = store.get(&key)? else { return Ok(None) };
        let object = decode(&entry)?;
        let mut profiles = profiles_of(&object);
        match profiles.iter().position(|one| one == network) {
            Some(0) => return Ok(None),
            Some(_) => return Ok(Some(record::read(&object, secondary))),
            None => profiles.push(network.clone()),
        }
        ensure_profile(store, &Endpoint { profiles: vec![network.clone()], ..secondary.clone() }, false)?;
        if set_profiles(store, &entry, object.clone(), &profiles)? {
            return Ok(Some(Endpoint { profiles, ..record::read(&object, secondary) }));
        }
    }
    Err(IpamError::Busy { what: format!("add a profile to {key}") })
}
