//! host-local: assigns addresses from ranges on this node, with a file on disk for each.
//!
//! There is no daemon and no datastore: the folder of a network, `/var/lib/cni/networks/<network>`, has a file for each
//! assigned address. Creating a file that must not exist yet assigns the address, and a lock on the folder serializes
//! plugins. The layout is that of the reference plugin, so both can serve one node at the same time. Beyond the
//! reference plugin, this one finds an attachment's addresses without reading every file, frees addresses that crashes
//! left or that were assigned before the node's boot, releases addresses with an invalid config, supports `cooldown`
//! and `sticky`, and implements GC and STATUS.

mod allocator;
mod boot;
mod config;
mod entry;
mod environment;
mod history;
mod index;
mod other_networks;
mod reservations;
mod resolv;
mod store;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use podwire_cni_plugin::{delegate, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{code, Attachment, Error, Ip};
use podwire_ipam::{Candidate, Range, RangeSet};

use allocator::{exhausted, Allocator, ReusePolicy};
use config::Config;
use entry::{AttachmentId, Entry, Holder};
use environment::Environment;
use store::Store;

pub use config::DATA_DIR as DATA_FOLDER;
pub(crate) use other_networks::holders_in_other_networks;
pub use reservations::{release, reservations, Reservation};

/// The plugin.
#[derive(Debug)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn about(&self) -> &'static str {
        "host-local: assigns addresses from ranges on this node"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS, crate::keys::IPAM_ROUTES]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        add(req, &Environment::of_this_node())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        del(req, &Environment::of_this_node())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        inspect(req, &Environment::of_this_node())
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        gc(req, &Environment::of_this_node())
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        status(req, &Environment::of_this_node())
    }
}

/// Assigns one address from each set. If one set fails, all are released.
fn add(req: &Request<'_>, env: &Environment) -> Result<Attachment> {
    let config = Config::read(req)?;
    let dns = config.dns()?;
    let owner = AttachmentId::new(&req.container, &req.ifname);
    let mut store = Store::open_or_create(&config.folder, env)?;
    let held: Vec<IpAddr> = store.addresses_of(&owner)?.into_iter().map(|entry| entry.ip).collect();
    let reuse = ReusePolicy::read(&config, env.now)?;
    let allocator = Allocator { store: &store, owner: &owner, reuse: reuse.as_ref() };

    let mut claimed = Vec::with_capacity(config.sets.len());
    let mut ips = Vec::with_capacity(config.sets.len());
    for (i, set) in config.sets.iter().enumerate() {
        let last = store.last_reserved(i);
        let assigned = refuse_duplicate(set, &held, &owner).and_then(|()| match config.requested[i] {
            Some(ip) => allocator.requested(set, ip),
            None => allocator.next(set, last.ip),
        });
        let recorded = assigned.and_then(|assigned| {
            claimed.push(assigned.ip);
            last.set(assigned.ip)?;
            Ok(assigned)
        });
        match recorded {
            Ok(Candidate { ip, range }) => {
                ips.push(Ip { gateway: range.gateway(), ..Ip::new(range.assign(ip)) });
            }
            Err(error) => {
                let error = in_set(i, error);
                undo_claims(&store, &claimed, &error);
                return Err(error.into());
            }
        }
    }
    if let Some(error) = reuse.and_then(|reuse| reuse.record(&config, &claimed).err()) {
        let error = error.to_cni();
        undo_claims(&store, &claimed, &error);
        return Err(error.into());
    }
    store.update_index(&owner, &[held, claimed].concat());
    Ok(Attachment { ips, routes: config.routes, dns, ..Attachment::default() })
}

/// Fails if the attachment already has an address of the set: the spec does not allow a second ADD.
fn refuse_duplicate(set: &RangeSet, held: &[IpAddr], owner: &AttachmentId) -> Result<()> {
    let Some(ip) = held.iter().find(|ip| set.contains(**ip)) else { return Ok(()) };
    let id = &owner.container;
    let text = format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
    Err(Error::internal(text).with_hint("an earlier ADD assigned it: run DEL first").into())
}

/// Releases the addresses that this call claimed. After an I/O error the index is not marked as valid, so the next
/// call scans the directory.
fn undo_claims(store: &Store, claimed: &[IpAddr], error: &Error) {
    // `count` runs through all, even if one release fails.
    let is_complete = claimed.iter().filter(|ip| store.release(**ip).is_err()).count() == 0;
    if is_complete && error.code != code::IO && (store.was_scanned() || !claimed.is_empty()) {
        store.mark_index_valid();
    }
}

/// Adds the set to an error, with the text of the reference plugin.
fn in_set(set: usize, error: podwire_cni_plugin::Error) -> Error {
    let error = error.to_cni();
    Error { msg: format!("failed to allocate for range {set}: {}", error.msg), ..error }
}

/// Releases all addresses of the attachment. A missing file counts as released.
fn del(req: &Request<'_>, env: &Environment) -> Result<()> {
    let Some(mut store) = Store::open_existing(&config::folder(req), env)? else { return Ok(()) };
    let owner = AttachmentId::new(&req.container, &req.ifname);
    let mut held = store.addresses_of(&owner)?;
    if held.iter().any(|entry| matches!(entry.holder, Holder::Interface(_))) {
        // An entry without an interface then belongs to another interface of the container.
        held.retain(|entry| matches!(entry.holder, Holder::Interface(_)));
    }
    let released: Vec<Result<()>> = held.iter().map(|entry| store.release(entry.ip)).collect();
    let errors: Vec<_> = released.into_iter().filter_map(Result::err).collect();
    record_release(req, &held, env.now);
    if errors.is_empty() && (store.was_scanned() || !held.is_empty()) {
        store.update_index(&owner, &[]);
    }
    podwire_cni_plugin::Error::all(errors)
}

/// Records the time of the release for `cooldown`. If that fails, the addresses can be assigned again too early.
fn record_release(req: &Request<'_>, released: &[Entry], now: u64) {
    if config::has_cooldown(req) {
        let ips: Vec<IpAddr> = released.iter().map(|entry| entry.ip).collect();
        let _ = history::release(&config::folder(req), &ips, now);
    }
}

/// The attachment has an address, and each recorded address of these ranges. The repair reserves an address again if no
/// other attachment has it.
fn inspect<'p>(req: &Request<'p>, env: &Environment) -> Result<Vec<Finding<'p>>> {
    let config = Config::read(req)?;
    let owner = AttachmentId::new(&req.container, &req.ifname);
    let lost = |what: String| {
        let text = format!("host-local: Failed to find address added by container {}{what}", owner.container);
        Finding::new(text)
    };
    let again = |ips: Vec<IpAddr>| reserve_again(config.folder.clone(), env.clone(), owner.clone(), ips);
    let recorded = req.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.addr());
    let wanted: Vec<IpAddr> = recorded.filter(|ip| config.sets.iter().any(|set| set.contains(*ip))).collect();
    let Some(mut store) = Store::open_existing(&config.folder, env)? else {
        let missing = lost(format!(": there is no folder {}", config.folder.display()));
        if wanted.is_empty() {
            return Ok(vec![missing]);
        }
        return Ok(vec![missing.repaired_by(again(wanted))]);
    };
    let held = store.addresses_of(&owner)?;
    if store.was_scanned() {
        store.mark_index_valid();
    }
    if held.is_empty() && wanted.is_empty() {
        return Ok(vec![lost(format!(" as {} in {}", owner.ifname, config.folder.display()))]);
    }
    let mut findings = Vec::new();
    for ip in wanted.into_iter().filter(|ip| held.iter().all(|entry| entry.ip != *ip)) {
        let file = store.address_path(ip);
        findings.push(match store.holder_of(ip)?.filter(|holder| *holder != Holder::Empty) {
            Some(holder) => lost(format!(": {ip} belongs to {holder} ({})", file.display())),
            None => lost(format!(": {} is missing", file.display())).repaired_by(again(vec![ip])),
        });
    }
    Ok(findings)
}

/// A repair that reserves addresses which the attachment uses. It fails for an address that another attachment has by
/// then.
fn reserve_again<'p>(
    folder: PathBuf,
    env: Environment,
    owner: AttachmentId,
    ips: Vec<IpAddr>,
) -> impl FnOnce() -> Result<()> + 'p {
    move || {
        let mut store = Store::open_or_create(&folder, &env)?;
        let mut held: Vec<IpAddr> = store.addresses_of(&owner)?.into_iter().map(|entry| entry.ip).collect();
        let mut errors = Vec::new();
        for ip in ips.into_iter().filter(|ip| !held.contains(ip)).collect::<Vec<_>>() {
            if store.claim(ip, &owner)? {
                held.push(ip);
                continue;
            }
            let holder = store.holder_of(ip)?.unwrap_or(Holder::Unknown);
            let text = format!("{ip} now belongs to {holder} ({})", store.address_path(ip).display());
            errors.push(Error::internal(text).with_details("recreate the pod").into());
        }
        store.update_index(&owner, &held);
        podwire_cni_plugin::Error::all(errors)
    }
}

/// Releases the addresses of attachments that are no longer valid.
fn gc(req: &Request<'_>, env: &Environment) -> Result<()> {
    let valid = req.valid()?;
    let Some(mut store) = Store::open_existing(&config::folder(req), env)? else { return Ok(()) };
    let containers: HashSet<&str> = valid.iter().map(|one| one.container_id.as_str()).collect();
    let is_valid = |holder: &Holder| match holder {
        Holder::Interface(owner) => valid.contains(&owner.container, &owner.ifname),
        Holder::Container(id) => containers.contains(id.as_str()),
        Holder::Empty => false,
        Holder::Unknown => true,
    };
    let (mut entries, mut errors) = (store.scan()?.to_vec(), Vec::new());
    let mut released = Vec::new();
    entries.retain(|entry| {
        let is_kept =
            is_valid(&entry.holder) || store.release(entry.ip).map_err(|error| errors.push(error)).is_err();
        released.extend((!is_kept).then(|| entry.clone()));
        is_kept
    });
    record_release(req, &released, env.now);
    store.replace_index(&entries);
    podwire_cni_plugin::Error::all(errors)
}

/// The subnets of the config; none if another IPAM plugin is used, or if the runtime passes them.
pub(crate) fn subnets(req: &Request<'_>) -> Result<Vec<IpNet>> {
    if delegate::ipam(req) != Some(HostLocal.name()) || config::has_ranges_from_runtime(req) {
        return Ok(Vec::new());
    }
    let sets = Config::read(req)?.sets;
    Ok(sets.iter().flat_map(|set| set.ranges()).map(Range::subnet).collect())
}

/// Fails if a set has no free address.
fn status(req: &Request<'_>, env: &Environment) -> Result<()> {
    if config::has_ranges_from_runtime(req) {
        return Ok(());
    }
    let config = Config::read(req)?;
    config.dns().map_err(|error| Error { code: code::NOT_AVAILABLE, ..error.to_cni() })?;
    if find_exhausted(&config, env)?.is_none() {
        return Ok(());
    }
    // Opening the store releases addresses of an earlier boot. A runtime that sees this STATUS fail runs no ADD, so do
    // it here.
    if let Some(store) = Store::open_existing(&config.folder, env)?.filter(Store::was_scanned) {
        store.mark_index_valid();
    }
    find_exhausted(&config, env)?.map_or(Ok(()), |error| Err(error.into()))
}

/// The error of the first set that has no free address.
fn find_exhausted(config: &Config, env: &Environment) -> Result<Option<Error>> {
    let mut taken = match store::addresses_with_file(&config.folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => HashSet::new(),
        taken => taken.map_err(store::io_error("read", &config.folder))?,
    };
    let reuse = ReusePolicy::read(config, env.now)?;
    for set in &config.sets {
        let cooling: Vec<IpAddr> = reuse.iter().flat_map(|reuse| reuse.cooling(set)).collect();
        let cooling = cooling.into_iter().filter(|ip| taken.insert(*ip)).count();
        // Usually a set has more addresses than there are files, and needs no comparison.
        let is_full = set.size() <= taken.len() as u128
            && set.after(None).all(|candidate| taken.contains(&candidate.ip));
        let is_left_by_crash =
            |ip: &IpAddr| set.offers(*ip) && store::is_empty(&config.folder.join(ip.to_string()));
        if is_full && !taken.iter().any(is_left_by_crash) {
            return Ok(Some(exhausted(set, cooling, code::NOT_AVAILABLE)));
        }
    }
    Ok(None)
}
