//! host-local: addresses from ranges on this node, with a record on disk for each.
//!
//! No daemon and no datastore: a folder for each network, `/var/lib/cni/networks/<network>`, has a file for each
//! address that is taken. Making a file that must not be there yet is the allocation, and a lock on the folder
//! keeps plugins from stepping on each other. The layout is that of the reference plugin, so that both can serve
//! one node at the same time. What ours adds: it finds an owner's addresses without reading every file, frees
//! what crashes left behind and what was given before the node's boot, needs no valid ranges to let go of an address,
//! may keep addresses back or give a pod the one that it had, and knows GC and STATUS.

mod boot;
mod claim;
mod config;
mod entry;
mod history;
mod index;
mod resolv;
mod store;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use podwire_cni_plugin::{Finding, Plugin, Request, Result};
use podwire_cni_spec::{code, Attachment, Error, Ip};
use podwire_ipam::{Candidate, RangeSet};

use claim::{exhausted, Claimant, Memory};
use config::Config;
use entry::{Entry, Holder, Owner};
use store::Store;

pub use config::DATA_DIR as DATA_FOLDER;
pub use survey::{give_back, reservations, Reservation};

/// What is not in the config and not in the folder. Tests have their own.
#[derive(Clone, Debug)]
struct Surroundings {
    /// Where indexes are. They need not outlive the node's boot: they are made anew from the folders.
    index_root: PathBuf,
    /// Where the kernel tells which boot this is.
    proc: PathBuf,
    /// Seconds since 1970.
    now: u64,
}

impl Surroundings {
    fn of_this_node() -> Surroundings {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Surroundings { index_root: "/run/podwire/host-local".into(), proc: "/proc".into(), now }
    }
}

/// The plugin.
#[derive(Debug)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn about(&self) -> &'static str {
        "host-local: hands out addresses from ranges on this node"
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        add(req, &Surroundings::of_this_node())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        del(req, &Surroundings::of_this_node())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        inspect(req, &Surroundings::of_this_node())
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        gc(req, &Surroundings::of_this_node())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        status(req, &Surroundings::of_this_node())
    }
}

/// One address from each set, or none at all.
fn add(req: &Request<'_>, place: &Surroundings) -> Result<Attachment> {
    let config = Config::read(req)?;
    let dns = config.dns()?;
    let owner = Owner::new(&req.container, &req.ifname);
    let mut store = Store::create(&config.folder, place)?;
    let held: Vec<IpAddr> = store.held(&owner)?.into_iter().map(|entry| entry.ip).collect();
    let memory = Memory::read(&config, place.now)?;
    let claimant = Claimant { store: &store, owner: &owner, memory: memory.as_ref() };

    let mut claimed = Vec::with_capacity(config.sets.len());
    let mut ips = Vec::with_capacity(config.sets.len());
    for (i, set) in config.sets.iter().enumerate() {
        let last = store.last(i);
        let given = duplicate(set, &held, &owner).and_then(|()| match config.requested[i] {
            Some(ip) => claimant.requested(set, ip),
            None => claimant.next(set, last.ip),
        });
        let recorded = given.and_then(|given| {
            claimed.push(given.ip);
            last.set(given.ip)?;
            Ok(given)
        });
        match recorded {
            Ok(Candidate { ip, range }) => {
                ips.push(Ip { gateway: range.gateway(), ..Ip::new(range.assign(ip)) });
            }
            Err(error) => {
                let error = in_set(i, error);
                withdraw(&store, &claimed, &error);
                return Err(error.into());
            }
        }
    }
    if let Some(error) = memory.and_then(|memory| memory.keep(&config, &claimed).err()) {
        let error = error.to_cni();
        withdraw(&store, &claimed, &error);
        return Err(error.into());
    }
    store.keep(&owner, &[held, claimed].concat());
    Ok(Attachment { ips, routes: config.routes, dns, ..Attachment::default() })
}

/// The spec allows no second ADD of an attachment. An address of it in the set says that there was one.
fn duplicate(set: &RangeSet, held: &[IpAddr], owner: &Owner) -> Result<()> {
    let Some(ip) = held.iter().find(|ip| set.contains(**ip)) else { return Ok(()) };
    let id = &owner.container;
    let text = format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
    Err(Error::internal(text).with_details("an ADD before this one got it: run DEL first").into())
}

/// Undoes this call's claims, and only those. After a failure of the disk nothing is sure: the next call reads
/// the folder again.
fn withdraw(store: &Store, claimed: &[IpAddr], error: &Error) {
    // Each one, also behind one that could not be released.
    let all = claimed.iter().filter(|ip| store.release(**ip).is_err()).count() == 0;
    if all && error.code != code::IO && (store.was_read() || !claimed.is_empty()) {
        store.seal();
    }
}

/// Says which set an error is about, in the words of the reference plugin.
fn in_set(set: usize, error: podwire_cni_plugin::Error) -> Error {
    let error = error.to_cni();
    Error { msg: format!("failed to allocate for range {set}: {}", error.msg), ..error }
}

/// Gives back whatever the attachment has. What is missing is as good as given back.
fn del(req: &Request<'_>, place: &Surroundings) -> Result<()> {
    let Some(mut store) = Store::find(&config::folder(req), place)? else { return Ok(()) };
    let owner = Owner::new(&req.container, &req.ifname);
    let mut held = store.held(&owner)?;
    if held.iter().any(|entry| matches!(entry.holder, Holder::Interface(_))) {
        // An old entry of the container is another interface's then.
        held.retain(|entry| matches!(entry.holder, Holder::Interface(_)));
    }
    let released: Vec<Result<()>> = held.iter().map(|entry| store.release(entry.ip)).collect();
    let errors: Vec<_> = released.into_iter().filter_map(Result::err).collect();
    note_release(req, &held, place.now);
    if errors.is_empty() && (store.was_read() || !held.is_empty()) {
        store.keep(&owner, &[]);
    }
    podwire_cni_plugin::Error::all(errors)
}

/// Notes when addresses were given back, if they are to cool down. If it cannot be noted they are given a little early.
fn note_release(req: &Request<'_>, released: &[Entry], now: u64) {
    if config::cools_down(req) {
        let ips: Vec<IpAddr> = released.iter().map(|entry| entry.ip).collect();
        let _ = history::release(&config::folder(req), &ips, now);
    }
}

/// The attachment must have an address, and each that the runtime remembers and that is from our ranges. One that
/// nobody has taken meanwhile can be reserved again.
fn inspect<'p>(req: &Request<'p>, place: &Surroundings) -> Result<Vec<Finding<'p>>> {
    let config = Config::read(req)?;
    let owner = Owner::new(&req.container, &req.ifname);
    let lost = |what: String| {
        let text = format!("host-local: Failed to find address added by container {}{what}", owner.container);
        Finding::new(text)
    };
    let again = |ips: Vec<IpAddr>| reserve_again((config.folder.clone(), place.clone()), owner.clone(), ips);
    let recorded = req.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.addr());
    let wanted: Vec<IpAddr> = recorded.filter(|ip| config.sets.iter().any(|set| set.contains(*ip))).collect();
    let Some(mut store) = Store::find(&config.folder, place)? else {
        let missing = lost(format!(": there is no folder {}", config.folder.display()));
        return Ok(match wanted.is_empty() {
            true => vec![missing],
            false => vec![missing.repaired_by(again(wanted))],
        });
    };
    let held = store.held(&owner)?;
    if store.was_read() {
        store.seal();
    }
    if held.is_empty() && wanted.is_empty() {
        return Ok(vec![lost(format!(" as {} in {}", owner.ifname, config.folder.display()))]);
    }
    let mut findings = Vec::new();
    for ip in wanted.into_iter().filter(|ip| held.iter().all(|entry| entry.ip != *ip)) {
        let file = store.file(ip);
        findings.push(match store.holder(ip)?.filter(|holder| *holder != Holder::Nobody) {
            Some(holder) => lost(format!(": {ip} belongs to {holder} ({})", file.display())),
            None => lost(format!(": {} is missing", file.display())).repaired_by(again(vec![ip])),
        });
    }
    Ok(findings)
}

/// Reserves addresses that the owner has in use. If somebody was faster one is theirs.
fn reserve_again<'p>(
    (folder, place): (PathBuf, Surroundings),
    owner: Owner,
    ips: Vec<IpAddr>,
) -> impl FnOnce() -> Result<()> + 'p {
    move || {
        let mut store = Store::create(&folder, &place)?;
        let mut held: Vec<IpAddr> = store.held(&owner)?.into_iter().map(|entry| entry.ip).collect();
        let mut errors = Vec::new();
        for ip in ips.into_iter().filter(|ip| !held.contains(ip)).collect::<Vec<_>>() {
            if store.claim(ip, &owner)? {
                held.push(ip);
                continue;
            }
            let holder = store.holder(ip)?.unwrap_or(Holder::Stranger);
            let text = format!("{ip} belongs to {holder} ({}) meanwhile", store.file(ip).display());
            errors.push(Error::internal(text).with_details("recreate the pod").into());
        }
        store.keep(&owner, &held);
        podwire_cni_plugin::Error::all(errors)
    }
}

/// Gives back everything whose owner is not among the valid ones.
fn gc(req: &Request<'_>, place: &Surroundings) -> Result<()> {
    let valid = req.valid()?;
    let Some(mut store) = Store::find(&config::folder(req), place)? else { return Ok(()) };
    let containers: HashSet<&str> = valid.iter().map(|one| one.container_id.as_str()).collect();
    let is_valid = |holder: &Holder| match holder {
        Holder::Interface(owner) => valid.contains(&owner.container, &owner.ifname),
        Holder::Container(id) => containers.contains(id.as_str()),
        Holder::Nobody => false,
        Holder::Stranger => true,
    };
    let (mut entries, mut errors) = (store.read()?.to_vec(), Vec::new());
    let mut released = Vec::new();
    entries.retain(|entry| {
        let stays =
            is_valid(&entry.holder) || store.release(entry.ip).map_err(|error| errors.push(error)).is_err();
        released.extend((!stays).then(|| entry.clone()));
        stays
    });
    note_release(req, &released, place.now);
    store.keep_all(&entries);
    podwire_cni_plugin::Error::all(errors)
}

/// Whether an ADD would find an address in each set.
fn status(req: &Request<'_>, place: &Surroundings) -> Result<()> {
    if config::leaves_ranges_to_runtime(req) {
        return Ok(());
    }
    let config = Config::read(req)?;
    config.dns().map_err(|error| Error { code: code::NOT_AVAILABLE, ..error.to_cni() })?;
    if find_exhausted(&config, place)?.is_none() {
        return Ok(());
    }
    // What pods of an earlier boot had is given back as soon as somebody looks, and an ADD will not come to do so.
    if let Some(store) = Store::find(&config.folder, place)?.filter(Store::was_read) {
        store.seal();
    }
    find_exhausted(&config, place)?.map_or(Ok(()), |error| Err(error.into()))
}

/// The error of the first set without an address for a pod that asks for none.
fn find_exhausted(config: &Config, place: &Surroundings) -> Result<Option<Error>> {
    let mut taken = match store::taken(&config.folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => HashSet::new(),
        taken => taken.map_err(store::failed("read", &config.folder))?,
    };
    let memory = Memory::read(config, place.now)?;
    for set in &config.sets {
        let cooling: Vec<IpAddr> = memory.iter().flat_map(|memory| memory.cooling(set)).collect();
        let cooling = cooling.into_iter().filter(|ip| taken.insert(*ip)).count();
        // Most sets have more addresses than there are files: nothing to count.
        let full = set.size() <= taken.len() as u128
            && set.after(None).all(|candidate| taken.contains(&candidate.ip));
        let left_by_crash =
            |ip: &IpAddr| set.offers(*ip) && store::is_empty(&config.folder.join(ip.to_string()));
        if full && !taken.iter().any(left_by_crash) {
            return Ok(Some(exhausted(set, cooling, code::NOT_AVAILABLE)));
        }
    }
    Ok(None)
}
